// The verdict on a run of the gated delta rule. What is looked at is a unit, one value head of one sequence; above a
// size a sample of units, and of very long ones some value columns, which are independent of each other.
#include <algorithm>

#include "core/problem.hpp"
#include "io/check.hpp"
#include "io/check_tally.hpp"
#include "reference/random.hpp"
#include "reference/reference.hpp"

namespace flashdelta {
namespace {

constexpr double unit_flops = 1.2e9;  // arithmetic that a check may cost: well under a second on one core

struct Tallies {
  Tally o, final_state, checkpoints;

  void add(const Tallies& other) {
    o.add(other.o);
    final_state.add(other.final_state);
    checkpoints.add(other.checkpoints);
  }
};

class GatedDeltaCheck {
 public:
  GatedDeltaCheck(const Call& call, const GatedDeltaProblem& problem) : call_(call), p_(problem) {}

  void run(uint64_t seed, std::vector<OutputError>* errors);

 private:
  std::vector<int64_t> choose_units(uint64_t seed);
  reference::Columns columns_of(size_t n, size_t count, uint64_t seed) const;
  void check_unit(int64_t sequence, int64_t head, reference::Columns columns, Tallies* tallies) const;
  void check_state(const States& got, int64_t slot, int64_t head, reference::Columns columns,
                   const std::vector<double>& want, Tally* tally) const;
  void scan_for_nan(Tallies* tallies) const;
  std::string untouched_slots_fault() const;
  std::vector<bool> written_slots() const;
  int64_t written_states() const;

  const Call& call_;
  const GatedDeltaProblem& p_;
  int64_t columns_ = 0;  // value columns looked at in a unit
};

std::vector<int64_t> GatedDeltaCheck::choose_units(uint64_t seed) {
  const int64_t total = p_.sequences * p_.heads_v;
  const double share = std::min(unit_flops / std::max(call_cost(call_).flops, 1.0), 1.0);
  const auto units = sample(total, static_cast<int64_t>(share * static_cast<double>(total)), seed);
  double flops = 0;
  for (int64_t unit : units) {
    const int64_t sequence = unit / p_.heads_v;
    flops += 6.0 * static_cast<double>(p_.sequence(sequence).length * p_.dim_k * p_.dim_v);
  }
  // Lengths may differ and two units may be over the budget already.
  const double part = std::min(unit_flops / std::max(flops, 1.0), 1.0);
  columns_ = std::clamp<int64_t>(static_cast<int64_t>(part * static_cast<double>(p_.dim_v)), 8, p_.dim_v);
  return units;
}

// The first unit looks at the first columns, the last at the last ones.
reference::Columns GatedDeltaCheck::columns_of(size_t n, size_t count, uint64_t seed) const {
  const int64_t last = p_.dim_v - columns_;
  if (n == 0) return {0, columns_};
  if (n + 1 == count) return {last, columns_};
  const double u = Random(seed, "columns").uniform(static_cast<int64_t>(n));
  return {static_cast<int64_t>(u * static_cast<double>(last + 1)), columns_};
}

void GatedDeltaCheck::check_state(const States& got, int64_t slot, int64_t head, reference::Columns columns,
                                  const std::vector<double>& want, Tally* tally) const {
  const int64_t base = got.index(slot, head);
  for (int64_t row = 0; row < p_.dim_k; row++) {
    for (int64_t c = 0; c < columns.count; c++) {
      const int64_t column = columns.first + c;
      const int64_t offset = p_.value_major ? column * got.row_stride + row : row * got.row_stride + column;
      tally->add(load_float(got.data, got.dtype, base + offset), want[static_cast<size_t>(row * columns.count + c)]);
    }
  }
  tally->add_row();
}

void GatedDeltaCheck::check_unit(int64_t sequence, int64_t head, reference::Columns columns, Tallies* tallies) const {
  const Span span = p_.sequence(sequence);
  const bool skipped = p_.skipped(sequence);
  const reference::GatedDeltaHead want =
      skipped ? reference::GatedDeltaHead{} : reference::gated_delta_head(p_, sequence, head, columns);
  for (int64_t t = 0; t < span.length; t++) {
    const int64_t first = p_.o.index(span.outer, span.begin + t, head) + columns.first;
    for (int64_t c = 0; c < columns.count; c++) {
      const double expected = skipped ? 0 : want.o[static_cast<size_t>(t * columns.count + c)];
      tallies->o.add(load_float(p_.o.data, p_.o.dtype, first + c), expected);
    }
    tallies->o.add_row();
  }
  if (skipped) return;
  if (const int64_t slot = p_.final_slot(sequence); slot >= 0) {
    check_state(p_.final, slot, head, columns, want.state, &tallies->final_state);
  }
  for (size_t t = 0; t < want.token_states.size(); t++) {
    const int64_t slot = p_.token_indices.at(sequence, static_cast<int64_t>(t));
    if (slot >= 0) check_state(p_.final, slot, head, columns, want.token_states[t], &tallies->final_state);
  }
  for (size_t n = 0; n < want.checkpoints.size(); n++) {
    const int64_t row = p_.checkpoint_row(sequence) + static_cast<int64_t>(n);
    check_state(p_.checkpoints, row, head, columns, want.checkpoints[n], &tallies->checkpoints);
  }
}

std::vector<bool> GatedDeltaCheck::written_slots() const {
  std::vector<bool> written(static_cast<size_t>(p_.final.slots), false);
  const auto mark = [&](int64_t slot) {
    if (slot >= 0) written[static_cast<size_t>(slot)] = true;
  };
  for (int64_t n = 0; n < p_.sequences; n++) {
    if (p_.skipped(n)) continue;
    mark(p_.final_slot(n));
    for (int64_t t = 0; p_.token_indices && t < p_.sequence(n).length; t++) mark(p_.token_indices.at(n, t));
  }
  return written;
}

int64_t GatedDeltaCheck::written_states() const {
  const std::vector<bool> written = written_slots();
  return std::count(written.begin(), written.end(), true) * p_.heads_v;
}

// NaN in anything that the run had to write, sampled or not.
void GatedDeltaCheck::scan_for_nan(Tallies* tallies) const {
  const std::vector<bool> written = written_slots();
  const auto scan_slot = [&](const States& states, int64_t slot, Tally* tally) {
    const char* data = states.data + states.index(slot, 0) * dtype_size(states.dtype);
    if (has_nan(data, states.dtype, p_.heads_v * p_.dim_k * p_.dim_v)) tally->add_nan();
  };
  for (int64_t slot = 0; slot < p_.final.slots; slot++) {
    if (written[static_cast<size_t>(slot)]) scan_slot(p_.final, slot, &tallies->final_state);
  }
  for (int64_t n = 0; n < p_.sequences; n++) {
    const Span span = p_.sequence(n);
    for (int64_t t = 0; t < span.length; t++) {
      const void* row = p_.o.row(span.outer, span.begin + t, 0);
      if (has_nan(row, p_.o.dtype, p_.heads_v * p_.dim_v)) tallies->o.add_nan();
    }
    if (p_.skipped(n) || p_.checkpoint_every == 0) continue;
    const int64_t first = p_.checkpoint_row(n);
    for (int64_t i = 0; i < span.length / p_.checkpoint_every; i++) {
      scan_slot(p_.checkpoints, first + i, &tallies->checkpoints);
    }
  }
}

// Slots of the pool that no sequence writes keep the bits they had: initial_state's, or zero.
std::string GatedDeltaCheck::untouched_slots_fault() const {
  const HostTensor& got = call_.outputs.at("final_state");
  const auto initial = call_.inputs.find("initial_state");
  const size_t initial_bytes = initial == call_.inputs.end() ? 0 : initial->second.bytes();
  const size_t slot_bytes = static_cast<size_t>(p_.heads_v * p_.dim_k * p_.dim_v * dtype_size(got.dtype()));
  const std::vector<char> zero(slot_bytes, 0);
  const std::vector<bool> written = written_slots();
  for (size_t slot = 0; slot < written.size(); slot++) {
    if (written[slot]) continue;
    const bool from_initial = (slot + 1) * slot_bytes <= initial_bytes;
    const char* want =
        from_initial ? static_cast<const char*>(initial->second.data()) + slot * slot_bytes : zero.data();
    if (std::memcmp(static_cast<const char*>(got.data()) + slot * slot_bytes, want, slot_bytes) != 0) {
      return fmt::format("slot {} was written and belongs to no sequence", slot);
    }
  }
  return "";
}

void GatedDeltaCheck::run(uint64_t seed, std::vector<OutputError>* errors) {
  const std::vector<int64_t> units = choose_units(seed);
  Tallies sums;
#pragma omp parallel
  {
    Tallies mine;
#pragma omp for schedule(dynamic) nowait
    for (size_t n = 0; n < units.size(); n++) {
      check_unit(units[n] / p_.heads_v, units[n] % p_.heads_v, columns_of(n, units.size(), seed), &mine);
    }
#pragma omp critical
    sums.add(mine);
  }
  scan_for_nan(&sums);
  int64_t tokens = 0;
  for (int64_t n = 0; n < p_.sequences; n++) tokens += p_.sequence(n).length;
  const double tolerance = tolerance_of(p_.q.dtype);
  // A state kept in bf16 cannot be nearer than bf16 is.
  const double state_tolerance = std::max(tolerance, tolerance_of(p_.final.dtype));
  errors->push_back(sums.o.verdict("o", sums.o.relative_l2(), tolerance, tokens * p_.heads_v));
  errors->push_back(
      sums.final_state.verdict("final_state", sums.final_state.relative_l2(), state_tolerance, written_states()));
  if (errors->back().fault.empty()) errors->back().fault = untouched_slots_fault();
  if (p_.checkpoint_every == 0) return;
  errors->push_back(sums.checkpoints.verdict("checkpoints", sums.checkpoints.relative_l2(), state_tolerance,
                                             p_.checkpoint_row(p_.sequences) * p_.heads_v));
}

}  // namespace

Status check_gated_delta(const Call& call, uint64_t seed, std::vector<OutputError>* errors) {
  GatedDeltaProblem problem;
  FLASHDELTA_RETURN_IF_ERROR(make_problem(call.gated_delta, &problem));
  GatedDeltaCheck(call, problem).run(seed, errors);
  return {};
}

}  // namespace flashdelta
