// Vector primitives of the CPU backend, on fp32 rows in memory. Every call picks the best code that this processor has
// (portable, SSE4, AVX2, AVX-512): one indirect call, so give a call a row's work at least, better a tile's.
//
// Strides and leading dimensions count elements and may be anything that fits 64 bits. No function allocates, reads
// past the last element of a row, or needs aligned pointers; sizes of 0 are fine. Sums are made in an order that
// depends on the sizes and the processor alone, so equal inputs give equal bits.
#pragma once

#include <cstdint>

#include "flashdelta/flashdelta.h"

namespace flashdelta::cpu {

// The instruction set that the calls below use now, as "AVX2".
const char* simd_target();

// ---- Rows between memory and fp32. dtype is bf16, fp16 or fp32. ----

// dst[r][c] = src[r][c].
void load_rows(const void* src, flashdelta_dtype dtype, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
               int64_t dst_stride);

// dst[r][c] = src[r][c], rounded to nearest even; NaN stays NaN, what is too large becomes infinity.
void store_rows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, void* dst, flashdelta_dtype dtype,
                int64_t dst_stride);

// dst[c][r] = src[r][c]. src and dst do not overlap.
void transpose(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst, int64_t dst_stride);

// ---- Products ----

// Element (i, j) is data[i * row_stride + j * col_stride]: a transposed matrix costs as much as a plain one.
struct StridedMatrix {
  const float* data;
  int64_t row_stride, col_stride;
};

// c[m, n] = a[m, k] b[k, n], or += with accumulate. b and c are row-major with leading dimensions ldb and ldc; c
// overlaps neither a nor b. Fast where n is a multiple of 16 (32 on AVX-512), and where ldb is no large power of two.
void matmul(int64_t m, int64_t n, int64_t k, StridedMatrix a, const float* b, int64_t ldb, float* c, int64_t ldc,
            bool accumulate);

// ---- One row ----

void scale(float factor, float* x, int64_t n);
void scale_add(float factor, const float* x, float* y, int64_t n);  // y += factor * x
void exp(const float* x, float* y, int64_t n);  // y may be x; within 2 ulp; exp(-inf) = 0, NaN stays
bool all_finite(const float* x, int64_t n);

// In float64, where fp32 sums lose too much.
double dot(const double* x, const float* y, int64_t n);
void scale(double factor, double* x, int64_t n);
void scale_add(double factor, const float* x, double* y, int64_t n);

}  // namespace flashdelta::cpu
