// The kernel table in a plan: a row is named where it runs, smaller heads are padded into it and say so, and the chosen
// candidate is the row that a long sequence gets.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/kernel_rows.hpp"
#include "plan/render.hpp"

namespace flashdelta {
namespace {

PlanReport plan(const std::string& arch, int64_t head_dim, int64_t head_dim_v, std::vector<Candidate> candidates = {}) {
  PlanReport report;
  const Status status = make_plan({.operation = PlanOperation::kAttentionForward,
                                   .arch = arch,
                                   .dtype = FLASHDELTA_BF16,
                                   .head_dim = head_dim,
                                   .head_dim_v = head_dim_v,
                                   .seqlen = std::nullopt,
                                   .candidates = std::move(candidates)},
                                  &report);
  EXPECT_TRUE(status.ok()) << status.message;
  return report;
}

TEST(PlanKernels, TheRowsOfHeadSize128And64AreNamed) {
  const PlanReport large = plan("sm120", 128, 128);
  EXPECT_EQ(large.candidates.at(0).kernel, "attention_forward_bf16_d128_q256");
  EXPECT_EQ(large.candidates.at(0).shared_bytes, 96 * 1024);
  EXPECT_EQ(large.candidates.at(0).resident_blocks, 1);
  const PlanReport small = plan("sm120", 64, 64);
  EXPECT_EQ(small.candidates.at(0).kernel, "attention_forward_bf16_d64_q128");
  EXPECT_EQ(small.candidates.at(0).resident_blocks, 2);
}

TEST(PlanKernels, EveryRowThatTakesTheHeadSizeIsACandidateAndTheLongOneIsChosen) {
  for (const ArchProfile& arch : arch_profiles()) {
    for (int64_t head_dim = 8; head_dim <= 128; head_dim += 8) {
      SCOPED_TRACE(std::string(arch.name) + " " + std::to_string(head_dim));
      const auto rows = forward_rows_for(FLASHDELTA_BF16, head_dim, head_dim);
      const PlanReport report = plan(std::string(arch.name), head_dim, head_dim);
      for (const ForwardRow* row : rows) {
        EXPECT_EQ(std::count_if(report.candidates.begin(), report.candidates.end(),
                                [&](const CandidateReport& c) { return c.kernel == row->name; }),
                  1)
            << row->name;
      }
      const ForwardRow* row = choose_forward_row(arch, rows, {});
      ASSERT_NE(row, nullptr);
      ASSERT_TRUE(report.chosen.has_value());
      const CandidateReport& chosen = report.candidates[*report.chosen];
      EXPECT_EQ(chosen.kernel, row->name);
      EXPECT_EQ(chosen.shared_bytes, row->config.shared_bytes()) << "a padded candidate needs what its kernel needs";
      const bool padded = row->config.head_dim != head_dim || row->config.head_dim_v != head_dim;
      EXPECT_EQ(chosen.padded_head_dim, padded ? row->config.head_dim : 0);
      EXPECT_EQ(plan_table(report).find("padded") != std::string::npos, padded);
    }
  }
}

TEST(PlanKernels, ACandidateOfOnesOwnFindsItsRow) {
  const PlanReport report = plan("sm120", 128, 128, {{256, 64, 0, 256, 1, false}, {256, 64, 0, 256, 2, false}});
  EXPECT_EQ(report.candidates.at(0).kernel, "attention_forward_bf16_d128_q256");
  EXPECT_FALSE(report.candidates.at(1).kernel.has_value());
  EXPECT_EQ(report.chosen, 0u);
}

TEST(PlanKernels, TwoBlocksAnSmWhereTheyFit) {
  const auto rows = forward_rows_for(FLASHDELTA_BF16, 128, 128);
  EXPECT_STREQ(choose_forward_row(*parse_arch("sm90"), rows, {})->name, "attention_forward_bf16_d128_q128");
  EXPECT_STREQ(choose_forward_row(*parse_arch("sm120"), rows, {})->name, "attention_forward_bf16_d128_q256");
}

// 1,024 blocks are 6 on each of 170 SMs, and 4.
TEST(PlanKernels, TheLastTilesAreSharedWhereTheyWouldLeaveTheCardIdle) {
  const ForwardConfig& config = forward_rows_for(FLASHDELTA_BF16, 128, 128)[0]->config;
  ASSERT_EQ(config.block_q, 256);
  const auto tail = [&](int64_t blocks, int64_t sm_count, int64_t keys) {
    return choose_tail(config, {.rows = 256, .pairs = blocks, .sm_count = sm_count}, keys);
  };
  const TailSplit split = tail(1024, 170, 8192);
  EXPECT_EQ(split.whole_blocks, 1020);
  EXPECT_EQ(split.parts, 32);
  EXPECT_EQ(split.shared_tiles(1024), 4);
  EXPECT_EQ(split.grid(1024), 1020 + 4 * 32);
  EXPECT_EQ(tail(1020, 170, 8192).parts, 1) << "whole waves";
  EXPECT_EQ(tail(4, 170, 8192).parts, 1) << "less than a wave is the other kernels'";
  EXPECT_EQ(tail(1024, 132, 8192).parts, 1) << "100 of 132 SMs are busy in the last wave";
  EXPECT_EQ(tail(1024, 0, 8192).parts, 1) << "any card";
  EXPECT_EQ(tail(1024, 170, 128).parts, 1) << "two tiles of keys";
  for (int64_t blocks = 1; blocks < 2000; blocks += 7) {
    for (const int64_t sm_count : {132, 170, 188}) {
      const TailSplit one = tail(blocks, sm_count, 4096);
      EXPECT_EQ(one.whole_blocks, one.parts > 1 ? blocks / sm_count * sm_count : blocks);
      EXPECT_LE(one.parts, 32);
      EXPECT_LE(one.shared_tiles(blocks) * (one.parts > 1 ? one.parts : 0), 4 * sm_count) << "parts are workspace";
    }
  }
}

TEST(PlanKernels, FewQueriesGetTheSmallestBlocks) {
  const ArchProfile& arch = *parse_arch("sm120");
  const auto rows = forward_rows_for(FLASHDELTA_BF16, 128, 128);
  const ForwardRow* few = choose_forward_row(arch, rows, {.rows = 64, .pairs = 1, .sm_count = 170});
  const ForwardRow* many = choose_forward_row(arch, rows, {.rows = 65536, .pairs = 1, .sm_count = 170});
  EXPECT_LT(few->config.block_q, many->config.block_q);
  EXPECT_TRUE(forward_rows_for(FLASHDELTA_BF16, 1024, 64).empty());
  EXPECT_TRUE(forward_rows_for(FLASHDELTA_FP32, 64, 64).empty());
}

}  // namespace
}  // namespace flashdelta
