// Rows of float tensors as float64.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"

namespace flashdelta::reference {

inline void read_row(const Rows& rows, int64_t outer, int64_t token, int64_t head, int64_t count,
                     std::vector<double>* out) {
  out->resize(static_cast<size_t>(count));
  const char* data = rows.row(outer, token, head);
  for (int64_t c = 0; c < count; c++) (*out)[static_cast<size_t>(c)] = load_float(data, rows.dtype, c);
}

inline std::vector<double> read_row(const Rows& rows, int64_t outer, int64_t token, int64_t head, int64_t count) {
  std::vector<double> out;
  read_row(rows, outer, token, head, count, &out);
  return out;
}

inline double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t c = 0; c < x.size(); c++) sum += x[c] * y[c];
  return sum;
}

}  // namespace flashdelta::reference
