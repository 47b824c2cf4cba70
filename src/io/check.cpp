// The verdict on a run of softmax attention, and the choice of what is looked at. check_gated_delta.cpp has the delta
// rule's.
#include "io/check.hpp"

#include "core/problem.hpp"
#include "io/check_tally.hpp"
#include "reference/random.hpp"
#include "reference/reference.hpp"

namespace flashdelta {
namespace {

constexpr double lse_tolerance = 2e-3;
constexpr double row_flops = 4e8;  // arithmetic that a check of attention may cost: well under a second on one core

struct RowAt {
  int64_t sequence = 0, i = 0, head = 0;
};

// Rows of all sequences in one count.
class RowIndex {
 public:
  explicit RowIndex(const AttentionProblem& problem) : heads_(problem.heads_q) {
    for (int64_t b = 0; b < problem.batch; b++) ends_.push_back(total() + problem.queries(b).length * heads_);
  }

  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }

  RowAt at(int64_t row) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), row);
    const int64_t offset = row - (end == ends_.begin() ? 0 : *(end - 1));
    return {end - ends_.begin(), offset / heads_, offset % heads_};
  }

 private:
  int64_t heads_;
  std::vector<int64_t> ends_;
};

// NaN in any row that a sequence owns, sampled or not.
bool rows_have_nan(const AttentionProblem& problem) {
  bool found = false;
  for (int64_t b = 0; b < problem.batch; b++) {
    const Span queries = problem.queries(b);
#pragma omp parallel for reduction(|| : found)
    for (int64_t i = 0; i < queries.length; i++) {
      for (int64_t head = 0; head < problem.heads_q; head++) {
        found = found ||
                has_nan(problem.o.row(queries.outer, queries.begin + i, head), problem.o.dtype, problem.head_dim_v);
      }
    }
  }
  return found;
}

Status check_attention(const Call& call, uint64_t seed, std::vector<OutputError>* errors) {
  AttentionProblem problem;
  FLASHDELTA_RETURN_IF_ERROR(make_problem(call.attention, &problem));
  const RowIndex index(problem);
  const double share = std::min(row_flops / std::max(call_cost(call).flops, 1.0), 1.0);
  const auto count = static_cast<int64_t>(share * static_cast<double>(index.total()));
  const std::vector<int64_t> rows = sample(index.total(), count, seed);
  Tally o, lse;
#pragma omp parallel
  {
    Tally my_o, my_lse;
#pragma omp for schedule(dynamic) nowait
    for (size_t n = 0; n < rows.size(); n++) {
      const RowAt at = index.at(rows[n]);
      const Span queries = problem.queries(at.sequence);
      const reference::AttentionRow want = reference::attention_row(problem, at.sequence, at.i, at.head);
      const int64_t first = problem.o.index(queries.outer, queries.begin + at.i, at.head);
      for (int64_t c = 0; c < problem.head_dim_v; c++) {
        my_o.add(load_float(problem.o.data, problem.o.dtype, first + c), want.o[static_cast<size_t>(c)]);
      }
      my_o.add_row();
      my_lse.add_row();
      if (problem.lse != nullptr) my_lse.add(problem.lse_row(queries.outer, at.head)[queries.begin + at.i], want.lse);
    }
#pragma omp critical
    {
      o.add(my_o);
      lse.add(my_lse);
    }
  }
  if (rows_have_nan(problem)) o.add_nan();
  errors->push_back(o.verdict("o", o.relative_l2(), tolerance_of(problem.q.dtype), index.total()));
  errors->push_back(lse.verdict("lse", lse.lse_error(), lse_tolerance, index.total()));
  return {};
}

}  // namespace

std::vector<int64_t> sample(int64_t total, int64_t count, uint64_t seed) {
  count = std::min(std::max<int64_t>(count, 2), total);
  std::vector<int64_t> chosen;
  const Random random(seed, "sample");
  for (int64_t i = 0; i < count; i++) {
    const auto part = [&](int64_t n) {
      return static_cast<int64_t>(static_cast<double>(total) * static_cast<double>(n) / static_cast<double>(count));
    };
    const int64_t size = std::max<int64_t>(part(i + 1) - part(i), 1);
    chosen.push_back(part(i) + static_cast<int64_t>(random.uniform(i) * static_cast<double>(size)));
  }
  if (count > 0) chosen.front() = 0;
  if (count > 1) chosen.back() = total - 1;
  return chosen;
}

Status check_call(const Call& call, uint64_t seed, std::vector<OutputError>* errors) {
  errors->clear();
  switch (call.operation) {
    case Operation::attention_forward: return check_attention(call, seed, errors);
    case Operation::gated_delta_forward: return check_gated_delta(call, seed, errors);
    default: return not_supported(fmt::format("{}: only the forward operations run", operation_name(call.operation)));
  }
}

}  // namespace flashdelta
