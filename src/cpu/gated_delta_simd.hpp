// The vector loops that only the gated delta rule needs. All matrices are fp32, row-major, with a leading dimension in
// floats; the number of columns is a multiple of 8.
//
// Column c of a result depends on column c of the inputs alone and is summed in one fixed order, so cutting the columns
// into blocks leaves every bit as it is.
#pragma once

#include <cstdint>

namespace flashdelta::cpu {

// U := (I + L)^-1 U by forward substitution. lower [n,n]: the part under the diagonal is read. u [n,cols].
void solve_unit_lower(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, float* u, int64_t ld_u);

// O += P U. lower [n,n]: the diagonal and the part under it are read. u, o [n,cols].
void add_lower_product(int64_t n, int64_t cols, const float* lower, int64_t ld_lower, const float* u, int64_t ld_u,
                       float* o, int64_t ld_o);

// x[i] = beta (v[i] - decay x[i])
void delta_row(int64_t cols, float beta, float decay, const float* v, float* x);

// Row r of x [rows,cols] times scales[r].
void scale_rows(int64_t rows, int64_t cols, const float* scales, float* x, int64_t ld);

// x [rows,cols] times scale.
void scale_matrix(int64_t rows, int64_t cols, float scale, float* x, int64_t ld);

}  // namespace flashdelta::cpu
