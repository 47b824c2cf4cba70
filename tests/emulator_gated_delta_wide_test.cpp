// Blocks of 128 value columns on the emulator: against the float64 recurrence, and bit for bit what narrow blocks give,
// in every mix of the two. emulator_gated_delta_ranges_test.cpp has those that walk.
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

class EmulatorGatedDeltaWide : public EmulatorGatedDelta {};

Options options() {
  Options x;
  x.dim_k = x.dim_v = 128;
  x.group = 1;
  x.lengths = {70, 5, 0, 96};
  return x;
}

using Gate = double (*)(int64_t);
double none(int64_t) { return 0; }
double strong(int64_t) { return -4; }  // a chunk leaves nothing
// Every other head resets now and then, the others hardly fade.
double resets(int64_t i) { return i % 2 == 0 && i / 2 % 37 == 20 ? -INFINITY : -0.01; }

GatedDeltaParts wide_blocks(int64_t units) {
  GatedDeltaParts parts;
  parts.wide_units = units;
  return parts;
}

// Right in wide blocks, and the same bits in narrow ones.
void expect_wide(const Options& x, Gate gate, uint32_t seed = 1) {
  const int64_t units = static_cast<int64_t>(x.lengths.size()) * x.heads_k * x.group;
  Call wide(x), narrow(x);
  for (Call* call : {&wide, &narrow}) call->g.refill([&](int64_t i) { return gate(i); });
  expect_right_on_emulator(wide, seed, 1, wide_blocks(units));
  EXPECT_EQ(outputs(wide, seed, wide_blocks(units)), outputs(narrow, seed, wide_blocks(0)));
}

TEST_F(EmulatorGatedDeltaWide, GatesOfEveryKind) {
  Options x = options();
  x.heads_k = 2;
  for (Gate gate : {none, strong, resets}) expect_wide(x, gate);
}

TEST_F(EmulatorGatedDeltaWide, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{1, 3, 128, 128}, {1, 2, 72, 200}, {2, 1, 128, 72}, {1, 1, 104, 136}, {1, 1, 128, 256}};
  for (const auto& shape : shapes) {
    Options x;
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {37, 1, 64};
    expect_wide(x, resets, 3);
  }
}

TEST_F(EmulatorGatedDeltaWide, AnyMixGivesTheSameBits) {
  Options x = options();
  x.dim_v = 200;
  x.group = 2;
  Call narrow(x);
  const std::vector<uint8_t> expected = outputs(narrow, 1, wide_blocks(0));
  for (int64_t units : {1, 3, 7, 8}) {
    for (uint32_t seed : {0u, 5u}) {
      Call call(x);
      EXPECT_EQ(outputs(call, seed, wide_blocks(units)), expected) << units;
    }
  }
}

TEST_F(EmulatorGatedDeltaWide, StatesInEveryForm) {
  Options x = options();
  x.lengths = {40, 0, 33};
  for_each_form_of_state(x, [](const Options& form) {
    for (Gate gate : {none, strong}) expect_wide(form, gate);
  });
}

TEST_F(EmulatorGatedDeltaWide, PoolsSkipsAndPlace) {
  Options x = options();
  x.initial_pool = true;
  x.skipped = {0, 3};
  expect_wide(x, none);
  x = options();
  x.in_place = true;
  Call call(x);
  expect_right_on_emulator(call, 1, 1, wide_blocks(4));
}

TEST_F(EmulatorGatedDeltaWide, WithoutATensorEngine) {
  Options x = options();
  x.dim_k = 72;
  Call engine(x), none(x);
  EXPECT_EQ(outputs(engine, 1, wide_blocks(4)), outputs(none, 1, wide_blocks(4), "sm89"));
}

TEST(GatedDeltaWideBlocks, WhereBlocksAreMany) {
  constexpr auto off = FLASHDELTA_CONTEXT_PARALLEL_OFF;
  EXPECT_FALSE(planned({16, 48, 1, 32768, off}).wide());       // 96 narrow blocks have a place each
  EXPECT_EQ(planned({16, 48, 4, 8192, off}).wide_units, 132);  // a round, and narrow blocks in the second
  EXPECT_EQ(planned({16, 48, 4, 8192, off}).ranges, 0);
}

}  // namespace
}  // namespace flashdelta::test
