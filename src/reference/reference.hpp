// The oracle: float64, one token and one row at a time, as the definitions in flashdelta.h read. It shares no algorithm
// with any backend, so agreement means something.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"

namespace flashdelta::reference {

// One query row. o has head_dim_v numbers. i counts from the sequence's first query.
struct AttentionRow {
  std::vector<double> o;
  double lse = 0;
};
AttentionRow attention_row(const AttentionProblem& problem, int64_t sequence, int64_t i, int64_t head_q);

// Value columns first .. first + count - 1. Each column of the state lives its own life, so a part costs a part.
struct Columns {
  int64_t first = 0, count = -1;  // -1: all from first on
};

// One value head of one sequence, token by token. V below is the number of columns asked for.
struct GatedDeltaHead {
  std::vector<double> o;                          // [length, V]
  std::vector<double> state;                      // [K, V], after the last token
  std::vector<std::vector<double>> checkpoints;   // each [K, V]
  std::vector<std::vector<double>> token_states;  // with token_indices alone: each [K, V], one a token
};
GatedDeltaHead gated_delta_head(const GatedDeltaProblem& problem, int64_t sequence, int64_t head_v,
                                Columns columns = {});

}  // namespace flashdelta::reference
