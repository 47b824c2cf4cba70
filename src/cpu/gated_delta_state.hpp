// States between the caller's memory, [.., K, V] or [.., V, K] in fp32 or bf16, and a task's fp32 [K, block_v].
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace flashdelta::cpu {

// Columns v_begin .. v_begin + v_count - 1 of one head's state.
struct StateBlock {
  int64_t slot = 0, head = 0, v_begin = 0, v_count = 0;
};

// rows: scratch for 8 * max(K, V) floats.
void load_state(const GatedDeltaProblem& problem, const States& from, const StateBlock& block, float* rows,
                float* state, int64_t ld);
void store_state(const GatedDeltaProblem& problem, const States& to, const StateBlock& block, float* rows,
                 const float* state, int64_t ld);

}  // namespace flashdelta::cpu
