// Context parallelism within the card: a sequence's chunks in up to p.segments equal parts, which blocks run side by
// side. A part needs the state before it. It may start from nothing some chunks early, where these leave less than
// e^segment_threshold of any state: then its first chunks only make a state. Where the chunks of half a part do not
// reach that, the part before goes on instead. Every block of a head decides this from the same numbers, so all agree.
//
// Where states are composed (parts.cuh) parts are as many as the sequence is long, and start from the states before
// them.
//
// At the threshold of `exact` what is left is below fp32's smallest number: the same state comes out.
#pragma once

#include "cuda/gated_delta/parts.cuh"
#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"

namespace flashdelta::gated_delta {

// Chunks [first, end) of a sequence; those from `emit` on give output.
struct ChunkRange {
  int first, emit, end;
  bool starts;   // from the initial state; a range that ends where its sequence does leaves the final one
  int64_t from;  // the slot of the composed state to start from (parts.cuh), or -1: the initial state, or nothing

  __device__ __forceinline__ bool empty() const { return !starts && first >= end; }
};

// Where a part that gives output from chunk `emit` on may start, or -1. By the whole warp, 32 chunks a round.
__device__ __forceinline__ int early_start(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                           int emit, int most, int lane) {
  const ChunkRecord* records = reinterpret_cast<const ChunkRecord*>(p.records);
  float left = 0;  // log of what the chunks so far leave
  for (int distance = 0; distance < most; distance += 32) {
    const int back = distance + lane, chunk = emit - 1 - back;
    float sum = back < most ? records[(sequence.first_chunk + chunk) * (p.heads_k * p.group) + head].log_bound : 0.0f;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = ptx::shfl_up(sum, step);
      if (lane >= step) sum += before;
    }
    const uint32_t enough = ptx::vote_ballot(back < most && left + sum < p.segment_threshold);
    if (enough != 0) return emit - distance - __ffs(static_cast<int>(enough));
    left += __int_as_float(ptx::shfl_idx(__float_as_int(sum), 31));
  }
  return -1;
}

__device__ __forceinline__ int segment_begin(const GatedDeltaForwardParams& p, int chunks, int segment) {
  return static_cast<int>(int64_t{chunks} * segment / p.segments);
}

__device__ __forceinline__ ChunkRange range_of(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                               int segment, int lane) {
  const int count = sequence.chunks();
  ChunkRange range{0, 0, count, segment == 0, -1};
  if (p.segments == 1) return range;
  const auto begin = [&](int s) { return segment_begin(p, count, s); };
  const int most = count / p.segments / 2;
  if (segment > 0) {
    range.emit = begin(segment);
    range.first = early_start(p, sequence, head, range.emit, most, lane);
    if (range.first < 0) return {0, 0, 0, false, -1};
  }
  for (int next = segment + 1; next < p.segments; next++) {
    if (early_start(p, sequence, head, begin(next), most, lane) < 0) continue;
    range.end = begin(next);
    break;
  }
  return range;
}

// The same of a part with a composed state before it.
__device__ __forceinline__ ChunkRange range_of(const GatedDeltaForwardParams& p, const Sequence& sequence,
                                               const Part& part) {
  if (part.index >= part.count) return {0, 0, 0, false, -1};
  const int begin = part.index * p.part_chunks;
  return {begin, begin, min(begin + p.part_chunks, sequence.chunks()), part.index == 0,
          part.index == 0 ? -1 : part.slot()};
}

}  // namespace flashdelta::gated_delta
