// A float to shared memory.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void store_shared_32(uint32_t address, float x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

}  // namespace flashdelta::ptx
