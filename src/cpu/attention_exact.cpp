// One query row in float64, for scores or sums that fp32 cannot hold: a key at a time, online softmax in base e.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/attention_block.hpp"
#include "cpu/simd.hpp"

namespace flashdelta::cpu {

double attend_exactly(const AttentionBlock& block, int64_t row, const Scratch& scratch, float* o, Progress& progress) {
  float* row_buffer = scratch.scores;
  static_assert(kBlockKeys * padded_columns(1) >= 512, "the buffer holds a row of the largest head size");
  constexpr int64_t kKeysPerTick = 4096;
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  const AttentionProblem& p = block.problem;
  const char* query = p.q.row(block.queries.outer, block.queries.begin + block.token(row), block.head_q(row));
  load_rows(query, p.q.dtype, 0, 1, p.head_dim, row_buffer, 0);
  for (int64_t c = 0; c < p.head_dim; c++) scratch.wide_q[c] = static_cast<double>(row_buffer[c]);
  std::fill(scratch.wide_o, scratch.wide_o + p.head_dim_v, 0.0);
  double m = p.sink ? static_cast<double>(p.sink[block.head_q(row)]) : kLowest;
  double l = p.sink && m != kLowest ? 1 : 0;
  const auto seen = block.visible(row);
  for (int64_t j = seen.first; j < seen.last; j++) {
    if (j % kKeysPerTick == 0 && !progress.add(0)) return 0;
    const TokenAt at = p.key_at(block.sequence, block.keys, j);
    load_rows(p.k.row(at.outer, at.token, block.head_k), p.k.dtype, 0, 1, p.head_dim, row_buffer, 0);
    double s = p.scale * dot(scratch.wide_q, row_buffer, p.head_dim);
    if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
    if (s > m) {
      const double rescale = std::exp(m - s);
      l *= rescale;
      scale(rescale, scratch.wide_o, p.head_dim_v);
      m = s;
    }
    const double weight = s == kLowest ? 0 : std::exp(s - m);
    if (weight == 0) continue;
    l += weight;
    load_rows(p.v.row(at.outer, at.token, block.head_k), p.v.dtype, 0, 1, p.head_dim_v, row_buffer, 0);
    scale_add(weight, row_buffer, scratch.wide_o, p.head_dim_v);
  }
  for (int64_t c = 0; c < p.head_dim_v; c++) o[c] = l == 0 ? 0.0f : static_cast<float>(scratch.wide_o[c] / l);
  return l == 0 ? kLowest : m + std::log(l);
}

}  // namespace flashdelta::cpu
