// movmatrix: transposes one 8x8 matrix of 16-bit numbers that a warp holds as a fragment, register to register.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
  return d;
}

}  // namespace flashdelta::ptx
