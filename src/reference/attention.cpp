// o = sum_j p_j v_j with p = softmax over the visible keys' scores and the sink; one query row, float64.
// The row's scores are held whole: plain softmax in two passes, no running maximum.
#include <cmath>
#include <limits>

#include "reference/reference.hpp"
#include "reference/rows.hpp"

namespace flashdelta::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool is_visible(const AttentionProblem& problem, int64_t key, int64_t position) {
  if (problem.window_left >= 0 && key < position - problem.window_left) return false;
  return problem.window_right < 0 || key <= position + problem.window_right;
}

double score(const AttentionProblem& problem, const std::vector<double>& q, const std::vector<double>& k) {
  const double s = problem.scale * dot(q, k);
  return problem.softcap > 0 ? problem.softcap * std::tanh(s / problem.softcap) : s;
}

}  // namespace

AttentionRow attention_row(const AttentionProblem& problem, int64_t sequence, int64_t i, int64_t head_q) {
  const Span queries = problem.queries(sequence), keys = problem.keys(sequence);
  const int64_t head_k = head_q / (problem.heads_q / problem.heads_k);
  const int64_t position = i + keys.length - queries.length;
  const std::vector<double> q = read_row(problem.q, queries.outer, queries.begin + i, head_q, problem.head_dim);

  std::vector<double> row;
  std::vector<int64_t> seen;
  std::vector<double> scores;
  double maximum = problem.sink ? static_cast<double>(problem.sink[head_q]) : -infinity;
  for (int64_t j = 0; j < keys.length; j++) {
    if (!is_visible(problem, j, position)) continue;
    const TokenAt at = problem.key_at(sequence, keys, j);
    read_row(problem.k, at.outer, at.token, head_k, problem.head_dim, &row);
    seen.push_back(j);
    scores.push_back(score(problem, q, row));
    maximum = std::max(maximum, scores.back());
  }

  AttentionRow result{std::vector<double>(static_cast<size_t>(problem.head_dim_v), 0.0), -infinity};
  if (maximum == -infinity) return result;
  double denominator = problem.sink ? std::exp(static_cast<double>(problem.sink[head_q]) - maximum) : 0.0;
  for (double s : scores) denominator += std::exp(s - maximum);
  for (size_t n = 0; n < seen.size(); n++) {
    const double p = std::exp(scores[n] - maximum) / denominator;
    if (p == 0) continue;  // underflow: adds nothing, and there can be many
    const TokenAt at = problem.key_at(sequence, keys, seen[n]);
    read_row(problem.v, at.outer, at.token, head_k, problem.head_dim_v, &row);
    for (size_t c = 0; c < row.size(); c++) result.o[c] += p * row[c];
  }
  result.lse = std::log(denominator) + maximum;
  return result;
}

}  // namespace flashdelta::reference
