// Exact context parallelism where states do not fade: a sequence's chunks in parts of p.part_chunks, side by side. Over
// a part the state goes through an affine map, S_end = M S_start + H, so that
//
//   summary.cuh   runs first parts and makes H and M of all others but the last,
//   scan.cuh      composes from them the state before each part,
//   forward.cuh   runs the other parts from these states.
//
// Where the chunks at a part's end leave less than e^segment_threshold of any state, H is made of these alone and M is
// zero. Every block of a head decides this from the same numbers, so all agree.
//
// Parts have numbers as chunks have (forward_params.h). The states before them lie more densely, as a sequence of one
// part has none: one of more than X tokens, X of a part, has at least as many multiples of X / 2 in it as parts.
#pragma once

#include "cuda/gated_delta/work.cuh"

namespace flashdelta::gated_delta {

struct Part {
  int n;
  int index, count;    // of the sequence's; a sequence without tokens has one part too
  int64_t first_slot;  // the sequence's, where it has more than one part

  __device__ __forceinline__ bool last() const { return index + 1 >= count; }
  __device__ __forceinline__ int64_t slot() const { return first_slot + index; }
};

__device__ __forceinline__ int64_t part_tokens(const GatedDeltaForwardParams& p) {
  return int64_t{p.part_chunks} * gated_delta_chunk;
}

// Sequence n as its first part.
__device__ __forceinline__ Part first_part(const GatedDeltaForwardParams& p, const Sequence& sequence, int n) {
  const int64_t tokens = part_tokens(p);
  const int count = max((sequence.chunks() + p.part_chunks - 1) / p.part_chunks, 1);
  return {n, 0, count, p.cu_seqlens.data == nullptr ? int64_t{n} * count : 2 * sequence.begin / tokens};
}

// Part `number` of all, whose index may be one that the sequence has not.
__device__ __forceinline__ Part part_at(const GatedDeltaForwardParams& p, int64_t number, int lane) {
  const int64_t tokens = part_tokens(p);
  const int n = sequence_of(p, number, tokens, lane);
  const Sequence sequence = sequence_at(p, n);
  Part part = first_part(p, sequence, n);
  const int64_t first = p.cu_seqlens.data == nullptr ? int64_t{n} * part.count : sequence.begin / tokens + n;
  part.index = static_cast<int>(number - first);
  return part;
}

}  // namespace flashdelta::gated_delta
