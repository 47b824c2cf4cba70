// attention_forward's arguments to an AttentionProblem.
#include <cmath>

#include "core/tensor_check.hpp"

namespace flashdelta {
namespace {

using Args = flashdelta_attention_forward_args;

Status check_options(const Args& args, int64_t head_dim, AttentionProblem* p) {
  if (args.causal != 0 && args.causal != 1) return invalid("causal", "0 or 1", std::to_string(args.causal));
  if (args.reserved != 0) return invalid("reserved", "0", std::to_string(args.reserved));
  if (std::isinf(args.scale)) return invalid("scale", "a finite number, or NaN for the default", "infinity");
  if (!std::isfinite(args.softcap) || args.softcap < 0) {
    return invalid("softcap", "a finite number, 0 (off) or above", fmt::format("{}", args.softcap));
  }
  for (const auto& [name, value] : {std::pair{"window_left", args.window_left}, {"window_right", args.window_right}}) {
    if (value < -1) return invalid(name, "-1 (unbounded) or above", std::to_string(value));
  }
  p->scale = std::isnan(args.scale) ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : args.scale;
  p->softcap = args.softcap;
  // No sequence is longer than 2^60 tokens, so a wider window is none; sums with positions then cannot overflow.
  constexpr int64_t kWidest = int64_t{1} << 61;
  p->window_left = args.window_left > kWidest ? -1 : args.window_left;
  p->window_right = args.causal != 0 ? 0 : (args.window_right > kWidest ? -1 : args.window_right);
  return {};
}

// Queries: dense [B, TQ, HQ, D] or packed [total_q, HQ, D].
Status read_queries(const Args& args, AttentionProblem* p) {
  const bool packed = present(args.cu_seqlens_q);
  FLASHDELTA_RETURN_IF_ERROR(
      check_tensor("q", args.q, {FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32}, {packed ? 3 : 4}, Access::input));
  const int32_t n = args.q.ndim;
  p->heads_q = args.q.shape[n - 2];
  p->head_dim = args.q.shape[n - 1];
  p->dense_q = args.q.shape[n - 3];
  p->q = rows_of(args.q);
  FLASHDELTA_RETURN_IF_ERROR(check_multiple_of_8("q", "a head size", p->head_dim, 512));
  if (packed) {
    FLASHDELTA_RETURN_IF_ERROR(
        check_tensor("cu_seqlens_q", args.cu_seqlens_q, {FLASHDELTA_INT32, FLASHDELTA_INT64}, {1}, Access::input));
    if (args.cu_seqlens_q.shape[0] < 1) return invalid("cu_seqlens_q", "at least 1 entry", "0");
    p->batch = args.cu_seqlens_q.shape[0] - 1;
    p->cu_seqlens_q = {args.cu_seqlens_q.data, args.cu_seqlens_q.dtype, 0};
  } else {
    p->batch = args.q.shape[0];
  }
  return {};
}

// Keys and values: dense, packed or paged.
Status read_keys(const Args& args, AttentionProblem* p) {
  const bool packed = present(args.cu_seqlens_k);
  const bool paged = present(args.page_table);
  if (packed && paged) return invalid("page_table", "none beside cu_seqlens_k", "both");
  for (const auto& [name, t] : {std::pair{"k", &args.k}, {"v", &args.v}}) {
    FLASHDELTA_RETURN_IF_ERROR(check_tensor(name, *t, {args.q.dtype}, {packed ? 3 : 4}, Access::input));
  }
  const int32_t n = args.k.ndim;
  p->heads_k = args.k.shape[n - 2];
  p->head_dim_v = args.v.shape[n - 1];
  p->k = rows_of(args.k);
  p->v = rows_of(args.v);
  if (args.k.shape[n - 1] != p->head_dim) {
    return invalid("k", fmt::format("q's head size {}", p->head_dim), std::to_string(args.k.shape[n - 1]));
  }
  FLASHDELTA_RETURN_IF_ERROR(check_multiple_of_8("v", "a head size", p->head_dim_v, 512));
  if (p->heads_k < 1) return invalid("k", "at least 1 head", std::to_string(p->heads_k));
  if (p->heads_q < 1 || p->heads_q % p->heads_k != 0) {
    return invalid("q", fmt::format("a head count that is a multiple of k's {}", p->heads_k),
                   std::to_string(p->heads_q));
  }
  for (int32_t i = 0; i < n - 1; i++) {
    if (args.v.shape[i] != args.k.shape[i]) {
      return invalid("v", fmt::format("k's shape {} but for the last dimension", shape_text(args.k)),
                     shape_text(args.v));
    }
  }
  p->rows_k = packed ? 1 : args.k.shape[0];
  p->dense_k = args.k.shape[n - 3];
  FLASHDELTA_RETURN_IF_ERROR(check_ints("cu_seqlens_k", args.cu_seqlens_k, p->batch + 1, "[B + 1]", &p->cu_seqlens_k));
  FLASHDELTA_RETURN_IF_ERROR(check_ints("seqused_k", args.seqused_k, p->batch, "[B]", &p->seqused_k));
  FLASHDELTA_RETURN_IF_ERROR(check_ints("cache_batch_idx", args.cache_batch_idx, p->batch, "[B]", &p->cache_batch_idx));
  if (p->cache_batch_idx && (packed || paged)) {
    return invalid("cache_batch_idx", "dense k and v", packed ? "cu_seqlens_k" : "page_table");
  }
  if (paged) {
    FLASHDELTA_RETURN_IF_ERROR(check_tensor("page_table", args.page_table, {FLASHDELTA_INT32}, {2}, Access::input));
    FLASHDELTA_RETURN_IF_ERROR(check_shape("page_table", args.page_table, {p->batch, -1}, "[B, pages_per_sequence]"));
    if (!p->seqused_k) return invalid("seqused_k", "a length for each sequence beside page_table", "none");
    p->page_size = args.k.shape[1];
    if (p->page_size < 1) return invalid("k", "a page_size of at least 1", std::to_string(p->page_size));
    if (p->page_size > (int64_t{1} << 60) / std::max<int64_t>(args.page_table.shape[1], 1)) {
      return invalid("page_table", "pages that hold at most 2^60 keys", shape_text(args.page_table));
    }
    p->page_table = {args.page_table.data, args.page_table.dtype, args.page_table.strides[0]};
    p->dense_k = p->page_size * args.page_table.shape[1];
  } else if (!packed && !p->cache_batch_idx && p->rows_k != p->batch) {
    return invalid("k", fmt::format("q's batch of {}", p->batch), std::to_string(p->rows_k));
  }
  return {};
}

Status read_outputs(const Args& args, AttentionProblem* p) {
  const bool packed = static_cast<bool>(p->cu_seqlens_q);
  const int rank = packed ? 3 : 4;
  FLASHDELTA_RETURN_IF_ERROR(check_tensor("o", args.o, {args.q.dtype, FLASHDELTA_FP32}, {rank}, Access::output));
  FLASHDELTA_RETURN_IF_ERROR(
      packed ? check_shape("o", args.o, {p->dense_q, p->heads_q, p->head_dim_v}, "[total_q, HQ, DV]")
             : check_shape("o", args.o, {p->batch, p->dense_q, p->heads_q, p->head_dim_v}, "[B, TQ, HQ, DV]"));
  p->o = rows_of(args.o);
  if (present(args.lse)) {
    FLASHDELTA_RETURN_IF_ERROR(check_tensor("lse", args.lse, {FLASHDELTA_FP32}, {rank - 1}, Access::output));
    FLASHDELTA_RETURN_IF_ERROR(packed
                                   ? check_shape("lse", args.lse, {p->heads_q, p->dense_q}, "[HQ, total_q]")
                                   : check_shape("lse", args.lse, {p->batch, p->heads_q, p->dense_q}, "[B, HQ, TQ]"));
    p->lse = static_cast<float*>(args.lse.data);
    p->lse_outer_stride = packed ? 0 : args.lse.strides[0];
    p->lse_head_stride = args.lse.strides[rank - 3];
  }
  for (const auto& [name, t] : {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}}) {
    if (args.o.data != nullptr && args.o.data == t->data)
      return invalid("o", "memory of its own", fmt::format("{}'s", name));
  }
  return {};
}

// The longest sequences that the descriptors allow, or the caller's word.
Status read_bounds(const Args& args, AttentionProblem* p) {
  const auto bound = [](std::string_view name, int64_t said, int64_t most, bool exact, int64_t* out) -> Status {
    if (said < 0) return invalid(name, "0 (unknown) or above", std::to_string(said));
    *out = said == 0 || exact ? most : std::min(said, most);
    return {};
  };
  FLASHDELTA_RETURN_IF_ERROR(bound("max_seqlen_q", args.max_seqlen_q, p->dense_q, !p->cu_seqlens_q, &p->max_q));
  return bound("max_seqlen_k", args.max_seqlen_k, p->dense_k, !p->cu_seqlens_k && !p->seqused_k, &p->max_k);
}

// Lengths, from the caller's host copies or from tensors in host memory, against the bounds that were given.
template <typename Length>
Status check_longest(std::string_view name, int64_t batch, int64_t bound, Length length) {
  for (int64_t b = 0; b < batch; b++) {
    if (length(b) > bound) {
      return invalid(name, fmt::format("at least sequence {}'s length {}", b, length(b)), std::to_string(bound));
    }
  }
  return {};
}

}  // namespace

Status make_problem(const Args& args, AttentionProblem* problem) {
  AttentionProblem p;
  if (args.struct_size != sizeof(Args)) {
    return invalid("struct_size", std::to_string(sizeof(Args)), std::to_string(args.struct_size));
  }
  FLASHDELTA_RETURN_IF_ERROR(read_queries(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(read_keys(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(check_options(args, p.head_dim, &p));
  FLASHDELTA_RETURN_IF_ERROR(check_floats("sink", args.sink, args.q.dtype, p.heads_q, "[HQ]", &p.sink));
  FLASHDELTA_RETURN_IF_ERROR(read_outputs(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(read_bounds(args, &p));
  *problem = p;
  return {};
}

Status check_contents(const Args& args, const AttentionProblem& p) {
  if (p.cu_seqlens_q) {
    FLASHDELTA_RETURN_IF_ERROR(
        check_offsets("cu_seqlens_q", p.batch + 1, p.dense_q, [&](int64_t i) { return p.cu_seqlens_q[i]; }));
  }
  if (p.cu_seqlens_k) {
    FLASHDELTA_RETURN_IF_ERROR(
        check_offsets("cu_seqlens_k", p.batch + 1, p.dense_k, [&](int64_t i) { return p.cu_seqlens_k[i]; }));
  }
  for (int64_t b = 0; b < p.batch; b++) {
    const int64_t room = p.cu_seqlens_k ? p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b] : p.dense_k;
    if (p.seqused_k && (p.seqused_k[b] < 0 || p.seqused_k[b] > room)) {
      return invalid(fmt::format("seqused_k[{}]", b), fmt::format("0 to the {} keys there is room for", room),
                     std::to_string(p.seqused_k[b]));
    }
    if (p.cache_batch_idx && (p.cache_batch_idx[b] < 0 || p.cache_batch_idx[b] >= p.rows_k)) {
      return invalid(fmt::format("cache_batch_idx[{}]", b), fmt::format("0 to {}", p.rows_k - 1),
                     std::to_string(p.cache_batch_idx[b]));
    }
    if (p.page_size == 0) continue;
    const int64_t pages = (p.seqused_k[b] + p.page_size - 1) / p.page_size;
    for (int64_t i = 0; i < pages; i++) {  // entries past the used ones may hold anything
      const int64_t page = p.page_table.at(b, i);
      if (page < 0 || page >= p.rows_k) {
        return invalid(fmt::format("page_table[{}][{}]", b, i), fmt::format("0 to {}", p.rows_k - 1),
                       std::to_string(page));
      }
    }
  }
  FLASHDELTA_RETURN_IF_ERROR(
      check_longest("max_seqlen_q", p.batch, p.max_q, [&](int64_t b) { return p.queries(b).length; }));
  FLASHDELTA_RETURN_IF_ERROR(
      check_longest("max_seqlen_k", p.batch, p.max_k, [&](int64_t b) { return p.keys(b).length; }));
  return check_host_lengths(args, p);
}

Status check_host_lengths(const Args& args, const AttentionProblem& p) {
  const auto check = [&](std::string_view name, const int64_t* host, const Ints& offsets, int64_t total,
                         std::string_view bound_name, int64_t bound) -> Status {
    if (host == nullptr) return {};
    if (!offsets) return invalid(name, "null where the tensor it copies is absent", "a pointer");
    FLASHDELTA_RETURN_IF_ERROR(check_offsets(name, p.batch + 1, total, [&](int64_t i) { return host[i]; }));
    return check_longest(bound_name, p.batch, bound, [&](int64_t b) { return host[b + 1] - host[b]; });
  };
  FLASHDELTA_RETURN_IF_ERROR(
      check("host_cu_seqlens_q", args.host_cu_seqlens_q, p.cu_seqlens_q, p.dense_q, "max_seqlen_q", p.max_q));
  // seqused_k may make max_seqlen_k smaller than the room that cu_seqlens_k gives.
  return check("host_cu_seqlens_k", args.host_cu_seqlens_k, p.cu_seqlens_k, p.dense_k, "max_seqlen_k",
               p.seqused_k ? p.dense_k : p.max_k);
}

}  // namespace flashdelta
