#include "cpu/gated_delta_state.hpp"

#include <algorithm>

#include "cpu/simd.hpp"

namespace flashdelta::cpu {
namespace {

constexpr int64_t kTile = 8;  // rows of V transposed at a time; V is a multiple of 8

char* row_of(const States& states, const StateBlock& block, int64_t row, int64_t column) {
  const int64_t index = states.index(block.slot, block.head) + row * states.row_stride + column;
  return states.data + index * dtype_size(states.dtype);
}

}  // namespace

void load_state(const GatedDeltaProblem& p, const States& from, const StateBlock& block, float* rows, float* state,
                int64_t ld) {
  if (!p.value_major) {
    load_rows(row_of(from, block, 0, block.v_begin), from.dtype, from.row_stride, p.dim_k, block.v_count, state, ld);
    return;
  }
  for (int64_t v = 0; v < block.v_count; v += kTile) {
    load_rows(row_of(from, block, block.v_begin + v, 0), from.dtype, from.row_stride, kTile, p.dim_k, rows, p.dim_k);
    transpose(rows, p.dim_k, kTile, p.dim_k, state + v, ld);
  }
}

void store_state(const GatedDeltaProblem& p, const States& to, const StateBlock& block, float* rows, const float* state,
                 int64_t ld) {
  if (!p.value_major) {
    store_rows(state, ld, p.dim_k, block.v_count, row_of(to, block, 0, block.v_begin), to.dtype, to.row_stride);
    return;
  }
  for (int64_t v = 0; v < block.v_count; v += kTile) {
    transpose(state + v, ld, p.dim_k, kTile, rows, p.dim_k);
    store_rows(rows, p.dim_k, kTile, p.dim_k, row_of(to, block, block.v_begin + v, 0), to.dtype, to.row_stride);
  }
}

}  // namespace flashdelta::cpu
