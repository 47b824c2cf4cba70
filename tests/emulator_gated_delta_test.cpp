// The gated delta forward kernels' own PTX on the emulator, against the float64 recurrence: every option, lengths
// around a chunk's, hostile gates and keys, workspace and padding of NaN, several schedules of the warps.
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

Options small() {
  Options x;
  x.dim_k = x.dim_v = 64;
  x.lengths = {70};
  return x;
}

TEST_F(EmulatorGatedDelta, Plain) { expect_right_on_emulator(small()); }

TEST_F(EmulatorGatedDelta, Fp16) {
  Options x = small();
  x.dtype = x.o_dtype = FLASHDELTA_FP16;
  expect_right_on_emulator(x);
}

TEST_F(EmulatorGatedDelta, LengthsAroundAChunk) {
  Options x = small();
  x.lengths = {0, 1, 31, 0, 32, 33, 63, 65, 100, 0};
  x.group = 1;
  for (uint32_t seed : {0u, 1u, 2u}) {
    x.seed = seed;
    expect_right_on_emulator(x, seed);
  }
}

TEST_F(EmulatorGatedDelta, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{2, 3, 128, 128}, {1, 1, 8, 8}, {1, 2, 72, 200}, {1, 5, 128, 40}, {1, 1, 256, 72}, {2, 4, 64, 128}};
  for (const auto& shape : shapes) {
    Options x;
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {37, 1, 64};
    expect_right_on_emulator(x, 3);
    x.dtype = x.o_dtype = FLASHDELTA_FP16;
    x.value_major = true;
    expect_right_on_emulator(x, 4);
  }
}

// Where there is a tensor engine it brings whole chunks; elsewhere, and where a stride is none that it takes, cp.async
// does. The same bytes come, and the same bits go.
TEST_F(EmulatorGatedDelta, TensorCopiesAndCopiesPieceByPiece) {
  Options x = small();
  x.dim_k = 72;
  x.lengths = {70, 5, 96};
  Call boxes(x), pieces(x);
  const Answers answers = expected_answers(boxes), same = expected_answers(pieces);
  const std::vector<uint8_t> before = boxes.final_state().bytes();
  emulator::Counters counters;
  Status status = emulate(answers.problem, 1, {}, "sm120", &counters);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_GT(counters[emulator::Counter::kBulkBytes], 0u);
  expect_close(boxes, answers, before, contract_factor(x));
  status = emulate(same.problem, 1, {}, "sm89", &counters);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(counters[emulator::Counter::kBulkBytes], 0u);
  EXPECT_EQ(boxes.o.bytes(), pieces.o.bytes());
  EXPECT_EQ(boxes.final_state().bytes(), pieces.final_state().bytes());
}

TEST_F(EmulatorGatedDelta, GatesAndNormsInTheKernel) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    Options x = small();
    x.dtype = x.o_dtype = x.gate_dtype = dtype;
    x.raw_gate = x.raw_beta = x.l2norm = true;
    x.beta_scale = 2;
    x.lengths = {40, 65};
    expect_right_on_emulator(x);
    x.gate_dtype = FLASHDELTA_FP32;
    x.o_dtype = FLASHDELTA_FP32;
    x.beta_scale = 1;
    x.scale = 0.7;
    expect_right_on_emulator(x, 5);
  }
}

TEST_F(EmulatorGatedDelta, StatesInEveryForm) {
  Options x = small();
  x.lengths = {40, 0, 33};
  for_each_form_of_state(x, [](const Options& form) { expect_right_on_emulator(form); });
}

TEST_F(EmulatorGatedDelta, PoolsSkipsAndPlace) {
  Options x = small();
  x.lengths = {40, 3, 70, 0, 9};
  x.initial_pool = true;
  x.skipped = {0, 3};
  for (bool in_place : {false, true}) {
    x.in_place = in_place;
    expect_right_on_emulator(x);
  }
  x.in_place = x.initial_pool = x.initial = false;
  x.final_pool = true;
  expect_right_on_emulator(x);
}

TEST_F(EmulatorGatedDelta, Checkpoints) {
  Options x = small();
  x.lengths = {130, 0, 64, 63, 200};
  x.checkpoint_every = 64;
  x.skipped = {};
  expect_right_on_emulator(x);
  x.packed = false;
  x.lengths = {150, 150};
  x.checkpoint_every = 128;
  expect_right_on_emulator(x);
}

TEST_F(EmulatorGatedDelta, DenseAndHeadMajor) {
  Options x = small();
  x.packed = false;
  x.lengths = {33, 33, 33};
  x.head_major = true;
  expect_right_on_emulator(x);
  x.lengths = {0, 0};
  expect_right_on_emulator(x);
}

TEST_F(EmulatorGatedDelta, NoSequences) {
  Options x = small();
  x.lengths = {};
  expect_right_on_emulator(x);
}

// ---- Hostile gates and keys ----

TEST_F(EmulatorGatedDelta, ResetsAndHardDecay) {
  Options x = small();
  x.lengths = {100, 64};
  x.group = 1;
  Call call(x);
  call.g.refill([&](int64_t i) { return i % 7 == 3 ? -INFINITY : i % 5 == 0 ? -60.0 : -0.01; });
  expect_right_on_emulator(call);
  call.g.refill([](int64_t) { return -INFINITY; });
  expect_right_on_emulator(call);
  call.g.refill([](int64_t) { return 0.0; });
  expect_right_on_emulator(call);
}

// One key again and again: each token takes back what the one before it wrote, so roundings of U add up. With beta = 2
// it takes back twice that, the state along the key walks, and 16-bit U is at its limit: finite and near, not in
// tolerance.
TEST_F(EmulatorGatedDelta, RepeatedKeysAndBetaTwo) {
  Options x = small();
  x.lengths = {48};
  x.group = 1;
  const struct { double beta, factor; } cases[] = {{1, 1}, {2, 4}};
  for (const auto& c : cases) {
    Call call(x);
    double length = 0;
    for (int64_t i = 0; i < x.dim_k; i++) length += std::pow(Random(7, "k").normal(i), 2);
    call.k.refill([&](int64_t i) { return Random(7, "k").normal(i % x.dim_k) / std::sqrt(length); });
    call.q.refill([&](int64_t i) { return Random(7, "q").normal(i) / 8; });
    call.beta.refill([&](int64_t) { return c.beta; });
    call.g.refill([](int64_t) { return -0.02; });
    expect_right_on_emulator(call, 1, c.factor);
  }
}

TEST_F(EmulatorGatedDelta, LongKeysDampedByTheGate) {
  Options x = small();
  x.lengths = {96};
  x.group = 1;
  Call call(x);
  call.k.refill([&](int64_t i) { return Random(9, "k").normal(i) * 3 / 8; });  // |k| near 3
  call.beta.refill([](int64_t) { return 1.0; });
  call.g.refill([](int64_t) { return -3.0; });
  expect_right_on_emulator(call);
}

TEST_F(EmulatorGatedDelta, ZeroKeysUnderTheNorm) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    Options x = small();
    x.dtype = x.o_dtype = dtype;
    x.l2norm = true;
    Call call(x);
    call.k.refill([&](int64_t i) { return i / x.dim_k % 3 == 0 ? 0.0 : Random(4, "k").normal(i); });
    call.v.refill([&](int64_t i) { return 10 * Random(4, "v").normal(i); });
    expect_right_on_emulator(call);
  }
}

// ---- Context parallelism: parts of a sequence side by side ----

Options parts(flashdelta_context_parallel parallel) {
  Options x = small();
  x.lengths = {1024, 70, 0, 500};
  x.group = 1;
  x.context_parallel = parallel;
  return x;
}

TEST_F(EmulatorGatedDelta, PartsThatStartEarlyAreRight) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    Options x = parts(FLASHDELTA_CONTEXT_PARALLEL_DECAY_START);
    x.dtype = x.o_dtype = dtype;
    Call call(x);
    // A chunk leaves e^-9.4: parts start one early, as near to the threshold as bf16 outputs can show.
    const auto gate = [](int64_t i) { return i % 3 == 0 ? -0.3 : -0.29; };
    call.g.refill(gate);
    expect_right_on_emulator(call);
    // That there are parts shows in the bits: the others round elsewhere.
    x.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_OFF;
    Call whole(x);
    whole.g.refill(gate);
    EXPECT_NE(outputs(call), outputs(whole));
  }
}

TEST_F(EmulatorGatedDelta, ExactPartsWhereNothingOfAStateIsLeft) {
  Options x = parts(FLASHDELTA_CONTEXT_PARALLEL_EXACT);
  x.lengths = {8400};  // long enough for parts at the gates that models have
  const auto gate = [](int64_t) { return -0.15; };
  Call call(x);
  call.g.refill(gate);
  expect_right_on_emulator(call);
  x.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_OFF;
  Call whole(x);
  whole.g.refill(gate);
  EXPECT_NE(outputs(call), outputs(whole));
}

TEST_F(EmulatorGatedDelta, CheckpointsAndFp32OutputInParts) {
  Options x = parts(FLASHDELTA_CONTEXT_PARALLEL_DECAY_START);
  x.checkpoint_every = 64;
  x.o_dtype = FLASHDELTA_FP32;
  Call call(x);
  call.g.refill([](int64_t) { return -0.4; });
  expect_right_on_emulator(call);
}

// A state that does not fade, or that keys make larger as fast as gates make it smaller, goes through in one part; so
// does one that is written where another part may still read.
TEST_F(EmulatorGatedDelta, OnePartWhereAPartMayNotStartEarly) {
  const auto run = [](flashdelta_context_parallel parallel, double gate, double key, bool in_place) {
    Options x = parts(parallel);
    x.in_place = in_place;
    Call call(x);
    call.g.refill([&](int64_t) { return gate; });
    call.k.refill([&](int64_t i) { return Random(3, "k").normal(i) / 8 * key; });
    call.beta.refill([](int64_t) { return 1.0; });
    return outputs(call);
  };
  constexpr auto off = FLASHDELTA_CONTEXT_PARALLEL_OFF, early = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  EXPECT_EQ(run(early, -1e-3, 1, false), run(off, -1e-3, 1, false));
  EXPECT_EQ(run(early, -1.0, 2.2, false), run(off, -1.0, 2.2, false));  // |1 - |k|^2| is near 4 > e
  EXPECT_EQ(run(early, -0.3, 1, true), run(off, -0.3, 1, true));
}

// ---- What is refused ----

TEST_F(EmulatorGatedDelta, RefusesByName) {
  const auto refusal = [](const Options& x) {
    Call call(x);
    GatedDeltaProblem problem;
    EXPECT_TRUE(call.bind(&problem).ok());
    const Status status = gated_delta_forward_supported(problem);
    EXPECT_EQ(status.code, FLASHDELTA_NOT_SUPPORTED);
    return status.message;
  };
  Options x = small();
  x.dtype = x.o_dtype = FLASHDELTA_FP32;
  EXPECT_EQ(refusal(x).rfind("q: ", 0), 0u);
  x = small();
  x.chunk = 64;
  EXPECT_EQ(refusal(x).rfind("chunk: ", 0), 0u);
  x = small();
  x.gap = 1;
  EXPECT_EQ(refusal(x).rfind("q: ", 0), 0u);
}

}  // namespace
}  // namespace flashdelta::test
