// The sequential kernel where blocks are many: most have 128 value columns, 32 a warp, and read every operand for twice
// as many products. A wide block's chunk takes longer, so that
//
//   the last round of the card's multiprocessors has narrow blocks, where that is faster,
//   a range that goes on over the next part, whose own block has then nothing to do, is done by both, half of the
//   columns each: sequences whose state does not fade have most chunks one after another.
#pragma once

#include "cuda/gated_delta/forward.cuh"

namespace flashdelta::gated_delta {

template <GatedDeltaWideConfig C>
__device__ __forceinline__ void wide(const GatedDeltaForwardParams& params) {
  static_assert(C.wide.wide() && C.wide.block_v == 2 * C.narrow.block_v && C.wide.threads() == C.narrow.threads());
  extern __shared__ __align__(1024) char shared[];
  wait_for_records(params);
  const int beyond = blockIdx.x - params.wide_units * params.wide_value_blocks;  // the wide blocks
  const int blocks = beyond < 0 ? params.wide_value_blocks : params.value_blocks;
  const int block = beyond < 0 ? blockIdx.x : beyond;
  const int unit = (beyond < 0 ? 0 : params.wide_units) + block / blocks;
  const int heads_v = params.heads_k * params.group, head = unit % heads_v, lane = threadIdx.x & 31;
  const int n = unit / heads_v % params.sequences, segment = unit / heads_v / params.sequences;
  const Sequence sequence = sequence_at(params, n);
  const auto goes_on = [&](const ChunkRange& range, int s) {
    return range.end > segment_begin(params, sequence.chunks(), s + 1);
  };
  ChunkRange range = range_of(params, sequence, head, segment, lane);
  int value_block = block % blocks;
  bool narrow = beyond >= 0;
  if (!narrow && params.segments > 1) {
    if (range.empty()) {
      range = range_of(params, sequence, head, segment - 1, lane);
      if (range.empty() || !goes_on(range, segment - 1)) return;
      narrow = true, value_block = 2 * value_block + 1;
    } else if (goes_on(range, segment)) {
      narrow = true, value_block = 2 * value_block;
    }
    if (narrow && value_block >= params.value_blocks) return;
  }
  if (range.empty()) return;
  if (narrow) {
    run_range<C.narrow, false>(shared, params, sequence, range, n, head, value_block);
  } else {
    run_range<C.wide, false>(shared, params, sequence, range, n, head, value_block);
  }
}

}  // namespace flashdelta::gated_delta
