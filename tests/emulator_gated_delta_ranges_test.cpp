// Wide blocks that walk along ranges of all key heads' chunks, on the emulator: against the float64 recurrence for
// gates of every kind, and bit for bit what narrow blocks give where no gate lets a range start early.
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

class EmulatorGatedDeltaRanges : public EmulatorGatedDelta {};

constexpr int64_t kWhole = GatedDeltaParts::kWholeSequences;

Options options() {
  Options x;
  x.dim_k = x.dim_v = 128;
  x.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  x.lengths = {400, 0, 70, 800, 5, 0};
  return x;
}

using Gate = double (*)(int64_t);
double none(int64_t) { return 0; }
double strong(int64_t) { return -4; }  // a chunk leaves nothing
// Of two heads, tokens in a row.
double first_head(int64_t i) { return i % 2 == 0 ? -0.4 : 0.0; }
double late(int64_t i) { return i / 2 > 500 ? -0.4 : -0.001; }
double mostly(int64_t i) { return i / 2 % 300 < 150 ? -0.1 : -0.001; }  // some cuts have to go
double resets(int64_t i) { return i / 2 % 137 == 20 ? -INFINITY : 0.0; }

GatedDeltaParts in_ranges(int64_t ranges, int64_t least_piece = 2, int64_t most_early = 12) {
  GatedDeltaParts parts;
  parts.ranges = ranges, parts.least_piece = least_piece, parts.most_early = most_early;
  return parts;
}

void refill(Call& call, Gate gate) {
  call.g.refill([&](int64_t i) { return gate(i); });
}

void expect_right(const Options& x, Gate gate, const GatedDeltaParts& parts, uint32_t seed = 1) {
  SCOPED_TRACE(testing::Message() << parts.ranges << " ranges, pieces of " << parts.least_piece);
  Call call(x);
  refill(call, gate);
  expect_right_on_emulator(call, seed, 1, parts);
}

// No cut starts early: whole sequences, or halves of their columns.
void expect_bits_of_narrow_blocks(const Options& x, Gate gate, const GatedDeltaParts& parts, uint32_t seed = 1) {
  Call walked(x), narrow(x);
  refill(walked, gate), refill(narrow, gate);
  EXPECT_EQ(outputs(walked, seed, parts), outputs(narrow, seed, GatedDeltaParts{}))
      << parts.ranges << " ranges, pieces of " << parts.least_piece;
}

TEST_F(EmulatorGatedDeltaRanges, GatesOfEveryKind) {
  const Options x = options();
  for (int64_t ranges : {1, 2, 3, 5, 8, 13, 50}) {
    expect_bits_of_narrow_blocks(x, none, in_ranges(ranges), static_cast<uint32_t>(ranges));
    for (Gate gate : {strong, first_head, late, mostly, resets}) expect_right(x, gate, in_ranges(ranges));
  }
}

TEST_F(EmulatorGatedDeltaRanges, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{3, 2, 128, 128}, {1, 3, 72, 200}, {2, 1, 128, 72}, {1, 2, 104, 136}, {2, 2, 128, 256}};
  for (const auto& shape : shapes) {
    Options x = options();
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {300, 33};
    for (int64_t ranges : {2, 5}) {
      expect_bits_of_narrow_blocks(x, none, in_ranges(ranges), 3);
      for (Gate gate : {strong, first_head}) expect_right(x, gate, in_ranges(ranges), 3);
    }
  }
}

// Cuts at a sequence's first and last chunks, at its ends, and in sequences of one chunk.
TEST_F(EmulatorGatedDeltaRanges, LengthsAroundACut) {
  for (int64_t length : {31, 32, 33, 63, 64, 65, 96, 97}) {
    Options x = options();
    x.group = 1;
    x.lengths = {length, 1, 160 - length, 0, length};
    x.tokens_after = length % 2 * 500;  // a buffer for more
    for (int64_t least : {int64_t{1}, int64_t{2}, kWhole}) {
      for (int64_t ranges : {3, 7}) {
        expect_bits_of_narrow_blocks(x, none, in_ranges(ranges, least));
        expect_right(x, strong, in_ranges(ranges, least, 1));
      }
    }
  }
  Options dense = options();
  dense.packed = false;
  dense.lengths = {161, 161, 161};
  for (int64_t ranges : {2, 4, 9}) expect_right(dense, strong, in_ranges(ranges, 1));
}

// One that has most of the work, first, amid and last; and more sequences than chunks of 32 tokens.
TEST_F(EmulatorGatedDeltaRanges, OneLongAmongThousands) {
  Options x = options();
  x.group = 1;
  x.dim_v = 72;
  x.gap = 0;
  x.initial = x.final = false;
  for (int64_t at : {0, 700, 1099}) {
    x.lengths = std::vector<int64_t>(1100, 8);
    for (int64_t n = 0; n < 1100; n += 3) x.lengths[n] = 0;
    x.lengths[at] = 1100;
    x.seed = static_cast<uint64_t>(at);
    expect_right(x, first_head, in_ranges(7));
    for (int64_t least : {int64_t{2}, kWhole}) expect_bits_of_narrow_blocks(x, none, in_ranges(12, least));
  }
}

TEST_F(EmulatorGatedDeltaRanges, StatesInEveryForm) {
  Options x = options();
  x.lengths = {140, 0, 33, 200};
  for_each_form_of_state(x, [](const Options& form) {
    for (Gate gate : {none, strong, first_head}) expect_right(form, gate, in_ranges(5));
  });
}

TEST_F(EmulatorGatedDeltaRanges, PoolsSkipsAndPlace) {
  Options x = options();
  x.lengths = {140, 3, 270, 0, 90};
  x.initial_pool = true;
  for (const std::vector<int64_t>& skipped : {std::vector<int64_t>{0, 3}, {2}, {1, 4}, {0, 1, 2, 3, 4}}) {
    x.skipped = skipped;
    for (Gate gate : {none, strong}) expect_right(x, gate, in_ranges(5));
  }
  x = options();
  x.in_place = true;
  expect_right(x, none, in_ranges(5, kWhole));
}

TEST_F(EmulatorGatedDeltaRanges, WithoutATensorEngine) {
  const Options x = options();
  for (Gate gate : {none, strong}) {
    Call engine(x), without(x);
    refill(engine, gate), refill(without, gate);
    EXPECT_EQ(outputs(engine, 1, in_ranges(5)), outputs(without, 1, in_ranges(5), "sm89"));
  }
}

// Whatever the order in which warps and blocks run.
TEST_F(EmulatorGatedDeltaRanges, TheSameBitsAgain) {
  const Options x = options();
  std::vector<uint8_t> first;
  for (uint32_t seed : {0u, 1u, 2u, 3u}) {
    Call call(x);
    refill(call, mostly);
    const std::vector<uint8_t> now = outputs(call, seed, in_ranges(6));
    if (seed == 0) first = now;
    EXPECT_EQ(now, first) << seed;
  }
}

// ---- What the plan offers ----

TEST(GatedDeltaRanges, WhereStatesFade) {
  const auto parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  for (auto [heads_k, heads_v, batch, tokens, ranges] : {std::array<int64_t, 5>{16, 48, 1, 32768, 44},
                                                         {16, 48, 4, 8192, 44},
                                                         {16, 32, 1, 32768, 66},
                                                         {2, 8, 1, 32768, 33}}) {
    PlannedShape shape{heads_k, heads_v, batch, tokens, parallel};
    const GatedDeltaParts parts = planned(shape);
    EXPECT_EQ(parts.ranges, ranges);
    EXPECT_LT(parts.least_piece, parts.most_early);
    EXPECT_EQ(parts.ahead_blocks, 0);
    shape.in_place = true;
    EXPECT_NE(planned(shape).least_piece, parts.least_piece);
  }
  EXPECT_EQ(planned({16, 48, 1, 32768, parallel, 132, FLASHDELTA_FP16}).ranges, 0);
  EXPECT_EQ(planned({2, 8, 1, 512, parallel}).ranges, 0);  // no room to start early
}

TEST(GatedDeltaRanges, WhereSequencesAreManyAndStatesDoNot) {
  constexpr auto off = FLASHDELTA_CONTEXT_PARALLEL_OFF;
  const GatedDeltaParts parts = planned({16, 48, 8, 1024, off});
  EXPECT_EQ(parts.ranges, 44);
  EXPECT_EQ(parts.least_piece, kWhole);
  EXPECT_EQ(planned({16, 80, 8, 1024, off}).ranges, 26);
  EXPECT_EQ(planned({16, 48, 1, 32768, off}).ranges, 0);
}

}  // namespace
}  // namespace flashdelta::test
