// c[m, n] (+)= a[m, k] b[k, n]. A block of c, rows x (vectors * lanes), stays in registers while k runs: each step
// loads one row piece of b and broadcasts one number of a per row. The column blocks are the outer loop, so that a
// piece of b (k_block x 2 vectors) stays in the L1 cache while all of a streams past it.
#include <algorithm>

#include "cpu/simd.hpp"
#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_matmul.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashdelta::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int64_t kLanes = hn::MaxLanes(DF());
// 2 vectors of columns: 12 of 16 registers hold c, or 24 of 32.
constexpr int kMaxRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
constexpr int64_t kBlockK = 256;

// The first `count` of kLanes numbers, the others zero. Without real masked loads Highway reads a whole vector, which
// may lie beyond the buffer; those targets go through memory.
HWY_INLINE VF load_first(const float* p, int64_t count) {
  const DF d;
  if constexpr (HWY_TARGET <= HWY_AVX2) {
    return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, p);
  } else {
    HWY_ALIGN float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; i++) lanes[i] = p[i];
    return hn::Load(d, lanes);
  }
}

HWY_INLINE void store_first(VF x, float* p, int64_t count) {
  const DF d;
  HWY_ALIGN float lanes[kLanes];
  hn::Store(x, d, lanes);
  for (int64_t i = 0; i < count; i++) p[i] = lanes[i];
}

// What one block of c needs; count is the columns of the last vector where it is not full.
struct Block {
  int64_t k;
  StridedMatrix a;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  int64_t count;
  bool accumulate;
};

template <int kRows, int kVectors, bool kTail>
HWY_INLINE void multiply_block(const Block& x) {
  const DF d;
  VF acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; i++) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; j++) {
      const float* c = x.c + i * x.ldc + j * kLanes;
      acc[i][j] = !x.accumulate ? hn::Zero(d) : kTail ? load_first(c, x.count) : hn::LoadU(d, c);
    }
  }
  const float* a = x.a.data;
  const float* b = x.b;
  const int64_t a_row = x.a.row_stride;
  for (int64_t p = 0; p < x.k; p++, a += x.a.col_stride, b += x.ldb) {
    VF columns[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; j++) columns[j] = kTail ? load_first(b, x.count) : hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; i++) {
      const VF value = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; j++) acc[i][j] = hn::MulAdd(value, columns[j], acc[i][j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; i++) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; j++) {
      float* c = x.c + i * x.ldc + j * kLanes;
      if (kTail) {
        store_first(acc[i][j], c, x.count);
      } else {
        hn::StoreU(acc[i][j], d, c);
      }
    }
  }
}

// As many rows as there are in steps of kRows.
template <int kRows, int kVectors, bool kTail>
HWY_INLINE void multiply_rows(Block& block, int64_t& rows) {
  for (; rows >= kRows; rows -= kRows) {
    multiply_block<kRows, kVectors, kTail>(block);
    block.a.data += kRows * block.a.row_stride;
    block.c += kRows * block.ldc;
  }
}

template <int kVectors, bool kTail>
HWY_NOINLINE void multiply_columns(Block block, int64_t rows) {
  multiply_rows<kMaxRows, kVectors, kTail>(block, rows);
  if constexpr (kMaxRows > 6) multiply_rows<6, kVectors, kTail>(block, rows);
  multiply_rows<4, kVectors, kTail>(block, rows);
  multiply_rows<2, kVectors, kTail>(block, rows);
  multiply_rows<1, kVectors, kTail>(block, rows);
}

void matmul(int64_t m, int64_t n, int64_t k, StridedMatrix a, const float* b, int64_t ldb, float* c, int64_t ldc,
            bool accumulate) {
  int64_t k_begin = 0;
  do {  // once for k = 0 too: c is then set to zero, or left
    const int64_t k_count = std::min(k - k_begin, kBlockK);
    Block block{k_count, a, b + k_begin * ldb, ldb, c, ldc, 0, accumulate || k_begin > 0};
    block.a.data += k_begin * a.col_stride;
    int64_t left = n;
    for (; left >= 2 * kLanes; left -= 2 * kLanes, block.b += 2 * kLanes, block.c += 2 * kLanes) {
      multiply_columns<2, false>(block, m);
    }
    for (; left >= kLanes; left -= kLanes, block.b += kLanes, block.c += kLanes) multiply_columns<1, false>(block, m);
    block.count = left;
    if (left > 0) multiply_columns<1, true>(block, m);
    k_begin += kBlockK;
  } while (k_begin < k);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::cpu {

HWY_EXPORT(matmul);

void matmul(int64_t m, int64_t n, int64_t k, StridedMatrix a, const float* b, int64_t ldb, float* c, int64_t ldc,
            bool accumulate) {
  HWY_DYNAMIC_DISPATCH(matmul)(m, n, k, a, b, ldb, c, ldc, accumulate);
}

}  // namespace flashdelta::cpu
#endif
