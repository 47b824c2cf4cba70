// What a part does to the state before it (parts.cuh): the sequential kernel without Q, P and output, from nothing for
// H, from the identity and with V = 0 for M. A block owns a part, a value head and block_v columns, of H or of M.
//
// A sequence's first part needs no M: its H begins from the initial state, which is left in the workspace for the
// forward kernel, so that the call's final state may lie where the initial one does.
#pragma once

#include "cuda/gated_delta/forward.cuh"
#include "cuda/gated_delta/parts.cuh"

namespace flashdelta::gated_delta {

// The initial state's columns to the workspace, by the whole block. (To registers at once, 128 strided loads' addresses
// would leave too few for the loop.)
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void copy_initial(const GatedDeltaForwardParams& p, const Part& part, int head,
                                             int first_value) {
  const int64_t slot = slots_of(p, part.n).initial;
  const GatedDeltaStates& states = p.initial;
  const int64_t base = slot < 0 ? 0 : state_offset(states, slot, head);
  const bool values_near = states.value_stride < states.key_stride;  // neighbours in memory to neighbouring threads
  float* to = p.starts + ((part.slot() * (p.heads_k * p.group) + head) * p.columns + first_value) * C.dim_k;
  constexpr int loads = 32;
  for (int first = threadIdx.x; first < C.block_v * C.dim_k; first += loads * C.threads()) {
    float x[loads];
#pragma unroll
    for (int i = 0; i < loads; i++) {
      const int element = first + i * C.threads();
      const int value = values_near ? element % C.block_v : element / C.dim_k;
      const int key = values_near ? element / C.block_v : element % C.dim_k;
      const bool there = slot >= 0 && key < p.dim_k && first_value + value < p.dim_v;
      const int64_t offset = base + key * states.key_stride + (first_value + value) * states.value_stride;
      x[i] = there ? load_element(states, p.state_is_bf16, offset) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < loads; i++) {
      const int element = first + i * C.threads();
      const int value = values_near ? element % C.block_v : element / C.dim_k;
      const int key = values_near ? element / C.block_v : element % C.dim_k;
      if (element < C.block_v * C.dim_k) ptx::store_global_32(to + value * C.dim_k + key, x[i]);
    }
  }
}

template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void summary(const GatedDeltaForwardParams& params) {
  static_assert(C.valid() && C.summary);
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(128) char shared[];
  ForwardStorage<C>& storage = *reinterpret_cast<ForwardStorage<C>*>(shared);
  const int heads_v = params.heads_k * params.group, lane = threadIdx.x & 31;
  const int block = blockIdx.x % params.summary_blocks;
  const int unit = blockIdx.x / params.summary_blocks, head = unit % heads_v;
  const Part part = part_at(params, unit / heads_v, lane);
  if (part.last() || slots_of(params, part.n).skipped) return;
  const Sequence sequence = sequence_at(params, part.n);
  const int begin = part.index * params.part_chunks, end = begin + params.part_chunks;
  const int early = early_start(params, sequence, head, end, params.part_chunks, lane);
  const bool transition = block >= params.summary_blocks_v, fades = early >= 0;
  if (transition && part.index == 0) return;
  ChunkRange range{fades ? early : begin, end, end, false, false, -1};
  if (transition && fades) range.first = end;
  if (part.index == 0 && !fades) range.start = part.slot();
  const int value_block = transition ? block - params.summary_blocks_v : block;
  if (part.index == 0) copy_initial<C>(params, part, head, value_block * C.block_v);
  init_barriers<C>(storage);
  if (threadIdx.x / 32 == C.warps) {
    copy_chunks<C>(storage, params, sequence, range, part.n, head, value_block, transition);
  } else {
    Forward<C>(storage, params, sequence, range, part.n, head, value_block)
        .summarize(part.slot(), transition);
  }
}

}  // namespace flashdelta::gated_delta
