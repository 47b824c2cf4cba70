// Preparation beside the forward kernel, on the emulator, which runs one after the other: every unit of work is done
// once and its count says so, whatever the lengths and however many teams share it. That both run side by side, only a
// card shows (gated_delta_check).
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

class EmulatorGatedDeltaAhead : public EmulatorGatedDelta {};

GatedDeltaParts ahead(int blocks) {
  GatedDeltaParts parts;
  parts.ahead_blocks = blocks;
  return parts;
}

void expect_same_bits(const Options& x) {
  Call before(x);
  const std::vector<uint8_t> expected = outputs(before, 0, ahead(0));
  for (int blocks : {1, 2, 7}) {
    Call call(x);
    EXPECT_EQ(expected, outputs(call, static_cast<uint32_t>(blocks), ahead(blocks))) << blocks << " blocks";
  }
}

TEST_F(EmulatorGatedDeltaAhead, TheSameBitsAsBefore) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    Options x;
    x.dtype = x.o_dtype = dtype;
    x.heads_k = 2, x.group = 3, x.dim_k = x.dim_v = 128;
    x.lengths = {200};
    expect_same_bits(x);
    x.group = 1, x.dim_k = 64, x.dim_v = 72;
    x.lengths = {0, 1, 31, 0, 32, 33, 165, 65, 0};
    expect_same_bits(x);
    x.lengths = {40, 40, 40}, x.packed = false;
    expect_same_bits(x);
  }
}

TEST_F(EmulatorGatedDeltaAhead, OptionsOfThePreparation) {
  Options x;
  x.dim_k = 72, x.dim_v = 64, x.group = 5;
  x.lengths = {70, 100};
  x.l2norm = x.raw_gate = x.raw_beta = true;
  x.checkpoint_every = 64;
  expect_same_bits(x);
  Call call(x);
  expect_right_on_emulator(call, 3, 1, ahead(2));
}

TEST_F(EmulatorGatedDeltaAhead, SkippedAndEmptySequences) {
  Options x;
  x.dim_k = x.dim_v = 64;
  x.lengths = {70, 3, 90};
  x.initial_pool = true;
  x.skipped = {0, 2};
  expect_same_bits(x);
  x.initial_pool = false, x.skipped = {};
  x.lengths = {0, 0};
  expect_same_bits(x);
}

// Three warps a block where four would take a key head's value heads in as many turns.
TEST(GatedDeltaPreparation, FewestTurnsThenFewestWarps) {
  for (const auto& [group, warps] : {std::pair{1, 3}, {2, 3}, {3, 3}, {4, 4}, {5, 3}, {6, 3}, {8, 4}, {9, 3}}) {
    GatedDeltaProblem p;
    p.q.dtype = FLASHDELTA_BF16;
    p.dim_k = p.dim_v = 128;
    p.heads_k = 2, p.heads_v = 2 * group;
    p.sequences = 1, p.tokens = p.max_tokens = 4096;
    GatedDeltaKernels kernels;
    ASSERT_TRUE(choose_gated_delta_kernels(p, *parse_arch("sm120"), &kernels).ok());
    EXPECT_EQ(kernels.prepare->config.warps, warps) << group << " value heads a key head";
  }
}

TEST(GatedDeltaAhead, WhereIdleMultiprocessorsKeepAhead) {
  constexpr auto off = FLASHDELTA_CONTEXT_PARALLEL_OFF, decay_start = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  for (auto parallel : {off, FLASHDELTA_CONTEXT_PARALLEL_EXACT}) {
    EXPECT_EQ(planned({16, 48, 1, 32768, parallel}).ahead_blocks, 36);  // 96 blocks of the forward kernel
    EXPECT_EQ(planned({16, 48, 1, 32768, parallel, 170}).ahead_blocks, 74);
    EXPECT_EQ(planned({16, 48, 1, 8192, parallel}).ahead_blocks, 36);
    EXPECT_EQ(planned({16, 64, 1, 32768, parallel}).ahead_blocks, 0);  // 4 idle ones are too few
    EXPECT_EQ(planned({16, 48, 4, 8192, parallel}).ahead_blocks, 0);   // and here there is none
  }
  EXPECT_EQ(planned({2, 8, 1, 32768, off}).ahead_blocks, 116);
  EXPECT_EQ(planned({2, 8, 1, 64}).ahead_blocks, 1);  // all there is to do
  EXPECT_TRUE(planned({2, 8, 1, 32768}).composed());  // which gains more
  EXPECT_EQ(planned({2, 8, 1, 32768}).ahead_blocks, 0);
  EXPECT_GT(planned({16, 48, 1, 32768, decay_start}).ranges, 0);
  EXPECT_EQ(planned({16, 48, 1, 32768, decay_start}).ahead_blocks, 0);
  EXPECT_EQ(planned({.heads_k = 16, .heads_v = 48, .sequences = 1, .tokens = 32768, .parallel = off, .arch = "sm89"})
                .ahead_blocks,
            0);  // kernels start one after another
  EXPECT_EQ(
      planned({.heads_k = 2, .heads_v = 8, .sequences = 1, .tokens = 4096, .parallel = off, .dim = 256}).ahead_blocks,
      0);
}

}  // namespace
}  // namespace flashdelta::test
