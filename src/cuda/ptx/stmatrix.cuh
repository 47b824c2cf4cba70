// stmatrix: ldmatrix's inverse, from SM90. Lane l gives the address of row l % 8 of matrix l / 8.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool has_stmatrix = true;
#else
inline constexpr bool has_stmatrix = false;
#endif

// Stores the transposes of four 8x8 matrices. Call it where has_stmatrix.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

}  // namespace flashdelta::ptx
