// The CPU's gated delta rule against the float64 recurrence, and against itself where the bits must agree.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/mman.h>

#include "cpu_gated_delta_call.hpp"

namespace flashdelta::test {
namespace {

double tolerance(flashdelta_dtype dtype) {
  switch (dtype) {  // rounding of the output alone, nearly: the arithmetic is fp32
    case FLASHDELTA_BF16: return 3e-3;
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
Answers expected_answers(Call& call) {
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

int64_t state_index(const GatedDeltaProblem& p, int64_t slot, int64_t head, int64_t key, int64_t value) {
  const int64_t base = (slot * p.heads_v + head) * p.dim_k * p.dim_v;
  return base + (p.value_major ? value * p.dim_k + key : key * p.dim_v + value);
}

double state_error(const GatedDeltaProblem& p, const Buffer& states, int64_t slot, int64_t head,
                   const std::vector<double>& expected) {
  Error error;
  for (int64_t i = 0; i < p.dim_k * p.dim_v; i++) {
    error.add(states.get(state_index(p, slot, head, i / p.dim_v, i % p.dim_v)), expected[static_cast<size_t>(i)]);
  }
  return error.relative();
}

// Slots that no sequence names keep their bytes: NaN in a pool of its own, the old state in place.
void expect_other_slots_kept(const Buffer& states, const std::vector<uint8_t>& before,
                             const std::vector<bool>& written) {
  const int64_t each = states.size() / std::max<int64_t>(states.view().shape[0], 1);
  const auto width = static_cast<size_t>(dtype_size(states.view().dtype));
  for (int64_t i = 0; i < states.size(); i++) {
    if (written[static_cast<size_t>(i / each)]) continue;
    const size_t at = static_cast<size_t>(states.offset(i)) * width;
    ASSERT_EQ(0, std::memcmp(before.data() + at, states.bytes().data() + at, width)) << "slot " << i / each;
  }
}

void expect_outputs(const Call& call, const Answers& answers, double factor) {
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

void expect_states(Call& call, const Answers& answers, const std::vector<uint8_t>& before, double factor) {
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

void expect_rest_untouched(const Call& call, const GatedDeltaProblem& p) {
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
void expect_right(Call& call, int threads = 2, double factor = 1) {
  const Answers answers = expected_answers(call);
  ASSERT_FALSE(::testing::Test::HasFailure());
  const std::vector<uint8_t> before = call.final_state().bytes();
  const Status status = call.run({threads});
  ASSERT_TRUE(status.ok()) << status.message;
  expect_outputs(call, answers, factor);
  expect_states(call, answers, before, factor);
  expect_rest_untouched(call, answers.problem);
}

void expect_right(const Options& options, int threads = 2, double factor = 1) {
  Call call(options);
  expect_right(call, threads, factor);
}

void expect_same_bits(Call& x, Call& y) {
  EXPECT_EQ(x.o.bytes(), y.o.bytes());
  EXPECT_EQ(x.final_state().bytes(), y.final_state().bytes());
  EXPECT_EQ(x.checkpoints.bytes(), y.checkpoints.bytes());
}

// ---- Every option ----

TEST(CpuGatedDelta, Plain) { expect_right(Options{}); }

TEST(CpuGatedDelta, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{1, 1, 8, 8}, {2, 3, 128, 128}, {1, 5, 24, 200}, {3, 1, 256, 8}, {1, 2, 256, 256}, {1, 7, 72, 40}};
  for (const auto& shape : shapes) {
    Options x;
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {37, 1, 64};
    x.dtype = x.o_dtype = FLASHDELTA_FP32;
    expect_right(x);
  }
}

TEST(CpuGatedDelta, RandomCalls) {
  const bool passed = rc::check("a call answers as the recurrence does", [] {
    Options x;
    const auto yes = [] { return *rc::gen::arbitrary<bool>(); };
    x.seed = *rc::gen::inRange<uint64_t>(0, 1 << 30);
    x.dtype = *rc::gen::element(FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32);
    x.o_dtype = yes() ? x.dtype : FLASHDELTA_FP32;
    x.gate_dtype = yes() ? x.dtype : FLASHDELTA_FP32;
    x.state_dtype = yes() ? FLASHDELTA_BF16 : FLASHDELTA_FP32;
    x.heads_k = *rc::gen::inRange(1, 3);
    x.group = *rc::gen::inRange(1, 5);
    x.dim_k = 8 * *rc::gen::inRange(1, 9);
    x.dim_v = 8 * *rc::gen::inRange(1, 9);
    x.packed = yes();
    x.lengths.clear();
    const int n = *rc::gen::inRange(1, 5);
    for (int i = 0; i < n; i++) {
      x.lengths.push_back(x.packed || i == 0 ? *rc::gen::element(0, 1, 2, 7, 31, 32, 33, 64, 65, 130) : x.lengths[0]);
    }
    x.raw_gate = yes(), x.raw_beta = yes(), x.l2norm = yes(), x.value_major = yes();
    x.beta_scale = x.raw_beta && yes() ? 2 : 1;
    x.scale = yes() ? NAN : 0.7;
    x.initial = yes(), x.final = yes();
    x.in_place = x.initial && x.final && yes();
    x.token_states = x.final && *rc::gen::inRange(0, 4) == 0;
    x.accepted = x.token_states && x.initial && yes();
    x.initial_pool = x.initial && yes();
    x.final_pool = x.final && (yes() || (x.initial_pool && !x.in_place && yes()));
    if (x.in_place && !x.token_states) x.final_pool = x.initial_pool;
    if (!x.token_states && x.initial && !x.initial_pool) x.final_pool = false;
    if (x.initial_pool || x.final_pool) x.skipped = {*rc::gen::inRange<int64_t>(0, n)};
    x.checkpoint_every = x.token_states ? 0 : *rc::gen::element(0, 0, 64, 128);
    x.chunk = *rc::gen::element(0, 32, 64);
    x.gap = *rc::gen::element(0, 1, 8);
    x.head_major = yes();
    expect_right(x, *rc::gen::inRange(1, 4));
    RC_ASSERT(!::testing::Test::HasFailure());
  });
  EXPECT_TRUE(passed);
}

TEST(CpuGatedDelta, EmptySequencesAnywhere) {
  for (bool value_major : {false, true}) {
    Options x;
    x.lengths = {0, 40, 0, 0, 100, 0};
    x.value_major = value_major;
    x.state_dtype = FLASHDELTA_BF16;
    expect_right(x);
    x.initial = false;
    expect_right(x);
    x.lengths = {0};
    expect_right(x);
    x.lengths = {};
    expect_right(x);
  }
}

TEST(CpuGatedDelta, AnEmptySequencesFinalStateIsItsInitialStateToTheBit) {
  Options x;
  x.lengths = {0, 3};
  x.state_dtype = FLASHDELTA_FP32;
  Call call(x);
  ASSERT_TRUE(call.run().ok());
  for (int64_t i = 0; i < call.final.size() / 2; i++) ASSERT_EQ(call.final.get(i), call.initial.get(i));
}

TEST(CpuGatedDelta, NegativeIndicesSkip) {
  Options x;
  x.lengths = {40, 3, 70, 0, 9};
  x.initial_pool = true;
  x.skipped = {0, 3, 4};
  for (bool in_place : {false, true}) {
    x.in_place = in_place;
    expect_right(x);
  }
}

TEST(CpuGatedDelta, StatesAfterEachToken) {
  Options x;
  x.token_states = true;
  x.lengths = {4, 1, 8, 3};
  for (bool accepted : {false, true}) {
    for (bool in_place : {false, true}) {
      for (bool value_major : {false, true}) {
        x.accepted = accepted, x.in_place = in_place, x.value_major = value_major;
        expect_right(x);
      }
    }
  }
}

TEST(CpuGatedDelta, ContextParallelModesAreOne) {
  Options x;
  x.lengths = {200};
  Call off(x);
  x.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  Call decay_start(x);
  expect_right(off);
  ASSERT_TRUE(decay_start.run().ok());
  expect_same_bits(off, decay_start);
}

TEST(CpuGatedDelta, ABroadcastHeadMayHaveStrideZero) {
  Options x;
  x.group = 3;
  Call call(x);
  Call plain(x);
  for (int64_t i = 0; i < call.v.size(); i++) plain.v.set(i, call.v.get(i / x.dim_v / 3 * 3 * x.dim_v + i % x.dim_v));
  ASSERT_TRUE(plain.run().ok());
  GatedDeltaProblem p;
  ASSERT_TRUE(call.bind(&p).ok());
  p.v.head_stride = 0;
  std::vector<uint8_t> workspace(cpu::gated_delta_forward_workspace(p, 1) + 64);
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  uint8_t* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
  ASSERT_TRUE(cpu::gated_delta_forward(p, execution, aligned).ok());
  EXPECT_EQ(call.o.bytes(), plain.o.bytes());
}

}  // namespace
}  // namespace flashdelta::test
