// Gate and beta of one value head over the tokens of a chunk.
//
//   g_t = g, or -exp(A_log) softplus(a + dt_bias), at least -100;  G_i = g_0 + .. + g_i
//   beta_t = beta, or beta_scale sigmoid(b)
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace flashdelta::cpu {

// exp(-100) is below fp32's normal range: a gate under it, g = -inf too, is a reset, and a cut gate keeps differences
// of sums finite. Exponents of the chunk's factors below kExpFloor give 0, so that a reset leaves nothing of the old
// state.
inline constexpr double kGateFloor = -100.0;
inline constexpr float kExpFloor = -87.0f;

struct ChunkGates {
  double* sum;   // [n] G_i. In float64: after a few resets fp32 would keep too few digits of the small gates
  float* beta;   // [n]
  float* decay;  // [n] exp(G_i)
  float* tail;   // [n] exp(G_last - G_i)
  float* row;    // [n] scratch

  // From 6 * ld floats.
  static ChunkGates at(float* memory, int64_t ld) {
    return {reinterpret_cast<double*>(memory), memory + 2 * ld, memory + 3 * ld, memory + 4 * ld, memory + 5 * ld};
  }
};

// Tokens token .. token + n - 1 of row `outer`.
void load_gates(const GatedDeltaProblem& problem, int64_t outer, int64_t token, int64_t n, int64_t head_v,
                const ChunkGates& gates);

// L_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i and P_ij = (q_i . k_j) exp(G_i - G_j) for j <= i, from
// products [2n,n], which holds k_i . k_j in its first n rows and q_i . k_j in its last n, to decayed [2n,n] likewise.
void apply_gates(int64_t n, const ChunkGates& gates, const float* products, float* decayed, int64_t ld);

}  // namespace flashdelta::cpu
