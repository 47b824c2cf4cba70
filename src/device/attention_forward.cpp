#include "device/attention_forward.hpp"

#include <cmath>
#include <limits>

#include "plan/kernel_rows.hpp"
#include "plan/plan.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr double kLog2E = 1.4426950408889634;

// (sequence, key head) pairs whose query tiles run side by side: enough to share their keys through the L2 cache, few
// enough that those keys stay in it.
constexpr int64_t kHeadsInFlight = 16;

std::vector<const ForwardRow*> rows_for(const AttentionProblem& p) {
  return forward_rows_for(p.q.dtype, p.head_dim, p.head_dim_v, p.softcap > 0 || p.page_table);
}

QueryRows query_rows(const AttentionProblem& p, int sm_count) {
  return {p.max_q * p.group(), p.heads_k * p.batch, sm_count};
}

Status check_alignment(std::string_view name, const Rows& rows) {
  const int64_t size = dtype_size(rows.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.outer_stride * size % 16 == 0 &&
                       rows.token_stride * size % 16 == 0 && rows.head_stride * size % 16 == 0;
  if (aligned) return {};
  return not_supported(fmt::format(
      "{}: the GPU kernels need rows that start at multiples of 16 bytes, in memory and by every stride; the cpu "
      "backend takes any",
      name));
}

Region region(const char* name, const void* data, int64_t elements, int64_t size, bool written = false) {
  return {data, static_cast<size_t>(elements * size), name, written, !written};
}

// What a strided tensor of `rows` reaches from its first element.
int64_t reach(const Rows& rows, int64_t outer, int64_t tokens, int64_t heads, int64_t features) {
  if (outer == 0 || tokens == 0) return 0;
  return (outer - 1) * rows.outer_stride + (tokens - 1) * rows.token_stride + (heads - 1) * rows.head_stride + features;
}

std::vector<Region> regions_of(const AttentionProblem& p) {
  const int64_t outer_q = p.cu_seqlens_q ? 1 : p.batch;
  const int64_t size = dtype_size(p.q.dtype);
  const int64_t tokens_k = p.page_table ? p.page_size : p.dense_k;
  std::vector<Region> regions = {
      region("q", p.q.data, reach(p.q, outer_q, p.dense_q, p.heads_q, p.head_dim), size),
      region("k", p.k.data, reach(p.k, p.rows_k, tokens_k, p.heads_k, p.head_dim), size),
      region("v", p.v.data, reach(p.v, p.rows_k, tokens_k, p.heads_k, p.head_dim_v), size),
      region("o", p.o.data, reach(p.o, outer_q, p.dense_q, p.heads_q, p.head_dim_v), dtype_size(p.o.dtype), true),
  };
  if (p.lse != nullptr && outer_q > 0 && p.dense_q > 0) {
    const int64_t count = (outer_q - 1) * p.lse_outer_stride + (p.heads_q - 1) * p.lse_head_stride + p.dense_q;
    regions.push_back(region("lse", p.lse, count, 4, true));
  }
  for (const auto& [name, ints] : {std::pair{"cu_seqlens_q", &p.cu_seqlens_q}, {"cu_seqlens_k", &p.cu_seqlens_k}}) {
    if (*ints) regions.push_back(region(name, ints->data, p.batch + 1, dtype_size(ints->dtype)));
  }
  for (const auto& [name, ints] : {std::pair{"seqused_k", &p.seqused_k}, {"cache_batch_idx", &p.cache_batch_idx}}) {
    if (*ints) regions.push_back(region(name, ints->data, p.batch, dtype_size(ints->dtype)));
  }
  if (p.page_table && p.batch > 0) {
    const int64_t entries = (p.batch - 1) * p.page_table.row_stride + p.dense_k / p.page_size;
    regions.push_back(region("page_table", p.page_table.data, entries, 4));
  }
  if (p.sink) regions.push_back(region("sink", p.sink.data, p.heads_q, dtype_size(p.sink.dtype)));
  return regions;
}

}  // namespace

Status attention_forward_supported(const AttentionProblem& p) {
  if (p.q.dtype == FLASHDELTA_FP32) {
    return not_supported("q: the GPU kernels take bf16 and fp16, not fp32; the cpu backend takes all three");
  }
  if (rows_for(p).empty()) {
    int64_t most = 0;
    for (const ForwardRow& row : forward_rows) most = std::max<int64_t>(most, row.config.head_dim);
    return not_supported(
        fmt::format("q: the GPU kernels take head sizes up to {}, not {} with values of {}; the cpu "
                    "backend takes up to 512",
                    most, p.head_dim, p.head_dim_v));
  }
  for (const auto& [name, rows] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}}) {
    FLASHDELTA_RETURN_IF_ERROR(check_alignment(name, *rows));
  }
  if (p.dense_q > kMostTokens / p.group() || p.dense_k > kMostTokens || p.batch > kMostTokens / p.heads_k ||
      p.rows_k > kMostTokens) {
    return not_supported("q: the GPU kernels take up to 2^30 tokens, heads and pages; the cpu backend more");
  }
  return {};
}

Status choose_forward_row(const AttentionProblem& p, const ArchProfile& arch, int sm_count, const ForwardRow** chosen) {
  FLASHDELTA_RETURN_IF_ERROR(attention_forward_supported(p));
  const QueryRows work = query_rows(p, sm_count);
  const ForwardRow* best = choose_forward_row(arch, rows_for(p), work);
  if (best == nullptr) {
    return not_supported(
        fmt::format("q: no kernel for head sizes {} and {} fits {}", p.head_dim, p.head_dim_v, arch.name));
  }
  if (work.blocks(best->config) > kMostInt32) return not_supported("q: over 2^31 blocks of query rows");
  *chosen = best;
  return {};
}

AttentionForwardParams forward_params(const AttentionProblem& p, const ForwardConfig& config) {
  AttentionForwardParams out{};
  out.q = p.q.data;
  out.k = p.k.data;
  out.v = p.v.data;
  out.o = p.o.data;
  out.lse = p.lse;
  const auto strides = [](const Rows& rows, int64_t* batch, int64_t* token, int64_t* head) {
    *batch = rows.outer_stride;
    *token = rows.token_stride;
    *head = rows.head_stride;
  };
  strides(p.q, &out.q_batch_stride, &out.q_token_stride, &out.q_head_stride);
  strides(p.k, &out.k_batch_stride, &out.k_token_stride, &out.k_head_stride);
  strides(p.v, &out.v_batch_stride, &out.v_token_stride, &out.v_head_stride);
  strides(p.o, &out.o_batch_stride, &out.o_token_stride, &out.o_head_stride);
  out.lse_batch_stride = p.lse_outer_stride;
  out.lse_head_stride = p.lse_head_stride;
  out.cu_seqlens_q = p.cu_seqlens_q.data;
  out.cu_seqlens_k = p.cu_seqlens_k.data;
  out.seqused_k = p.seqused_k.data;
  out.cache_batch_idx = p.cache_batch_idx.data;
  out.page_table = static_cast<const int32_t*>(p.page_table.data);
  out.page_table_stride = p.page_table.row_stride;
  out.sink = p.sink.data;
  out.seqused_k_is_64 = p.seqused_k.dtype == FLASHDELTA_INT64;
  out.cache_batch_idx_is_64 = p.cache_batch_idx.dtype == FLASHDELTA_INT64;
  out.sink_is_fp32 = p.sink.dtype == FLASHDELTA_FP32;
  out.page_size = static_cast<int32_t>(p.page_size);
  out.rows_k = static_cast<int32_t>(p.rows_k);
  out.cu_seqlens_q_is_64 = p.cu_seqlens_q.dtype == FLASHDELTA_INT64;
  out.cu_seqlens_k_is_64 = p.cu_seqlens_k.dtype == FLASHDELTA_INT64;
  out.batch = static_cast<int32_t>(p.batch);
  out.heads_k = static_cast<int32_t>(p.heads_k);
  out.group = static_cast<int32_t>(p.group());
  out.head_dim = static_cast<int32_t>(p.head_dim);
  out.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  out.length_q = static_cast<int32_t>(p.dense_q);
  out.length_k = static_cast<int32_t>(p.dense_k);
  // A bound over 2^31 tokens is none: no sequence here is that long.
  out.window_left = p.window_left > kMostInt32 ? -1 : static_cast<int32_t>(p.window_left);
  out.window_right = p.window_right > kMostInt32 ? -1 : static_cast<int32_t>(p.window_right);
  out.o_is_fp32 = p.o.dtype == FLASHDELTA_FP32;
  out.scale_log2 = p.softcap > 0 ? 1.f : static_cast<float>(p.scale * kLog2E);
  if (p.softcap > 0) {
    const double cap = std::clamp(p.softcap, 1e-30, 1e30);  // fp32 holds it and its inverse
    out.softcap_in = static_cast<float>(std::clamp(p.scale / cap, -1e37, 1e37));
    out.softcap_log2 = static_cast<float>(cap * kLog2E);
  }
  out.q_tiles = static_cast<int32_t>(ceil_div(p.max_q * p.group(), config.block_q));
  out.heads_in_flight = static_cast<int32_t>(std::min(kHeadsInFlight, p.heads_k * p.batch));
  out.longest_first = p.window_right >= 0;
  return out;
}

uint32_t held_shared_bytes(const DeviceInfo& device, const ArchProfile& arch, int64_t bytes, int64_t threads) {
  const int64_t most = resident_blocks(arch, bytes, threads);
  if (&arch == device.arch || most == 0) return static_cast<uint32_t>(bytes);
  // One byte more than a share of an SM among most + 1 blocks leaves room for `most`.
  const int64_t share = device.shared_bytes_sm / (most + 1) - device.shared_bytes_reserved + 1;
  const int64_t rounded = ceil_div(share, 128) * 128;
  return static_cast<uint32_t>(std::clamp(rounded, bytes, device.shared_bytes_block));
}

Status attention_forward_on(Device& device, const ArchProfile& arch, const AttentionProblem& p, void* stream) {
  const ForwardRow* row = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(choose_forward_row(p, arch, device.info().sm_count, &row));
  const int64_t count = query_rows(p, device.info().sm_count).blocks(row->config);
  if (count == 0) return {};
  const AttentionForwardParams params = forward_params(p, row->config);
  const std::string kernel = fmt::format("flashdelta_{}", row->name);
  const std::vector<Region> regions = regions_of(p);
  KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = {static_cast<uint32_t>(count), static_cast<uint32_t>(row->config.value_parts), 1};
  launch.threads = static_cast<uint32_t>(row->config.threads());
  launch.dynamic_shared_bytes =
      held_shared_bytes(device.info(), arch, row->config.shared_bytes(), row->config.threads());
  launch.parameters = std::as_bytes(std::span(&params, 1));
  launch.regions = regions;
  return device.launch(launch, stream);
}

}  // namespace flashdelta
