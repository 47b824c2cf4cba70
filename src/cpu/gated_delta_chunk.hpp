// One chunk of n tokens of the gated delta rule:
//
//   G_i = g_0 + .. + g_i
//   L_ij = beta_i (k_i . k_j) exp(G_i - G_j), j < i;   P_ij = scale (q_i . k_j) exp(G_i - G_j), j <= i
//   U = (I + L)^-1 diag(beta) (V - diag(exp G) K S)      by substitution: the inverse itself is never formed
//   O = scale diag(exp G) Q S + P U
//   S := exp(G_last) S + (diag(exp(G_last - G)) K)^T U
//
// Everything is fp32 in the thread's scratch but the sums G (float64) and what lies in the caller's memory.
#pragma once

#include <cstdint>

#include "cpu/gated_delta_gates.hpp"
#include "cpu/gated_delta_plan.hpp"

namespace flashdelta::cpu {

// Tokens token .. token + count - 1 of row `outer`.
struct TokenRange {
  int64_t outer = 0, token = 0, count = 0;
};

// Columns v_begin .. v_begin + v_count - 1 of V.
struct ColumnRange {
  int64_t begin = 0, count = 0;
};

class ChunkKernel {
 public:
  // scratch: layout.floats floats, this thread's alone.
  ChunkKernel(const GatedDeltaProblem& problem, const GatedDeltaScratch& layout, float* scratch);

  // Reads q and k of a key head and makes the products that its value heads share. Before run() of any of them.
  void load_keys(const TokenRange& tokens, int64_t head_k) const;

  // One value head: writes o, moves state [K, columns.count] on.
  void run(const TokenRange& tokens, int64_t head_v, const ColumnRange& columns, float* state) const;

  float* state(int64_t i) const { return scratch_ + layout_.states + i * problem_.dim_k * layout_.ld_v; }
  float* rows() const { return scratch_ + layout_.rows; }
  int64_t ld_state() const { return layout_.ld_v; }

 private:
  void normalise(float* rows, int64_t n, double factor) const;

  const GatedDeltaProblem& problem_;
  const GatedDeltaScratch& layout_;
  float* const scratch_;
  const ChunkGates gates_;
};

}  // namespace flashdelta::cpu
