// mma.sync.m16n8k16: D[16,8] += A[16,16] B[16,8], 16-bit inputs, fp32 accumulators, one warp.
//
// Lane l, with row = l / 4 and column = 2 (l % 4), holds pairs of neighbouring numbers:
//   a: (row, column), (row + 8, column), (row, column + 8), (row + 8, column + 8)
//   b: (k = column, n = row), (k = column + 8, n = row)
//   d: (row, column), (row, column + 1), (row + 8, column), (row + 8, column + 1)
#pragma once

#include "cuda/element.hpp"

namespace flashdelta::ptx {

template <Element E>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (E == Element::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace flashdelta::ptx
