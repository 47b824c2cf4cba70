#include "cpu/gated_delta_chunk.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/gated_delta_simd.hpp"
#include "cpu/simd.hpp"

namespace flashdelta::cpu {
namespace {

constexpr double kL2Epsilon = 1e-6;

// Columns of the state that are decayed and then updated while they lie in the L1 cache.
constexpr int64_t kStateColumns = 32;

// n a multiple of 8. In float64: fp32 squares overflow from 1.8e19 on.
double sum_of_squares(const float* x, int64_t n) {
  double lanes[8] = {};
  for (int64_t c = 0; c < n; c += 8) {
    for (int64_t l = 0; l < 8; l++) lanes[l] += static_cast<double>(x[c + l]) * static_cast<double>(x[c + l]);
  }
  return std::accumulate(lanes, lanes + 8, 0.0);
}

}  // namespace

ChunkKernel::ChunkKernel(const GatedDeltaProblem& problem, const GatedDeltaScratch& layout, float* scratch)
    : problem_(problem),
      layout_(layout),
      scratch_(scratch),
      gates_(ChunkGates::at(scratch + layout.gates, layout.ld_chunk)) {}

// x * rsqrt(sum x^2 + 1e-6) * scale where the norm is asked for, else x * scale.
void ChunkKernel::normalise(float* rows, int64_t n, double factor) const {
  for (int64_t i = 0; i < n; i++) {
    float* x = rows + i * layout_.ld_k;
    const double norm = problem_.l2norm ? 1 / std::sqrt(sum_of_squares(x, problem_.dim_k) + kL2Epsilon) : 1.0;
    if (norm * factor != 1.0) scale(static_cast<float>(norm * factor), x, problem_.dim_k);
  }
}

void ChunkKernel::load_keys(const TokenRange& tokens, int64_t head_k) const {
  const GatedDeltaProblem& p = problem_;
  const int64_t n = tokens.count, ld = layout_.ld_k;
  float* keys = scratch_ + layout_.keys_queries;
  float* queries = keys + n * ld;
  float* keys_t = scratch_ + layout_.keys_t;
  load_rows(p.k.row(tokens.outer, tokens.token, head_k), p.k.dtype, p.k.token_stride, n, p.dim_k, keys, ld);
  load_rows(p.q.row(tokens.outer, tokens.token, head_k), p.q.dtype, p.q.token_stride, n, p.dim_k, queries, ld);
  normalise(keys, n, 1.0);
  normalise(queries, n, p.scale);
  transpose(keys, ld, n, p.dim_k, keys_t, layout_.ld_chunk);
  matmul(2 * n, n, p.dim_k, {keys, ld, 1}, keys_t, layout_.ld_chunk, scratch_ + layout_.products, layout_.ld_chunk,
         false);
}

void ChunkKernel::run(const TokenRange& tokens, int64_t head_v, const ColumnRange& columns, float* state) const {
  const GatedDeltaProblem& p = problem_;
  const int64_t n = tokens.count, cols = columns.count;
  const int64_t ld_k = layout_.ld_k, ld_v = layout_.ld_v, ld_chunk = layout_.ld_chunk;
  const float* keys = scratch_ + layout_.keys_queries;
  const float* lower = scratch_ + layout_.decayed;
  const float* attention = lower + n * ld_chunk;
  float* u = scratch_ + layout_.work;
  float* o = u + n * ld_v;

  load_gates(p, tokens.outer, tokens.token, n, head_v, gates_);
  apply_gates(n, gates_, scratch_ + layout_.products, scratch_ + layout_.decayed, ld_chunk);
  matmul(2 * n, cols, p.dim_k, {keys, ld_k, 1}, state, ld_v, u, ld_v, false);
  for (int64_t i = 0; i < n; i++) {
    const char* v = p.v.row(tokens.outer, tokens.token + i, head_v) + columns.begin * dtype_size(p.v.dtype);
    load_rows(v, p.v.dtype, 0, 1, cols, rows(), 0);
    delta_row(cols, gates_.beta[i], gates_.decay[i], rows(), u + i * ld_v);
  }
  scale_rows(n, cols, gates_.decay, o, ld_v);

  solve_unit_lower(n, cols, lower, ld_chunk, u, ld_v);
  add_lower_product(n, cols, attention, ld_chunk, u, ld_v, o, ld_v);
  char* out = p.o.row(tokens.outer, tokens.token, head_v) + columns.begin * dtype_size(p.o.dtype);
  store_rows(o, ld_v, n, cols, out, p.o.dtype, p.o.token_stride);

  scale_rows(n, cols, gates_.tail, u, ld_v);
  for (int64_t c = 0; c < cols; c += kStateColumns) {
    const int64_t width = std::min(kStateColumns, cols - c);
    scale_matrix(p.dim_k, width, gates_.decay[n - 1], state + c, ld_v);
    matmul(p.dim_k, width, n, {keys, 1, ld_k}, u + c, ld_v, state + c, ld_v, true);
  }
}

}  // namespace flashdelta::cpu
