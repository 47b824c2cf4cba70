// A quad: the four lanes that hold one row of an accumulator.
#pragma once

#include "cuda/ptx/shuffle.cuh"

namespace flashdelta::tile {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, ptx::shfl_xor(x, 1));
  return fmaxf(x, ptx::shfl_xor(x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += ptx::shfl_xor(x, 1);
  return x + ptx::shfl_xor(x, 2);
}

// Word i of lane j becomes word j of lane i: 2x2 blocks within, then the blocks themselves. It turns the four column
// blocks of a row, 4 bytes a lane each, into 16 neighbouring bytes a lane.
__device__ __forceinline__ void quad_transpose(uint32_t (&x)[4], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = ptx::shfl_xor(odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? got : x[i];
    x[i + 1] = odd ? x[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t got = ptx::shfl_xor(upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? got : x[i];
    x[i + 2] = upper ? x[i + 2] : got;
  }
}

}  // namespace flashdelta::tile
