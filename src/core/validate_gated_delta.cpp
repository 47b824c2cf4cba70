// gated_delta_forward's arguments to a GatedDeltaProblem.
#include <cmath>
#include <unordered_map>

#include "core/tensor_check.hpp"

namespace flashdelta {
namespace {

using Args = flashdelta_gated_delta_forward_args;

Status read_inputs(const Args& args, GatedDeltaProblem* p) {
  FLASHDELTA_RETURN_IF_ERROR(
      check_tensor("q", args.q, {FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32}, {4}, Access::input));
  FLASHDELTA_RETURN_IF_ERROR(check_tensor("k", args.k, {args.q.dtype}, {4}, Access::input));
  FLASHDELTA_RETURN_IF_ERROR(check_tensor("v", args.v, {args.q.dtype}, {4}, Access::input));
  const int64_t batch = args.q.shape[0];
  p->tokens = args.q.shape[1];
  p->heads_k = args.q.shape[2];
  p->dim_k = args.q.shape[3];
  p->heads_v = args.v.shape[2];
  p->dim_v = args.v.shape[3];
  FLASHDELTA_RETURN_IF_ERROR(check_multiple_of_8("q", "a head size", p->dim_k, 256));
  FLASHDELTA_RETURN_IF_ERROR(check_multiple_of_8("v", "a head size", p->dim_v, 256));
  FLASHDELTA_RETURN_IF_ERROR(check_shape("k", args.k, {batch, p->tokens, p->heads_k, p->dim_k}, "q's [B, T, HK, K]"));
  FLASHDELTA_RETURN_IF_ERROR(check_shape("v", args.v, {batch, p->tokens, -1, -1}, "[B, T, HV, V]"));
  if (p->heads_k < 1) return invalid("k", "at least 1 head", std::to_string(p->heads_k));
  if (p->heads_v < 1 || p->heads_v % p->heads_k != 0) {
    return invalid("v", fmt::format("a head count that is a multiple of k's {}", p->heads_k),
                   std::to_string(p->heads_v));
  }
  p->q = rows_of(args.q);
  p->k = rows_of(args.k);
  p->v = rows_of(args.v);
  p->sequences = batch;
  if (present(args.cu_seqlens)) {
    FLASHDELTA_RETURN_IF_ERROR(
        check_tensor("cu_seqlens", args.cu_seqlens, {FLASHDELTA_INT32, FLASHDELTA_INT64}, {1}, Access::input));
    if (args.cu_seqlens.shape[0] < 1) return invalid("cu_seqlens", "at least 1 entry", "0");
    if (batch != 1) return invalid("q", "a batch of 1 beside cu_seqlens", std::to_string(batch));
    p->cu_seqlens = {args.cu_seqlens.data, args.cu_seqlens.dtype, 0};
    p->sequences = args.cu_seqlens.shape[0] - 1;
  }
  return {};
}

// One number a token and value head: [B, T, HV].
Status read_scalars(std::string_view name, const flashdelta_tensor& t, const Args& args, const GatedDeltaProblem& p,
                    Rows* out) {
  if (!present(t)) return {};
  FLASHDELTA_RETURN_IF_ERROR(check_tensor(name, t, {FLASHDELTA_FP32, args.q.dtype}, {3}, Access::input));
  FLASHDELTA_RETURN_IF_ERROR(check_shape(name, t, {args.q.shape[0], p.tokens, p.heads_v}, "[B, T, HV]"));
  *out = {static_cast<char*>(t.data), t.dtype, t.strides[0], t.strides[1], 1};
  return {};
}

Status read_gates(const Args& args, GatedDeltaProblem* p) {
  const bool raw_gate = present(args.A_log) || present(args.a) || present(args.dt_bias);
  if (present(args.g) && raw_gate) return invalid("g", "g, or A_log, a and dt_bias", "both forms");
  if (!present(args.g)) {
    for (const auto& [name, t] : {std::pair{"A_log", &args.A_log}, {"a", &args.a}, {"dt_bias", &args.dt_bias}}) {
      if (present(*t)) continue;
      if (!raw_gate) return invalid("g", "g, or A_log, a and dt_bias", "neither");
      return invalid(name, "all of A_log, a and dt_bias", "none");
    }
  }
  if (present(args.beta) && present(args.b)) return invalid("beta", "beta or b", "both");
  if (!present(args.beta) && !present(args.b)) return invalid("beta", "beta or b", "neither");
  FLASHDELTA_RETURN_IF_ERROR(read_scalars("g", args.g, args, *p, &p->g));
  FLASHDELTA_RETURN_IF_ERROR(read_scalars("a", args.a, args, *p, &p->a));
  FLASHDELTA_RETURN_IF_ERROR(read_scalars("beta", args.beta, args, *p, &p->beta));
  FLASHDELTA_RETURN_IF_ERROR(read_scalars("b", args.b, args, *p, &p->b));
  FLASHDELTA_RETURN_IF_ERROR(check_floats("A_log", args.A_log, args.q.dtype, p->heads_v, "[HV]", &p->A_log));
  return check_floats("dt_bias", args.dt_bias, args.q.dtype, p->heads_v, "[HV]", &p->dt_bias);
}

Status check_options(const Args& args, GatedDeltaProblem* p) {
  if (std::isinf(args.scale)) return invalid("scale", "a finite number, or NaN for the default", "infinity");
  if (args.beta_scale != 1 && args.beta_scale != 2) {
    return invalid("beta_scale", "1 or 2", fmt::format("{}", args.beta_scale));
  }
  if (args.beta_scale != 1 && present(args.beta)) {
    return invalid("beta_scale", "1 beside beta (it scales sigmoid(b) alone)", fmt::format("{}", args.beta_scale));
  }
  if (!std::isfinite(args.decay_threshold) || args.decay_threshold >= 0) {
    return invalid("decay_threshold", "a finite negative logarithm", fmt::format("{}", args.decay_threshold));
  }
  if (args.checkpoint_every < 0 || args.checkpoint_every % 64 != 0) {
    return invalid("checkpoint_every", "0 or a multiple of 64", std::to_string(args.checkpoint_every));
  }
  if (args.chunk != 0 && args.chunk != 32 && args.chunk != 64) {
    return invalid("chunk", "0 (the plan's), 32 or 64", std::to_string(args.chunk));
  }
  if (args.qk_l2norm != 0 && args.qk_l2norm != 1) return invalid("qk_l2norm", "0 or 1", std::to_string(args.qk_l2norm));
  const auto layout = static_cast<int32_t>(args.state_layout);
  if (layout != FLASHDELTA_STATE_KV && layout != FLASHDELTA_STATE_VK) {
    return invalid("state_layout", "0 (kv) or 1 (vk)", std::to_string(layout));
  }
  const auto parallel = static_cast<int32_t>(args.context_parallel);
  if (parallel < FLASHDELTA_CONTEXT_PARALLEL_OFF || parallel > FLASHDELTA_CONTEXT_PARALLEL_DECAY_START) {
    return invalid("context_parallel", "0 (off), 1 (exact) or 2 (decay_start)", std::to_string(parallel));
  }
  p->scale = std::isnan(args.scale) ? 1.0 / std::sqrt(static_cast<double>(p->dim_k)) : args.scale;
  p->beta_scale = args.beta_scale;
  p->decay_threshold = args.decay_threshold;
  p->checkpoint_every = args.checkpoint_every;
  p->chunk = args.chunk;
  p->l2norm = args.qk_l2norm != 0;
  p->value_major = layout == FLASHDELTA_STATE_VK;
  p->context_parallel = args.context_parallel;
  return {};
}

// slots -1: any number (a pool).
Status read_states(std::string_view name, const flashdelta_tensor& t, const GatedDeltaProblem& p, int64_t slots,
                   Access access, States* out) {
  if (!present(t)) return {};
  FLASHDELTA_RETURN_IF_ERROR(check_tensor(name, t, {FLASHDELTA_FP32, FLASHDELTA_BF16}, {4}, access));
  FLASHDELTA_RETURN_IF_ERROR(p.value_major
                                 ? check_shape(name, t, {slots, p.heads_v, p.dim_v, p.dim_k}, "[slots, HV, V, K]")
                                 : check_shape(name, t, {slots, p.heads_v, p.dim_k, p.dim_v}, "[slots, HV, K, V]"));
  *out = {static_cast<char*>(t.data), t.dtype, t.shape[0], t.strides[0], t.strides[1], t.strides[2]};
  return {};
}

Status read_token_indices(const Args& args, GatedDeltaProblem* p) {
  if (present(args.token_state_indices)) {
    const flashdelta_tensor& t = args.token_state_indices;
    FLASHDELTA_RETURN_IF_ERROR(
        check_tensor("token_state_indices", t, {FLASHDELTA_INT32, FLASHDELTA_INT64}, {2}, Access::input));
    FLASHDELTA_RETURN_IF_ERROR(check_shape("token_state_indices", t, {p->sequences, -1}, "[N, max T]"));
    if (!present(args.final_state)) return invalid("final_state", "a pool for token_state_indices", "none");
    p->token_indices = {t.data, t.dtype, t.strides[0]};
    p->token_slots = t.shape[1];
  }
  FLASHDELTA_RETURN_IF_ERROR(
      check_ints("num_accepted_tokens", args.num_accepted_tokens, p->sequences, "[N]", &p->accepted_tokens));
  if (!p->accepted_tokens) return {};
  if (!p->token_indices) return invalid("token_state_indices", "slots for num_accepted_tokens", "none");
  if (!present(args.initial_state)) return invalid("initial_state", "a pool for num_accepted_tokens", "none");
  if (p->initial_indices) return invalid("initial_state_indices", "none beside num_accepted_tokens", "both");
  if (p->token_slots < 1 && p->sequences > 0) return invalid("token_state_indices", "at least 1 column", "0");
  return {};
}

Status read_state_tensors(const Args& args, GatedDeltaProblem* p) {
  const int64_t n = p->sequences;
  FLASHDELTA_RETURN_IF_ERROR(
      check_ints("initial_state_indices", args.initial_state_indices, n, "[N]", &p->initial_indices));
  FLASHDELTA_RETURN_IF_ERROR(check_ints("final_state_indices", args.final_state_indices, n, "[N]", &p->final_indices));
  if (p->initial_indices && !present(args.initial_state)) {
    return invalid("initial_state", "a pool for initial_state_indices", "none");
  }
  if (p->final_indices && !present(args.final_state)) {
    return invalid("final_state", "a pool for final_state_indices", "none");
  }
  FLASHDELTA_RETURN_IF_ERROR(read_token_indices(args, p));
  const bool initial_pool = p->initial_indices || p->accepted_tokens;
  const bool final_pool = p->final_indices || p->initial_indices || p->token_indices;
  FLASHDELTA_RETURN_IF_ERROR(
      read_states("initial_state", args.initial_state, *p, initial_pool ? -1 : n, Access::input, &p->initial));
  FLASHDELTA_RETURN_IF_ERROR(
      read_states("final_state", args.final_state, *p, final_pool ? -1 : n, Access::output, &p->final));
  if (p->initial && p->final && p->initial.dtype != p->final.dtype) {
    return invalid("final_state", fmt::format("initial_state's dtype {}", dtype_name(p->initial.dtype)),
                   dtype_name(p->final.dtype));
  }
  if (p->initial && p->final && p->initial.data == p->final.data && p->initial.data != nullptr &&
      (p->initial.slot_stride != p->final.slot_stride || p->initial.head_stride != p->final.head_stride ||
       p->initial.row_stride != p->final.row_stride)) {
    return invalid("final_state", "initial_state's strides, or memory of its own", "the same memory, other strides");
  }
  FLASHDELTA_RETURN_IF_ERROR(read_states("checkpoints", args.checkpoints, *p, -1, Access::output, &p->checkpoints));
  if (p->checkpoints && p->checkpoint_every == 0) {
    return invalid("checkpoint_every", "a multiple of 64 beside checkpoints", "0");
  }
  if (!p->checkpoints && p->checkpoint_every != 0) {
    return invalid("checkpoints", "a tensor beside checkpoint_every", "none");
  }
  const flashdelta_dtype state_dtype = p->initial ? p->initial.dtype : p->final.dtype;
  if (p->checkpoints && state_dtype != FLASHDELTA_NONE && p->checkpoints.dtype != state_dtype) {
    return invalid("checkpoints", fmt::format("the states' dtype {}", dtype_name(state_dtype)),
                   dtype_name(p->checkpoints.dtype));
  }
  return {};
}

// A bound on a packed sequence's length, by what the caller says of lengths on the host.
int64_t longest_known(const Args& args, const GatedDeltaProblem& p) {
  const int64_t most = args.max_seqlen == 0 ? p.tokens : std::min(args.max_seqlen, p.tokens);
  if (args.host_cu_seqlens == nullptr) return most;
  int64_t longest = 0;
  for (int64_t n = 0; n < p.sequences; n++) {
    const int64_t begin = args.host_cu_seqlens[n], end = args.host_cu_seqlens[n + 1];
    if (end > begin) longest = std::max(longest, begin < 0 ? most : end - begin);
  }
  return std::min(longest, most);
}

Status read_output(const Args& args, GatedDeltaProblem* p) {
  FLASHDELTA_RETURN_IF_ERROR(check_tensor("o", args.o, {args.q.dtype, FLASHDELTA_FP32}, {4}, Access::output));
  FLASHDELTA_RETURN_IF_ERROR(
      check_shape("o", args.o, {args.q.shape[0], p->tokens, p->heads_v, p->dim_v}, "[B, T, HV, V]"));
  p->o = rows_of(args.o);
  for (const auto& [name, t] : {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}}) {
    if (args.o.data != nullptr && args.o.data == t->data) {
      return invalid("o", "memory of its own", fmt::format("{}'s", name));
    }
  }
  if (args.max_seqlen < 0) return invalid("max_seqlen", "0 (unknown) or above", std::to_string(args.max_seqlen));
  p->max_tokens = p->cu_seqlens ? longest_known(args, *p) : p->tokens;
  return {};
}

// Slots written: none twice, and in place none that another sequence starts from.
class SlotUse {
 public:
  SlotUse(const GatedDeltaProblem& p) : p_(p) {}

  Status write(const std::string& name, int64_t slot, int64_t sequence) {
    if (slot >= p_.final.slots) {
      return invalid(name, fmt::format("under final_state's {} slots", p_.final.slots), std::to_string(slot));
    }
    const auto [it, fresh] = writer_.emplace(slot, name);
    if (!fresh) return invalid(name, fmt::format("a slot that {} does not write", it->second), std::to_string(slot));
    sequence_.emplace(slot, sequence);
    return {};
  }

  Status read(const std::string& name, int64_t slot, int64_t sequence) const {
    if (slot >= p_.initial.slots) {
      return invalid(name, fmt::format("under initial_state's {} slots", p_.initial.slots), std::to_string(slot));
    }
    const auto it = sequence_.find(slot);
    if (p_.initial.data != p_.final.data || it == sequence_.end() || it->second == sequence) return {};
    return invalid(name, fmt::format("a slot that sequence {} does not write in place", it->second),
                   std::to_string(slot));
  }

 private:
  const GatedDeltaProblem& p_;
  std::unordered_map<int64_t, std::string> writer_;
  std::unordered_map<int64_t, int64_t> sequence_;
};

Status check_slots(const GatedDeltaProblem& p) {
  if (!p.initial_indices && !p.final_indices && !p.token_indices) return {};
  SlotUse use(p);
  for (int64_t n = 0; n < p.sequences; n++) {
    if (p.skipped(n)) continue;
    const int64_t slot = p.final_slot(n);
    const char* name = p.final_indices ? "final_state_indices" : "initial_state_indices";
    if (slot >= 0) FLASHDELTA_RETURN_IF_ERROR(use.write(fmt::format("{}[{}]", name, n), slot, n));
    if (!p.token_indices) continue;
    const int64_t length = p.sequence(n).length;
    if (length > p.token_slots) {
      return invalid("token_state_indices", fmt::format("a column for each of sequence {}'s {} tokens", n, length),
                     fmt::format("{} columns", p.token_slots));
    }
    for (int64_t t = 0; t < length; t++) {
      const int64_t token_slot = p.token_indices.at(n, t);
      if (token_slot < 0) continue;
      FLASHDELTA_RETURN_IF_ERROR(use.write(fmt::format("token_state_indices[{}][{}]", n, t), token_slot, n));
    }
  }
  for (int64_t n = 0; n < p.sequences; n++) {
    if (p.skipped(n) || !p.initial) continue;
    const char* name = p.accepted_tokens   ? "token_state_indices"
                       : p.initial_indices ? "initial_state_indices"
                                           : "initial_state";
    FLASHDELTA_RETURN_IF_ERROR(use.read(fmt::format("{}[{}]", name, n), p.initial_slot(n), n));
  }
  return {};
}

}  // namespace

Status make_problem(const Args& args, GatedDeltaProblem* problem) {
  GatedDeltaProblem p;
  if (args.struct_size != sizeof(Args)) {
    return invalid("struct_size", std::to_string(sizeof(Args)), std::to_string(args.struct_size));
  }
  FLASHDELTA_RETURN_IF_ERROR(read_inputs(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(read_gates(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(check_options(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(read_state_tensors(args, &p));
  FLASHDELTA_RETURN_IF_ERROR(read_output(args, &p));
  *problem = p;
  return {};
}

Status check_contents(const Args& args, const GatedDeltaProblem& p) {
  if (p.cu_seqlens) {
    FLASHDELTA_RETURN_IF_ERROR(
        check_offsets("cu_seqlens", p.sequences + 1, p.tokens, [&](int64_t i) { return p.cu_seqlens[i]; }));
  }
  for (int64_t n = 0; n < p.sequences; n++) {
    if (p.sequence(n).length > p.max_tokens) {
      return invalid("max_seqlen", fmt::format("at least sequence {}'s length {}", n, p.sequence(n).length),
                     std::to_string(p.max_tokens));
    }
  }
  if (p.checkpoints && p.checkpoint_row(p.sequences) > p.checkpoints.slots) {
    return invalid(
        "checkpoints",
        fmt::format("{} rows, one each {} tokens of a sequence", p.checkpoint_row(p.sequences), p.checkpoint_every),
        std::to_string(p.checkpoints.slots));
  }
  FLASHDELTA_RETURN_IF_ERROR(check_slots(p));
  return check_host_lengths(args, p);
}

Status check_host_lengths(const Args& args, const GatedDeltaProblem& p) {
  if (args.host_cu_seqlens == nullptr) return {};
  if (!p.cu_seqlens) return invalid("host_cu_seqlens", "null where cu_seqlens is absent", "a pointer");
  return check_offsets("host_cu_seqlens", p.sequences + 1, p.tokens,
                       [&](int64_t i) { return args.host_cu_seqlens[i]; });
}

}  // namespace flashdelta
