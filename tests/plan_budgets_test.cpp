// docs/shared-memory.md, as arithmetic: public kernels' budgets against SM120's 99 KiB, beside this project's.
#include <gtest/gtest.h>

#include "core/profiles.hpp"
#include "plan/plan.hpp"
#include "plan/public_shared_memory.hpp"
#include "plan/shared_memory.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kKiB = 1024;

bool fits(const char* arch, int64_t bytes) { return bytes <= parse_arch(arch)->shared_bytes_block; }

TEST(Budgets, StatePreparationFitsOnlyWithItsMatrixInTheStatesBuffer) {
  const auto bytes = [](bool shared) { return state_preparation_bytes({32, 128, 128, 2, 2, shared}); };
  EXPECT_EQ(bytes(false).transition, 32 * kKiB);
  EXPECT_EQ(bytes(false).total(), 127616);  // 124.6 KiB
  EXPECT_EQ(bytes(true).total(), 94848);    // 92.6 KiB
  EXPECT_GT(bytes(false).total(), 100 * kKiB);
  EXPECT_LT(bytes(true).total(), 100 * kKiB);
  EXPECT_FALSE(fits("sm120", bytes(false).total()));
  EXPECT_TRUE(fits("sm120", bytes(true).total()));
  EXPECT_TRUE(fits("sm90", bytes(false).total()));
  EXPECT_EQ(resident_blocks(*parse_arch("sm120"), bytes(true).total(), 512), 1);
}

TEST(Budgets, TheFusedBackwardDoesNotFitAtThirtyTwoTokens) {
  const FusedBackwardBytes whole = fused_backward_bytes({32, 128, 128, 2, false});
  EXPECT_EQ(whole.states, 64 * kKiB);
  EXPECT_EQ(whole.products, 24 * kKiB);
  EXPECT_EQ(whole.squares, 6 * kKiB);
  EXPECT_EQ(whole.inputs, 32 * kKiB);
  EXPECT_EQ(whole.gradient, 8 * kKiB);
  EXPECT_EQ(whole.inverse, 2 * kKiB);
  EXPECT_EQ(whole.total(), 136 * kKiB);
  EXPECT_FALSE(fits("sm120", whole.total()));
  EXPECT_TRUE(fits("sm80", whole.total()));
  EXPECT_TRUE(fits("sm90", whole.total()));

  const int64_t shared = fused_backward_bytes({32, 128, 128, 2, true}).total();
  EXPECT_EQ(shared, 128 * kKiB);
  EXPECT_FALSE(fits("sm120", shared));
}

TEST(Budgets, SixteenTokensFitAndAreTooFew) {
  const int64_t chunk = 16;
  const int64_t bytes = fused_backward_bytes({chunk, 128, 128, 2, false}).total();
  EXPECT_EQ(bytes, 98 * kKiB);
  EXPECT_TRUE(fits("sm120", bytes));
  EXPECT_LT(chunk, fused_backward_least_chunk);
}

// What is here instead: the state in registers leaves shared memory to what a chunk brings.
TEST(Budgets, TheKernelsHereFit) {
  const int64_t sequential = gated_delta_shared_bytes({32, 64, 128, 3, 2}).total();
  const int64_t preparation = gated_delta_prepare_shared_bytes({32, 128, 4, 2}).total();
  EXPECT_EQ(sequential, 73 * kKiB);
  EXPECT_EQ(preparation, 20 * kKiB);
  EXPECT_EQ(resident_blocks(*parse_arch("sm120"), sequential, 160), 1);
  EXPECT_EQ(resident_blocks(*parse_arch("sm120"), preparation, 128), 4);
}

}  // namespace
}  // namespace flashdelta
