#include "cpu/gated_delta_simd.hpp"

#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashdelta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes; a tail of 8 columns runs with 8.
using Wide = hn::CappedTag<float, 16>;
using Narrow = hn::CappedTag<float, 8>;

// kRows x kVectors accumulators of a triangular step, from column c of row i on.
template <class D, int kRows, int kVectors>
struct Tile {
  using V = hn::Vec<D>;
  V sum[kRows][kVectors];

  void load(D d, const float* x, int64_t ld) {
    for (int r = 0; r < kRows; r++) {
      for (int v = 0; v < kVectors; v++) sum[r][v] = hn::LoadU(d, x + r * ld + v * hn::Lanes(d));
    }
  }

  void store(D d, float* x, int64_t ld) const {
    for (int r = 0; r < kRows; r++) {
      for (int v = 0; v < kVectors; v++) hn::StoreU(sum[r][v], d, x + r * ld + v * hn::Lanes(d));
    }
  }

  // sum[r] (+ or -)= coefficient[r] * row, for r from first_row on.
  template <bool kSubtract>
  HWY_INLINE void add(D d, int first_row, const float* coefficient, int64_t ld, const V (&row)[kVectors]) {
    for (int r = first_row; r < kRows; r++) {
      const V c = hn::Set(d, coefficient[r * ld]);
      for (int v = 0; v < kVectors; v++) {
        sum[r][v] = kSubtract ? hn::NegMulAdd(c, row[v], sum[r][v]) : hn::MulAdd(c, row[v], sum[r][v]);
      }
    }
  }
};

// Rows i .. i + kRows - 1 of a triangular solve (out is u itself) or of a triangular product (out is o). Earlier rows
// of u come first, then the rows of the block itself, so the order of a sum does not depend on kRows.
template <bool kSolve, class D, int kRows, int kVectors>
void triangular_rows(D d, int64_t i, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u, float* out,
                     int64_t ld_out) {
  Tile<D, kRows, kVectors> tile;
  tile.load(d, out + i * ld_out, ld_out);
  const float* coefficients = lower + i * ld_lower;
  hn::Vec<D> row[kVectors];
  for (int64_t j = 0; j < i; j++) {
    for (int v = 0; v < kVectors; v++) row[v] = hn::LoadU(d, u + j * ld_u + v * hn::Lanes(d));
    tile.template add<kSolve>(d, 0, coefficients + j, ld_lower, row);
  }
  for (int s = 0; s < kRows; s++) {
    for (int v = 0; v < kVectors; v++) {
      row[v] = kSolve ? tile.sum[s][v] : hn::LoadU(d, u + (i + s) * ld_u + v * hn::Lanes(d));
    }
    tile.template add<kSolve>(d, kSolve ? s + 1 : s, coefficients + i + s, ld_lower, row);
  }
  tile.store(d, out + i * ld_out, ld_out);
}

template <bool kSolve, class D, int kVectors>
void triangular_columns(D d, int64_t n, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u, float* out,
                        int64_t ld_out) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) triangular_rows<kSolve, D, 4, kVectors>(d, i, lower, ld_lower, u, ld_u, out, ld_out);
  for (; i < n; i++) triangular_rows<kSolve, D, 1, kVectors>(d, i, lower, ld_lower, u, ld_u, out, ld_out);
}

template <bool kSolve>
void triangular(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u, float* out,
                int64_t ld_out) {
  const Wide wide;
  const Narrow narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(wide));
  int64_t c = 0;
  for (; c + 2 * lanes <= cols; c += 2 * lanes) {
    triangular_columns<kSolve, Wide, 2>(wide, n, lower, ld_lower, u + c, ld_u, out + c, ld_out);
  }
  for (; c < cols; c += static_cast<int64_t>(hn::Lanes(narrow))) {
    triangular_columns<kSolve, Narrow, 1>(narrow, n, lower, ld_lower, u + c, ld_u, out + c, ld_out);
  }
}

void SolveUnitLower(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, float* u, int64_t ld_u) {
  triangular<true>(n, cols, lower, ld_lower, u, ld_u, u, ld_u);
}

void AddLowerProduct(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u,
                     float* o, int64_t ld_o) {
  triangular<false>(n, cols, lower, ld_lower, u, ld_u, o, ld_o);
}

void DeltaRow(int64_t cols, float beta, float decay, const float* v, float* x) {
  const Narrow d;
  const auto beta_all = hn::Set(d, beta);
  const auto decay_all = hn::Set(d, decay);
  for (int64_t c = 0; c < cols; c += static_cast<int64_t>(hn::Lanes(d))) {
    const auto error = hn::NegMulAdd(decay_all, hn::LoadU(d, x + c), hn::LoadU(d, v + c));
    hn::StoreU(hn::Mul(beta_all, error), d, x + c);
  }
}

HWY_INLINE void scale_row(int64_t cols, float scale, float* x) {
  const Narrow d;
  const auto scale_all = hn::Set(d, scale);
  for (int64_t c = 0; c < cols; c += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(scale_all, hn::LoadU(d, x + c)), d, x + c);
  }
}

void ScaleRows(int64_t rows, int64_t cols, const float* scales, float* x, int64_t ld) {
  for (int64_t r = 0; r < rows; r++) scale_row(cols, scales[r], x + r * ld);
}

void ScaleMatrix(int64_t rows, int64_t cols, float scale, float* x, int64_t ld) {
  for (int64_t r = 0; r < rows; r++) scale_row(cols, scale, x + r * ld);
}

}  // namespace flashdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::cpu {

HWY_EXPORT(SolveUnitLower);
HWY_EXPORT(AddLowerProduct);
HWY_EXPORT(DeltaRow);
HWY_EXPORT(ScaleRows);
HWY_EXPORT(ScaleMatrix);

void solve_unit_lower(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, float* u, int64_t ld_u) {
  HWY_DYNAMIC_DISPATCH(SolveUnitLower)(n, cols, lower, ld_lower, u, ld_u);
}

void add_lower_product(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u,
                       float* o, int64_t ld_o) {
  HWY_DYNAMIC_DISPATCH(AddLowerProduct)(n, cols, lower, ld_lower, u, ld_u, o, ld_o);
}

void delta_row(int64_t cols, float beta, float decay, const float* v, float* x) {
  HWY_DYNAMIC_DISPATCH(DeltaRow)(cols, beta, decay, v, x);
}

void scale_rows(int64_t rows, int64_t cols, const float* scales, float* x, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(ScaleRows)(rows, cols, scales, x, ld);
}

void scale_matrix(int64_t rows, int64_t cols, float scale, float* x, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(ScaleMatrix)(rows, cols, scale, x, ld);
}

}  // namespace flashdelta::cpu
#endif
