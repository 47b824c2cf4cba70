// Compares a call's outputs with the float64 recurrence, and sees that nothing else was written.
#pragma once

#include <gtest/gtest.h>

#include "cpu_gated_delta_call.hpp"

namespace flashdelta::test {
inline double tolerance(flashdelta_dtype dtype) {
  switch (dtype) {  // a single rounding of the output at worst: the arithmetic is fp32
    case FLASHDELTA_BF16: return 4e-3;
    case FLASHDELTA_FP16: return 5e-4;
    default: return 1e-5;
  }
}

// Relative L2 error of a stretch of numbers; a stretch of zeros must be met exactly.
class Error {
 public:
  void add(double got, double expected) {
    difference_ += (got - expected) * (got - expected);
    norm_ += expected * expected;
  }
  double relative() const {
    if (difference_ == 0) return 0;
    return norm_ == 0 ? INFINITY : std::sqrt(difference_ / norm_);
  }

 private:
  double difference_ = 0, norm_ = 0;
};

struct Answers {
  GatedDeltaProblem problem;
  std::vector<reference::GatedDeltaHead> heads;  // [N, HV]
};

// The oracle's answers; made before a run, which may write over its initial states.
inline Answers expected_answers(Call& call) {
  Answers answers;
  const Status status = call.bind(&answers.problem);
  EXPECT_TRUE(status.ok()) << status.message;
  const GatedDeltaProblem& p = answers.problem;
  if (!status.ok()) return answers;
  for (int64_t n = 0; n < p.sequences; n++) {
    for (int64_t h = 0; h < p.heads_v; h++) {
      answers.heads.push_back(p.skipped(n) ? reference::GatedDeltaHead{} : reference::gated_delta_head(p, n, h));
    }
  }
  return answers;
}

inline int64_t state_index(const GatedDeltaProblem& p, int64_t slot, int64_t head, int64_t key, int64_t value) {
  const int64_t base = (slot * p.heads_v + head) * p.dim_k * p.dim_v;
  return base + (p.value_major ? value * p.dim_k + key : key * p.dim_v + value);
}

inline double state_error(const GatedDeltaProblem& p, const Buffer& states, int64_t slot, int64_t head,
                          const std::vector<double>& expected) {
  Error error;
  for (int64_t i = 0; i < p.dim_k * p.dim_v; i++) {
    error.add(states.get(state_index(p, slot, head, i / p.dim_v, i % p.dim_v)), expected[static_cast<size_t>(i)]);
  }
  return error.relative();
}

// Slots that no sequence names keep their bytes: NaN in a pool of its own, the old state in place.
inline void expect_other_slots_kept(const Buffer& states, const std::vector<uint8_t>& before,
                                    const std::vector<bool>& written) {
  const int64_t each = states.size() / std::max<int64_t>(states.view().shape[0], 1);
  const auto width = static_cast<size_t>(dtype_size(states.view().dtype));
  for (int64_t i = 0; i < states.size(); i++) {
    if (written[static_cast<size_t>(i / each)]) continue;
    const size_t at = states.byte_offset(i);
    ASSERT_EQ(0, std::memcmp(before.data() + at, states.bytes().data() + at, width)) << "slot " << i / each;
  }
}

inline void expect_outputs(const Call& call, const Answers& answers, double factor) {
  const GatedDeltaProblem& p = answers.problem;
  for (int64_t n = 0; n < p.sequences; n++) {
    const Span span = p.sequence(n);
    for (int64_t h = 0; h < p.heads_v; h++) {
      const auto& head = answers.heads[static_cast<size_t>(n * p.heads_v + h)];
      Error error;
      for (int64_t i = 0; i < span.length * p.dim_v; i++) {
        const int64_t row = (span.outer * p.tokens + span.begin + i / p.dim_v) * p.heads_v + h;
        error.add(call.o.get(row * p.dim_v + i % p.dim_v), p.skipped(n) ? 0 : head.o[static_cast<size_t>(i)]);
      }
      EXPECT_LE(error.relative(), factor * tolerance(call.options.o_dtype)) << "o, sequence " << n << ", head " << h;
    }
  }
}

inline void expect_states(Call& call, const Answers& answers, const std::vector<uint8_t>& before, double factor) {
  const GatedDeltaProblem& p = answers.problem;
  const double bound = factor * tolerance(call.options.state_dtype);
  std::vector<bool> written(static_cast<size_t>(p.final.slots), false);
  for (int64_t n = 0; n < p.sequences; n++) {
    if (p.skipped(n)) continue;
    for (int64_t h = 0; h < p.heads_v; h++) {
      const auto& head = answers.heads[static_cast<size_t>(n * p.heads_v + h)];
      if (const int64_t slot = p.final_slot(n); slot >= 0) {
        written[static_cast<size_t>(slot)] = true;
        EXPECT_LE(state_error(p, call.final_state(), slot, h, head.state), bound) << "state " << n << ", head " << h;
      }
      for (size_t t = 0; t < head.token_states.size(); t++) {
        const int64_t slot = p.token_indices.at(n, static_cast<int64_t>(t));
        if (slot < 0) continue;
        written[static_cast<size_t>(slot)] = true;
        EXPECT_LE(state_error(p, call.final_state(), slot, h, head.token_states[t]), bound) << "token " << t;
      }
      for (size_t c = 0; c < head.checkpoints.size(); c++) {
        const int64_t row = p.checkpoint_row(n) + static_cast<int64_t>(c);
        EXPECT_LE(state_error(p, call.checkpoints, row, h, head.checkpoints[c]), bound) << "checkpoint " << row;
      }
    }
  }
  if (call.final_state()) expect_other_slots_kept(call.final_state(), before, written);
}

inline void expect_rest_untouched(const Call& call, const GatedDeltaProblem& p) {
  EXPECT_TRUE(call.o.gaps_untouched());
  EXPECT_TRUE(!call.final || call.final.gaps_untouched());
  EXPECT_TRUE(!call.initial || call.initial.gaps_untouched());
  if (call.options.packed) {
    for (int64_t i = p.cu_seqlens[p.sequences] * p.heads_v * p.dim_v; i < call.o.size(); i++) {
      ASSERT_TRUE(call.o.untouched(i)) << "a token beyond the last";
    }
  }
  if (call.checkpoints) {
    EXPECT_TRUE(call.checkpoints.gaps_untouched());
    const int64_t first = p.checkpoint_row(p.sequences) * p.heads_v * p.dim_k * p.dim_v;
    for (int64_t i = first; i < call.checkpoints.size(); i++) ASSERT_TRUE(call.checkpoints.untouched(i));
  }
}

// Runs and compares all that the call writes. factor: on the tolerances.
inline void expect_right(Call& call, int threads = 2, double factor = 1) {
  const Answers answers = expected_answers(call);
  ASSERT_FALSE(::testing::Test::HasFailure());
  const std::vector<uint8_t> before = call.final_state().bytes();
  const Status status = call.run({threads});
  ASSERT_TRUE(status.ok()) << status.message;
  expect_outputs(call, answers, factor);
  expect_states(call, answers, before, factor);
  expect_rest_untouched(call, answers.problem);
}

inline void expect_right(const Options& options, int threads = 2, double factor = 1) {
  Call call(options);
  expect_right(call, threads, factor);
}

inline void expect_same_bits(Call& x, Call& y) {
  EXPECT_EQ(x.o.bytes(), y.o.bytes());
  EXPECT_EQ(x.final_state().bytes(), y.final_state().bytes());
  EXPECT_EQ(x.checkpoints.bytes(), y.checkpoints.bytes());
}

}  // namespace flashdelta::test
