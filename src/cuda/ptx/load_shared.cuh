// A float from shared memory.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void load_shared_32(float& x, uint32_t address) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
}

}  // namespace flashdelta::ptx
