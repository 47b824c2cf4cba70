// A problem as the kernels take it.
#include "device/gated_delta_forward.hpp"

namespace flashdelta {
namespace {

GatedDeltaRows kernel_rows(const Rows& rows) {
  return {rows.data, rows.outer_stride, rows.token_stride, rows.head_stride, rows.dtype == FLASHDELTA_FP32, 0};
}

GatedDeltaStates kernel_states(const States& states, bool value_major) {
  return {states.data,
          states.slots,
          states.slot_stride,
          states.head_stride,
          value_major ? 1 : states.row_stride,
          value_major ? states.row_stride : 1};
}

GatedDeltaInts kernel_ints(const Ints& ints) { return {ints.data, ints.row_stride, ints.dtype == FLASHDELTA_INT64, 0}; }

GatedDeltaForwardParams call_params(const GatedDeltaProblem& p, int block_v, void* workspace) {
  GatedDeltaForwardParams out{};
  out.q = kernel_rows(p.q);
  out.k = kernel_rows(p.k);
  out.v = kernel_rows(p.v);
  out.o = kernel_rows(p.o);
  out.gate = kernel_rows(p.g ? p.g : p.a);
  out.beta = kernel_rows(p.beta ? p.beta : p.b);
  out.A_log = p.A_log.data;
  out.dt_bias = p.dt_bias.data;
  out.A_log_is_fp32 = p.A_log.dtype == FLASHDELTA_FP32;
  out.dt_bias_is_fp32 = p.dt_bias.dtype == FLASHDELTA_FP32;
  out.initial = kernel_states(p.initial, p.value_major);
  out.final = kernel_states(p.final, p.value_major);
  out.checkpoints = kernel_states(p.checkpoints, p.value_major);
  out.cu_seqlens = kernel_ints(p.cu_seqlens);
  out.initial_indices = kernel_ints(p.initial_indices);
  out.final_indices = kernel_ints(p.final_indices);
  out.records = static_cast<char*>(workspace);
  out.checkpoint_every = static_cast<int32_t>(std::min<int64_t>(p.checkpoint_every, int64_t{1} << 30));
  out.tokens = p.tokens;
  out.sequences = static_cast<int32_t>(p.sequences);
  out.heads_k = static_cast<int32_t>(p.heads_k);
  out.group = static_cast<int32_t>(p.group());
  out.dim_k = static_cast<int32_t>(p.dim_k);
  out.dim_v = static_cast<int32_t>(p.dim_v);
  out.value_blocks = static_cast<int32_t>((p.dim_v + block_v - 1) / block_v);
  const States& states = p.initial ? p.initial : p.final ? p.final : p.checkpoints;
  out.state_is_bf16 = states.dtype == FLASHDELTA_BF16;
  out.raw_beta = static_cast<bool>(p.b);
  out.l2norm = p.l2norm;
  out.beta_scale = static_cast<float>(p.beta_scale);
  out.scale = static_cast<float>(p.scale);
  return out;
}

// Whether four elements that begin at a multiple of four are one vector.
bool vectors_aligned(const States& states) {
  if (!states) return true;
  const int64_t strides = states.slot_stride | states.head_stride | states.row_stride;
  return reinterpret_cast<uintptr_t>(states.data) % (4 * dtype_size(states.dtype)) == 0 && strides % 4 == 0;
}

}  // namespace

GatedDeltaForwardParams gated_delta_forward_params(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels,
                                                   const GatedDeltaParts& parts, void* workspace) {
  GatedDeltaForwardParams out = call_params(p, kernels.forward->config.block_v, workspace);
  out.segments = parts.most;
  out.segment_threshold = static_cast<float>(gated_delta_segment_threshold(p));
  if (parts.wide()) {
    const int64_t block_v = kernels.wide->config.wide.block_v;
    out.wide_value_blocks = static_cast<int32_t>((p.dim_v + block_v - 1) / block_v);
    out.wide_units = static_cast<int32_t>(parts.wide_units);
    out.ranges = static_cast<int32_t>(parts.ranges);
    out.least_piece = static_cast<int32_t>(parts.least_piece);
    out.most_early = static_cast<int32_t>(parts.most_early);
  }
  const GatedDeltaWorkspace layout = gated_delta_workspace(p, kernels, parts);
  if (parts.ahead_blocks > 0) {
    out.teams = parts.ahead_blocks * kernels.ahead->config.teams;
    out.done = reinterpret_cast<int32_t*>(out.records + layout.records);
  }
  if (!parts.composed()) return out;
  const int block_v = kernels.summary->config.part.block_v;
  const auto blocks = [&](int64_t columns) { return static_cast<int32_t>((columns + block_v - 1) / block_v); };
  out.part_chunks = static_cast<int32_t>(parts.chunks);
  out.summary_blocks_v = blocks(p.dim_v);
  out.summary_blocks = out.summary_blocks_v + blocks(kernels.summary->config.part.dim_k);
  out.columns = out.summary_blocks_v * block_v;
  out.starts = reinterpret_cast<float*>(out.records + layout.records);
  out.transitions = reinterpret_cast<float*>(out.records + layout.records + layout.starts);
  return out;
}

void map_gated_delta_tensors(const Device& device, const ArchProfile& arch, const GatedDeltaProblem& p,
                             GatedDeltaForwardParams* params) {
  if (!arch.features.bulk_copy || p.tokens == 0 || p.sequences == 0) return;
  const auto map = [&](const Rows& rows, int64_t heads, int64_t features, EncodedTensorMap* out) {
    return device.map_tensor(token_boxes(rows.data, {features, heads, p.tokens, p.cu_seqlens ? 1 : p.sequences},
                                         {rows.head_stride, rows.token_stride, rows.outer_stride}, gated_delta_chunk),
                             out);
  };
  params->tensor_copies = map(p.k, p.heads_k, p.dim_k, &params->k_map) &&
                          map(p.q, p.heads_k, p.dim_k, &params->q_map) && map(p.v, p.heads_v, p.dim_v, &params->v_map);
  params->output_by_boxes = p.o.dtype != FLASHDELTA_FP32 && map(p.o, p.heads_v, p.dim_v, &params->o_map);
}

GatedDeltaRecurrentParams gated_delta_recurrent_params(const GatedDeltaProblem& p,
                                                       const GatedDeltaRecurrentConfig& config) {
  GatedDeltaRecurrentParams out{};
  out.call = call_params(p, config.block_v, nullptr);
  out.token_indices = kernel_ints(p.token_indices);
  out.accepted_tokens = kernel_ints(p.accepted_tokens);
  out.token_slots = p.token_slots;
  out.value_major = p.value_major;
  out.states_aligned = vectors_aligned(p.initial) && vectors_aligned(p.final) && vectors_aligned(p.checkpoints);
  return out;
}

}  // namespace flashdelta
