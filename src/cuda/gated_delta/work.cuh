// Where a block's share of the work lies: tokens of a sequence, chunks, state slots. Lengths and indices come from the
// device unchecked, so each is held inside its tensor.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/forward_config.hpp"
#include "cuda/gated_delta/forward_params.h"
#include "cuda/ptx/shuffle.cuh"
#include "cuda/ptx/shuffle_up.cuh"

namespace flashdelta::gated_delta {

__device__ __forceinline__ int64_t load_int(const GatedDeltaInts& ints, int64_t i) {
  return ints.is_64 ? static_cast<const int64_t*>(ints.data)[i] : static_cast<const int32_t*>(ints.data)[i];
}

__device__ __forceinline__ int64_t clamped(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

struct Sequence {
  int64_t batch, begin;  // of tensors: dense sequences are batch rows, packed ones begin at a token
  int64_t first_chunk;
  int length;

  __device__ __forceinline__ int chunks() const { return (length + gated_delta_chunk - 1) / gated_delta_chunk; }

  // Elements from a tensor's start to token `token` of this sequence and a head.
  __device__ __forceinline__ int64_t offset(const GatedDeltaRows& rows, int64_t token, int head) const {
    return batch * rows.batch_stride + (begin + token) * rows.token_stride + head * rows.head_stride;
  }
};

__device__ __forceinline__ int64_t packed_begin(const GatedDeltaForwardParams& p, int64_t n) {
  return clamped(load_int(p.cu_seqlens, n), 0, p.tokens);
}

__device__ __forceinline__ Sequence sequence_at(const GatedDeltaForwardParams& p, int n) {
  if (p.cu_seqlens.data == nullptr) {
    const int64_t chunks = (p.tokens + gated_delta_chunk - 1) / gated_delta_chunk;
    return {n, 0, n * chunks, static_cast<int>(p.tokens)};
  }
  const int64_t begin = packed_begin(p, n);
  const int64_t end = clamped(load_int(p.cu_seqlens, n + 1), begin, p.tokens);
  return {0, begin, begin / gated_delta_chunk + n, static_cast<int>(end - begin)};
}

// Numbers for chunks of a head, of the tokens that sequences have; the host has seen that they fit 32 bits.
__device__ __forceinline__ int chunk_slots(const GatedDeltaForwardParams& p) {
  if (p.cu_seqlens.data != nullptr) {
    return static_cast<int>(packed_begin(p, p.sequences)) / gated_delta_chunk + p.sequences;
  }
  return p.sequences * ((static_cast<int>(p.tokens) + gated_delta_chunk - 1) / gated_delta_chunk);
}

// The sequence that owns a number, where each has one for `unit` tokens or what is left of them: chunks, or parts; and
// own - 1 besides. By the whole warp: each round asks at 32 places.
__device__ __forceinline__ int sequence_of(const GatedDeltaForwardParams& p, int64_t number, int64_t unit, int lane,
                                           int own = 1) {
  if (p.cu_seqlens.data == nullptr) return static_cast<int>(number / ((p.tokens + unit - 1) / unit + own - 1));
  int low = 0, high = p.sequences;  // in [low, high)
  while (high - low > 1) {
    const int step = (high - low + 31) / 32, probe = low + lane * step;
    const bool starts_before = probe < high && packed_begin(p, probe) / unit + probe * own <= number;
    const uint32_t mask = ptx::vote_ballot(starts_before) | 1;
    low += (31 - __clz(static_cast<int>(mask))) * step;
    high = min(high, low + step);
  }
  return low;
}

// Slot of a state tensor; -1: none.
struct Slots {
  int64_t initial, final;
  bool skipped;  // o = 0, no state read or written
};

__device__ __forceinline__ int64_t slot_in(const GatedDeltaStates& states, const GatedDeltaInts& indices, int n) {
  const int64_t slot = indices.data == nullptr ? n : load_int(indices, n);
  return slot < 0 ? -1 : clamped(slot, -1, states.slots - 1);
}

__device__ __forceinline__ Slots slots_of(const GatedDeltaForwardParams& p, int n) {
  const GatedDeltaInts& final_indices = p.final_indices.data != nullptr ? p.final_indices : p.initial_indices;
  Slots slots{-1, -1, false};
  if (p.initial.data != nullptr) slots.initial = slot_in(p.initial, p.initial_indices, n);
  if (p.final.data != nullptr) slots.final = slot_in(p.final, final_indices, n);
  slots.skipped = (p.initial_indices.data != nullptr && load_int(p.initial_indices, n) < 0) ||
                  (p.final_indices.data != nullptr && load_int(p.final_indices, n) < 0);
  return slots;
}

// The row of `checkpoints` where sequence n's begin: those before it hold length / every each.
__device__ __forceinline__ int first_checkpoint(const GatedDeltaForwardParams& p, int n, int lane) {
  if (p.cu_seqlens.data == nullptr) return n * (static_cast<int>(p.tokens) / p.checkpoint_every);
  int count = 0;  // a sequence's tokens fit 31 bits, and so do all sequences' checkpoints
  for (int i = lane; i < n; i += 32) count += sequence_at(p, i).length / p.checkpoint_every;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    count += static_cast<int>(ptx::shfl_xor(static_cast<uint32_t>(count), mask));
  }
  return count;
}

}  // namespace flashdelta::gated_delta
