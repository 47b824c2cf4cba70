// First parts, and what each part between a sequence's first and last does to the state before it (parts.cuh). A block
// owns a part, a value head and some columns:
//
//   of a first part      value columns, all that the forward kernel does; the state after it needs no scan,
//   of H of a part       value columns: the sequential kernel without Q, P and output, from nothing,
//   of M of a part       columns of M: the same from the identity, with V = 0.
//
// So the initial state has been read before the forward kernel writes the final one, which may lie in its place.
#pragma once

#include "cuda/gated_delta/forward.cuh"

namespace flashdelta::gated_delta {

// block: of params.summary_blocks.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void summarize(char* shared, const GatedDeltaForwardParams& params, const Part& part,
                                          int head, int block) {
  static_assert(C.valid() && C.summary);
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  ForwardStorage<C>& storage = *reinterpret_cast<ForwardStorage<C>*>(shared);
  const Sequence sequence = sequence_at(params, part.n);
  const int begin = part.index * params.part_chunks, end = begin + params.part_chunks;
  const int early = early_start(params, sequence, head, end, params.part_chunks, threadIdx.x & 31);
  const bool transition = block >= params.summary_blocks_v;
  const int first = early < 0 ? begin : transition ? end : early;
  const ChunkRange range{first, end, end, false, -1};
  const int value_block = transition ? block - params.summary_blocks_v : block;
  init_barriers<C>(storage);
  if (threadIdx.x / 32 == C.warps) {
    copy_chunks<C>(storage, params, sequence, range, part.n, head, value_block, transition);
  } else {
    Forward<C>(ptx::shared_address(&storage), threadIdx.x & 31, params, sequence, range, head, value_block)
        .summarize(part.slot(), transition);
  }
}

template <GatedDeltaSummaryConfig C>
__device__ __forceinline__ void summary(const GatedDeltaForwardParams& params) {
  static_assert(C.first.threads() == C.part.threads());
  extern __shared__ __align__(1024) char shared[];
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_before();
  const int heads_v = params.heads_k * params.group, blocks = max(params.value_blocks, params.summary_blocks);
  const int block = blockIdx.x % blocks, unit = blockIdx.x / blocks, head = unit % heads_v;
  const Part part = part_at(params, unit / heads_v, threadIdx.x & 31);
  if (part.index > 0) {
    if (part.last() || block >= params.summary_blocks || slots_of(params, part.n).skipped) return;
    summarize<C.part>(shared, params, part, head, block);
    return;
  }
  if (block >= params.value_blocks) return;
  const Sequence sequence = sequence_at(params, part.n);
  run_range<C.first, true>(shared, params, sequence, range_of(params, sequence, part), part.n, head, block);
}

}  // namespace flashdelta::gated_delta
