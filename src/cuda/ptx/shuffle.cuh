// Exchange between the lanes of a whole warp.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ uint32_t shfl_xor(uint32_t x, int mask) {
  uint32_t d;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(d) : "r"(x), "r"(mask));
  return d;
}

__device__ __forceinline__ float shfl_xor(float x, int mask) {
  float d;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(d) : "f"(x), "r"(mask));
  return d;
}

// Lane `source`'s x. From lane 0 it makes a number that is equal in the warp one that the compiler knows to be equal.
__device__ __forceinline__ int shfl_idx(int x, int source) {
  int d;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(d) : "r"(x), "r"(source));
  return d;
}

__device__ __forceinline__ bool vote_any(bool x) {
  int d;
  asm volatile(
      "{\n\t.reg .pred in, out;\n\tsetp.ne.s32 in, %1, 0;\n\tvote.sync.any.pred out, in, 0xffffffff;\n\t"
      "selp.s32 %0, 1, 0, out;\n\t}"
      : "=r"(d)
      : "r"(static_cast<int>(x)));
  return d != 0;
}

}  // namespace flashdelta::ptx
