// The gated delta rule as its recurrence, float64, one value head of one sequence:
//   D_t = exp(g_t) S_{t-1};  u_t = beta_t (v_t - D_t^T k_t);  S_t = D_t + k_t u_t^T;  o_t = scale S_t^T q_t
#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"
#include "reference/rows.hpp"

namespace flashdelta::reference {
namespace {

void normalise(std::vector<double>* x) {
  const double factor = 1 / std::sqrt(dot(*x, *x) + 1e-6);
  for (double& value : *x) value *= factor;
}

double number(const Rows& rows, const Span& span, int64_t t, int64_t head) {
  return load_float(rows.row(span.outer, span.begin + t, head), rows.dtype, 0);
}

double gate(const GatedDeltaProblem& problem, const Span& span, int64_t t, int64_t head) {
  if (problem.g) return number(problem.g, span, t, head);
  const double x = number(problem.a, span, t, head) + static_cast<double>(problem.dt_bias[head]);
  const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  return -std::exp(static_cast<double>(problem.A_log[head])) * softplus;
}

double beta(const GatedDeltaProblem& problem, const Span& span, int64_t t, int64_t head) {
  if (problem.beta) return number(problem.beta, span, t, head);
  return problem.beta_scale / (1 + std::exp(-number(problem.b, span, t, head)));
}

std::vector<double> initial_state(const GatedDeltaProblem& problem, int64_t sequence, int64_t head, Columns columns) {
  std::vector<double> state(static_cast<size_t>(problem.dim_k * columns.count), 0.0);
  const int64_t slot = problem.initial_slot(sequence);
  if (slot < 0) return state;
  const States& initial = problem.initial;
  for (int64_t row = 0; row < problem.dim_k; row++) {
    for (int64_t c = 0; c < columns.count; c++) {
      const int64_t column = columns.first + c;
      const int64_t offset =
          problem.value_major ? column * initial.row_stride + row : row * initial.row_stride + column;
      state[static_cast<size_t>(row * columns.count + c)] =
          load_float(initial.data, initial.dtype, initial.index(slot, head) + offset);
    }
  }
  return state;
}

// One token: moves the state on and writes o. u is scratch.
void step(const std::vector<double>& q, const std::vector<double>& k, const double* v, double decay, double write,
          double scale, std::vector<double>* state, std::vector<double>* u, double* o) {
  const size_t columns = u->size();
  double* s = state->data();
  double* p = u->data();
  std::fill(p, p + columns, 0.0);
  for (size_t row = 0; row < k.size(); row++) {
    for (size_t c = 0; c < columns; c++) {
      s[row * columns + c] *= decay;
      p[c] += s[row * columns + c] * k[row];
    }
  }
  for (size_t c = 0; c < columns; c++) p[c] = write * (v[c] - p[c]);
  for (size_t row = 0; row < k.size(); row++) {
    for (size_t c = 0; c < columns; c++) {
      s[row * columns + c] += k[row] * p[c];
      o[c] += scale * s[row * columns + c] * q[row];
    }
  }
}

}  // namespace

GatedDeltaHead gated_delta_head(const GatedDeltaProblem& problem, int64_t sequence, int64_t head_v, Columns columns) {
  if (columns.count < 0) columns.count = problem.dim_v - columns.first;
  const Span span = problem.sequence(sequence);
  const int64_t head_k = head_v / (problem.heads_v / problem.heads_k);
  GatedDeltaHead result;
  result.o.assign(static_cast<size_t>(span.length * columns.count), 0.0);
  result.state = initial_state(problem, sequence, head_v, columns);
  std::vector<double> q, k, v, u(static_cast<size_t>(columns.count));
  for (int64_t t = 0; t < span.length; t++) {
    read_row(problem.q, span.outer, span.begin + t, head_k, problem.dim_k, &q);
    read_row(problem.k, span.outer, span.begin + t, head_k, problem.dim_k, &k);
    read_row(problem.v, span.outer, span.begin + t, head_v, problem.dim_v, &v);
    if (problem.l2norm) {
      normalise(&q);
      normalise(&k);
    }
    step(q, k, v.data() + columns.first, std::exp(gate(problem, span, t, head_v)), beta(problem, span, t, head_v),
         problem.scale, &result.state, &u, result.o.data() + t * columns.count);
    if (problem.checkpoint_every > 0 && (t + 1) % problem.checkpoint_every == 0) {
      result.checkpoints.push_back(result.state);
    }
    if (problem.token_indices) result.token_states.push_back(result.state);
  }
  return result;
}

}  // namespace flashdelta::reference
