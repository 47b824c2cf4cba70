// Loads and stores that a kernel names itself, and shared-memory addresses.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

// The 32-bit address that ldmatrix, cp.async and the functions below take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void load_shared_128(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void store_shared_128(uint32_t address, const uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

__device__ __forceinline__ void store_global_32(void* pointer, float x) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(pointer), "f"(x) : "memory");
}

__device__ __forceinline__ void store_global_64(void* pointer, float x, float y) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(pointer), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_global_128(void* pointer, const uint32_t (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// Without a branch, so that the instructions around it may still change places.
__device__ __forceinline__ void store_global_128_if(bool condition, void* pointer, const uint32_t (&x)[4]) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\t@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t}" ::"l"(pointer),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(static_cast<int>(condition))
      : "memory");
}

}  // namespace flashdelta::ptx
