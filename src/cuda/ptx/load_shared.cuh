// Words from shared memory.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void load_shared_32(float& x, uint32_t address) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_shared_32(int32_t& x, uint32_t address) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_shared_64(int64_t& x, uint32_t address) {
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(address) : "memory");
}

// The first of these if `there`; else x stays as it is.
__device__ __forceinline__ void load_shared_32_if(bool there, float& x, uint32_t address) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %2, 0;\n\t@p ld.shared.b32 %0, [%1];\n\t}"
               : "+f"(x)
               : "r"(address), "r"(static_cast<uint32_t>(there))
               : "memory");
}

}  // namespace flashdelta::ptx
