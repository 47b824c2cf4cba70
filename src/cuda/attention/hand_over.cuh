// What a warp found over its keys, o (not yet divided), maxima and sums of 16 rows, to another warp that has other keys
// of the same rows, through shared memory.
#pragma once

#include "cuda/attention/softmax.cuh"
#include "cuda/ptx/memory.cuh"

namespace flashdelta::attention {

constexpr int hand_over_bytes(int head_dim_v) { return (head_dim_v / 8 + 1) * 512; }

__device__ __forceinline__ void store_floats(uint32_t address, const float (&x)[4]) {
  const uint32_t words[4] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                             __float_as_uint(x[3])};
  ptx::store_shared_128(address, words);
}

__device__ __forceinline__ void load_floats(float (&x)[4], uint32_t address) {
  uint32_t words[4];
  ptx::load_shared_128(words, address);
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = __uint_as_float(words[i]);
}

template <int N>
__device__ __forceinline__ void hand_over(const tile::Accumulator<1, N>& o, const OnlineSoftmax<1>& softmax,
                                          uint32_t address, int lane) {
#pragma unroll
  for (int n = 0; n < N; n++) store_floats(address + lane * 16 + n * 512, o.x[0][n]);
  float state[4];
  softmax.save(state);
  store_floats(address + lane * 16 + N * 512, state);
}

// After a barrier.
template <int N>
__device__ __forceinline__ void take_over(tile::Accumulator<1, N>& o, OnlineSoftmax<1>& softmax, uint32_t address,
                                          int lane) {
  float x[4], keep[2], take[2];
  load_floats(x, address + lane * 16 + N * 512);
  softmax.merge(x, keep, take);
#pragma unroll
  for (int n = 0; n < N; n++) {
    load_floats(x, address + lane * 16 + n * 512);
#pragma unroll
    for (int e = 0; e < 4; e++) o.x[0][n][e] = fmaf(take[e >> 1], x[e], keep[e >> 1] * o.x[0][n][e]);
  }
}

}  // namespace flashdelta::attention
