// Loads of one and two floats from shared memory.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void load_shared_32(float& x, uint32_t address) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_shared_64(float& x, float& y, uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}

}  // namespace flashdelta::ptx
