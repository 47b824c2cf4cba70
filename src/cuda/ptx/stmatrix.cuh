// stmatrix: ldmatrix's inverse. SM90 and up: a profile that lacks it must not name it, so the template refuses.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

template <bool ProfileHasStmatrix>
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&x)[4]) {
  static_assert(ProfileHasStmatrix, "stmatrix needs SM90 or later");
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

}  // namespace flashdelta::ptx
