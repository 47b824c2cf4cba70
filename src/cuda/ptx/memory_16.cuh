// 16-bit stores that a kernel names itself.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

// The low half of x at `address`, the high half at `address_high`.
__device__ __forceinline__ void store_shared_16x2(uint32_t address, uint32_t address_high, uint32_t x) {
  asm volatile(
      "{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tst.shared.b16 [%0], low;\n\t"
      "st.shared.b16 [%1], high;\n\t}" ::"r"(address),
      "r"(address_high), "r"(x)
      : "memory");
}

__device__ __forceinline__ void store_global_16(void* pointer, uint32_t x) {
  asm volatile("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tst.global.b16 [%0], low;\n\t}" ::"l"(pointer),
               "r"(x)
               : "memory");
}

}  // namespace flashdelta::ptx
