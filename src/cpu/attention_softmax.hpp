// The online softmax's vector steps on one score tile. Scores are held transposed, [key][query row]: a query row is a
// lane, so maxima and sums over keys need no work across lanes. All exponentials are base 2. `columns` (query rows,
// padded) is a multiple of 8.
#pragma once

#include <cstdint>

namespace flashdelta::cpu {

// scores = cap * tanh(scores), elementwise.
void softcap_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float cap);

// Turns scores[keys][columns] into exp2(score - m) under the new running maximum m; updates m and the running sum l,
// and sets rescale to what earlier sums must be multiplied by. Returns whether any rescale is not 1. A column that has
// seen only -inf keeps m = -inf, l = 0 and gets zeros. NaN, and m = +inf, make l NaN.
bool softmax_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float* m, float* l, float* rescale);

// x[r][c] *= factors[c].
void scale_columns(float* x, int64_t stride, int64_t rows, int64_t columns, const float* factors);

// x[r][c] = x[r][c] * factors[c] + y[r][c] * y_factors[c].
void merge_columns(float* x, const float* factors, const float* y, const float* y_factors, int64_t stride, int64_t rows,
                   int64_t columns);

}  // namespace flashdelta::cpu
