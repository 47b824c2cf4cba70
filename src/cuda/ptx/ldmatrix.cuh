// ldmatrix: 8x8 matrices of 16-bit numbers from shared memory to fragments. Lane l gives the address of row l % 8 of
// matrix l / 8 (16 bytes, aligned); it receives the pair (row l / 4, columns 2 (l % 4) and + 1) of each matrix, of the
// transposed matrix with _trans. The inverse, stmatrix, is SM90's: see stmatrix.cuh.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}

}  // namespace flashdelta::ptx
