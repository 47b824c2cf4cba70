// Exchange along a whole warp: from a lower lane, and one bit of every lane.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

// Lane l - distance's x; lanes below `distance` keep their own.
__device__ __forceinline__ float shfl_up(float x, int distance) {
  float d;
  asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=f"(d) : "f"(x), "r"(distance));
  return d;
}

__device__ __forceinline__ uint32_t vote_ballot(bool x) {
  uint32_t d;
  asm volatile("{\n\t.reg .pred in;\n\tsetp.ne.s32 in, %1, 0;\n\tvote.sync.ballot.b32 %0, in, 0xffffffff;\n\t}"
               : "=r"(d)
               : "r"(static_cast<int>(x)));
  return d;
}

}  // namespace flashdelta::ptx
