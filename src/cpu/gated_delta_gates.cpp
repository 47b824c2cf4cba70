#include "cpu/gated_delta_gates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/simd.hpp"

namespace flashdelta::cpu {
namespace {

double load_at(const Rows& rows, int64_t outer, int64_t token, int64_t head) {
  return load_float(rows.data, rows.dtype, rows.index(outer, token, head));
}

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// x[j] = exp(x[j]), 0 below the floor. A NaN stays one.
void exp_or_zero(float* x, int64_t n) {
  for (int64_t j = 0; j < n; j++) x[j] = x[j] < kExpFloor ? -std::numeric_limits<float>::infinity() : x[j];
  exp(x, x, n);
}

}  // namespace

void load_gates(const GatedDeltaProblem& p, int64_t outer, int64_t token, int64_t n, int64_t head_v,
                const ChunkGates& gates) {
  const double rate = p.g ? 0.0 : -std::exp(static_cast<double>(p.A_log[head_v]));
  const double bias = p.g ? 0.0 : static_cast<double>(p.dt_bias[head_v]);
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const double g =
        p.g ? load_at(p.g, outer, token + i, head_v) : rate * softplus(load_at(p.a, outer, token + i, head_v) + bias);
    sum += g < kGateFloor ? kGateFloor : g;
    gates.sum[i] = sum;
    gates.beta[i] = static_cast<float>(p.beta ? load_at(p.beta, outer, token + i, head_v)
                                              : p.beta_scale / (1 + std::exp(-load_at(p.b, outer, token + i, head_v))));
  }
  for (int64_t i = 0; i < n; i++) {
    gates.decay[i] = static_cast<float>(gates.sum[i]);
    gates.tail[i] = static_cast<float>(sum - gates.sum[i]);
  }
  exp_or_zero(gates.decay, n);
  exp_or_zero(gates.tail, n);
}

void apply_gates(int64_t n, const ChunkGates& gates, const float* products, float* decayed, int64_t ld) {
  for (int64_t i = 0; i < n; i++) {
    float* row = gates.row;
    for (int64_t j = 0; j <= i; j++) row[j] = static_cast<float>(gates.sum[i] - gates.sum[j]);
    exp_or_zero(row, i + 1);
    const float* keys = products + i * ld;
    const float* queries = products + (n + i) * ld;
    float* lower = decayed + i * ld;
    float* attention = decayed + (n + i) * ld;
    for (int64_t j = 0; j < i; j++) lower[j] = gates.beta[i] * keys[j] * row[j];
    for (int64_t j = 0; j <= i; j++) attention[j] = queries[j] * row[j];
  }
}

}  // namespace flashdelta::cpu
