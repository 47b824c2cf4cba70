// Exact context parallelism on the emulator: parts of a sequence whose states are composed, against the float64
// recurrence, with states that do not fade, that fade, and both; parts forced to be short, so that there are many.
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

class EmulatorGatedDeltaParts : public EmulatorGatedDelta {};

Options options(int64_t dim = 64) {
  Options x;
  x.dim_k = x.dim_v = dim;
  x.group = 1;
  x.lengths = {300};
  return x;
}

using Gate = double (*)(int64_t);
double none(int64_t) { return 0; }
double strong(int64_t) { return -4; }  // a chunk leaves nothing
// By token and head, of four: none, weak, a reset now and then, strong.
double mixed(int64_t i) {
  const int64_t token = i / 4;
  switch (i % 4) {
    case 0: return 0;
    case 1: return -0.01;
    case 2: return token % 97 == 50 ? -INFINITY : -0.02;
    default: return -4;
  }
}

GatedDeltaParts composed(int64_t chunks) { return {1, chunks, 1}; }

void expect_right_in_parts(const Options& x, Gate gate, int64_t part_chunks, uint32_t seed = 1) {
  Call call(x);
  call.g.refill([&](int64_t i) { return gate(i); });
  expect_right_on_emulator(call, seed, 1, composed(part_chunks));
}

TEST_F(EmulatorGatedDeltaParts, GatesOfEveryKind) {
  Options x = options();
  x.heads_k = 2, x.group = 2;
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    x.dtype = x.o_dtype = dtype;
    for (Gate gate : {none, strong, mixed}) {
      for (int64_t part : {1, 2, 3, 5}) expect_right_in_parts(x, gate, part, static_cast<uint32_t>(part));
    }
  }
}

TEST_F(EmulatorGatedDeltaParts, HeadSizesAndCounts) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{1, 3, 128, 128}, {1, 1, 8, 8}, {1, 2, 72, 200}, {2, 1, 128, 40}, {1, 1, 256, 72}, {1, 1, 64, 256}};
  for (const auto& shape : shapes) {
    for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
      Options x;
      x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
      x.lengths = {230};
      x.dtype = x.o_dtype = dtype;
      x.value_major = dtype == FLASHDELTA_FP16;
      expect_right_in_parts(x, none, 2, 3);
    }
  }
}

// Sequences of one part, of whole parts, of one token more, and empty ones; packed and not.
TEST_F(EmulatorGatedDeltaParts, LengthsAroundAPart) {
  Options x = options();
  for (uint32_t seed : {0u, 1u, 2u}) {
    x.seed = seed;
    x.lengths = {0, 64, 65, 0, 1, 128, 129, 63, 200, 31, 0};
    expect_right_in_parts(x, none, 2, seed);
    x.lengths = {31, 33, 96, 97};
    expect_right_in_parts(x, none, 1, seed);
  }
  x.packed = false;
  x.lengths = {161, 161};
  x.head_major = true;
  expect_right_in_parts(x, none, 2);
  x.lengths = {40, 40, 40};
  expect_right_in_parts(x, none, 2);
}

TEST_F(EmulatorGatedDeltaParts, StatesInEveryForm) {
  Options x = options();
  x.lengths = {100, 0, 33, 160};
  for_each_form_of_state(x, [](const Options& form) {
    expect_right_in_parts(form, none, form.final ? 1 : 2);
    expect_right_in_parts(form, strong, 1);
  });
}

// The last part may end before the first has begun: the final state may lie where the initial one does.
TEST_F(EmulatorGatedDeltaParts, PoolsSkipsAndPlace) {
  Options x = options();
  x.lengths = {140, 3, 170, 0, 90};
  x.initial_pool = true;
  x.skipped = {0, 3};
  for (bool in_place : {false, true}) {
    x.in_place = in_place;
    for (Gate gate : {none, strong}) {
      for (uint32_t seed : {1u, 2u}) expect_right_in_parts(x, gate, 1, seed);
    }
  }
  x.in_place = x.initial_pool = x.initial = false;
  x.final_pool = true;
  expect_right_in_parts(x, none, 2);
}

TEST_F(EmulatorGatedDeltaParts, CheckpointsAndFp32Output) {
  Options x = options();
  x.lengths = {330, 63, 200};
  x.checkpoint_every = 64;
  expect_right_in_parts(x, none, 3);
  x.o_dtype = FLASHDELTA_FP32;
  expect_right_in_parts(x, strong, 2);
}

TEST_F(EmulatorGatedDeltaParts, RawGatesAndNorms) {
  Options x = options();
  x.raw_gate = x.raw_beta = x.l2norm = true;
  x.beta_scale = 2;
  Call call(x);
  expect_right_on_emulator(call, 1, 1, composed(2));
}

// Whatever the order in which warps and blocks run.
TEST_F(EmulatorGatedDeltaParts, TheSameBitsAgain) {
  Options x = options();
  x.heads_k = 2, x.group = 2;
  std::vector<uint8_t> first;
  for (uint32_t seed : {0u, 1u, 2u, 3u}) {
    Call call(x);
    call.g.refill(mixed);
    const std::vector<uint8_t> now = outputs(call, seed, composed(2));
    if (seed == 0) first = now;
    EXPECT_EQ(now, first) << seed;
  }
}

// A map that composes wrongly, or a state rounded to 16 bits on its way, would show over many parts.
TEST_F(EmulatorGatedDeltaParts, ManyPartsAreAsAccurateAsOne) {
  Options x = options();
  x.lengths = {2048};
  Call call(x);
  call.g.refill(none);
  call.beta.refill([](int64_t i) { return i % 16 == 0 ? 0.5 : 0.0; });  // much of the first state is left
  expect_right_on_emulator(call, 1, 1, composed(2));
}

// Where states are not composed, exact's parts start early where nothing is left of a state, and else not.
TEST_F(EmulatorGatedDeltaParts, PartsThatStartEarlyUnderExact) {
  Options x = options();
  x.lengths = {1024, 100};
  const GatedDeltaParts early{4, 0, 1};
  for (Gate gate : {none, strong, mixed}) {
    Call call(x);
    call.g.refill([&](int64_t i) { return gate(i); });
    expect_right_on_emulator(call, 1, 1, early);
  }
}

// ---- What the plan offers ----

TEST(GatedDeltaParts, ComposedWhereHeadsLeaveTheCardIdle) {
  const auto packed = [](int64_t heads_k, int64_t heads_v, int64_t sequences, int64_t tokens, int64_t max_tokens) {
    return planned(
        {.heads_k = heads_k, .heads_v = heads_v, .sequences = sequences, .tokens = tokens, .max_tokens = max_tokens});
  };
  const GatedDeltaParts few = packed(2, 8, 1, 32768, 32768);
  EXPECT_TRUE(few.composed());
  EXPECT_EQ(few.chunks, 114);
  EXPECT_EQ(few.most, 9);
  EXPECT_TRUE(packed(2, 8, 2, 16384, 28672).composed());  // 28672 and 4096
  EXPECT_TRUE(planned({2, 8, 1, 4096, FLASHDELTA_CONTEXT_PARALLEL_EXACT, 170}).composed());
  EXPECT_FALSE(packed(16, 48, 1, 32768, 32768).composed());  // a pass more costs more than idle blocks
  EXPECT_FALSE(packed(2, 8, 1, 512, 512).composed());
  EXPECT_FALSE(packed(2, 8, 8, 32768, 32768).composed());
  EXPECT_TRUE(packed(2, 8, 8, 32768, 8 * 32768).composed());  // one may have all tokens
  EXPECT_FALSE(packed(2, 8, 2050, 30, 2050 * 30).composed());
}

}  // namespace
}  // namespace flashdelta::test
