// The planner's known answers, each refusal, the ranking, the report and the text form of a candidate.
#include "plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/render.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kKiB = 1024;

const ArchProfile& arch(std::string_view name) { return *parse_arch(name); }

PlanProblem attention(int64_t head_dim, int64_t head_dim_v) {
  return {PlanOperation::kAttentionForward, FLASHDELTA_BF16, head_dim, head_dim_v, std::nullopt};
}

PlanProblem gated_delta(int64_t head_dim, int64_t head_dim_v) {
  return {PlanOperation::kGatedDeltaForward, FLASHDELTA_BF16, head_dim, head_dim_v, std::nullopt};
}

Candidate tile(int64_t block_q, int64_t block_kv, int64_t warps, int64_t stages, bool q_in_registers = false) {
  return {block_q, block_kv, 0, 32 * warps, stages, q_in_registers};
}

int64_t sum(const Assessment& assessment) {
  int64_t total = 0;
  for (const auto& [name, bytes] : assessment.parts) total += bytes;
  return total;
}

PlanReport plan(PlanOperation operation, const std::string& arch_name, int64_t head_dim,
                std::vector<Candidate> candidates = {}) {
  PlanReport report;
  const Status status = make_plan({.operation = operation,
                                   .arch = arch_name,
                                   .dtype = FLASHDELTA_BF16,
                                   .head_dim = head_dim,
                                   .head_dim_v = 0,
                                   .seqlen = 1000,
                                   .candidates = std::move(candidates)},
                                  &report);
  EXPECT_TRUE(status.ok()) << status.message;
  return report;
}

// Known answers.

TEST(Plan, OneStageOf128Needs96KiBAndFitsBoth) {
  for (const char* name : {"sm80", "sm120"}) {
    const Assessment assessment = assess(arch(name), attention(128, 128), tile(128, 128, 4, 1));
    EXPECT_EQ(assessment.shared_bytes, 96 * kKiB);
    EXPECT_TRUE(assessment.fits()) << name << ": " << assessment.detail;
    EXPECT_EQ(assessment.resident_blocks, 1);
  }
}

TEST(Plan, TwoStagesOf128Need160KiBAndFitSm80Alone) {
  const Assessment sm80 = assess(arch("sm80"), attention(128, 128), tile(128, 128, 4, 2));
  EXPECT_EQ(sm80.shared_bytes, 160 * kKiB);
  EXPECT_TRUE(sm80.fits()) << sm80.detail;
  const Assessment sm120 = assess(arch("sm120"), attention(128, 128), tile(128, 128, 4, 2));
  EXPECT_EQ(sm120.shared_bytes, 160 * kKiB);
  EXPECT_EQ(sm120.reason, Reason::kSharedMemoryOverLimit);
  EXPECT_EQ(sm120.resident_blocks, 0);
  EXPECT_NE(sm120.detail.find("163840"), std::string::npos) << sm120.detail;
  EXPECT_NE(sm120.detail.find("101376"), std::string::npos) << sm120.detail;
}

TEST(Plan, ABlockOf120KiBIsRefusedOnSm120WhateverTheSmHas) {
  const Candidate candidate = tile(128, 176, 4, 1);
  EXPECT_EQ(assess(arch("sm80"), attention(128, 128), candidate).shared_bytes, 120 * kKiB);
  EXPECT_TRUE(assess(arch("sm80"), attention(128, 128), candidate).fits());
  ArchProfile roomy = arch("sm120");
  EXPECT_EQ(assess(roomy, attention(128, 128), candidate).reason, Reason::kSharedMemoryOverLimit);
  roomy.shared_bytes_sm = 256 * kKiB;
  EXPECT_EQ(assess(roomy, attention(128, 128), candidate).reason, Reason::kSharedMemoryOverLimit);
  EXPECT_EQ(resident_blocks(roomy, 120 * kKiB, 128), 0);
}

TEST(Plan, TwoBlocksOf72KiBAreResidentOnSm80AndOneOnSm120) {
  const Candidate candidate = tile(64, 112, 4, 1);
  const Assessment sm80 = assess(arch("sm80"), attention(128, 128), candidate);
  EXPECT_EQ(sm80.shared_bytes, 72 * kKiB);
  EXPECT_EQ(sm80.resident_blocks, 2);
  EXPECT_EQ(assess(arch("sm120"), attention(128, 128), candidate).resident_blocks, 1);
}

TEST(Plan, TheLimitItselfFits) {
  const Candidate candidate = tile(64, 320, 4, 1);
  EXPECT_EQ(assess(arch("sm120"), attention(72, 72), candidate).shared_bytes, 99 * kKiB);
  EXPECT_TRUE(assess(arch("sm120"), attention(72, 72), candidate).fits());
  EXPECT_FALSE(assess(arch("sm120"), attention(72, 72), tile(128, 320, 4, 1)).fits());
}

TEST(Plan, QInRegistersSharesItsBytesWithV) {
  // Q 32 KiB, V 16 KiB a stage, K 16 KiB a stage.
  for (const auto& [stages, kib] : std::map<int64_t, int64_t>{{1, 32 + 16}, {2, 32 + 32}, {3, 48 + 48}}) {
    const Assessment assessment = assess(arch("sm90"), attention(128, 128), tile(128, 64, 4, stages, true));
    EXPECT_EQ(assessment.shared_bytes, kib * kKiB);
    EXPECT_EQ(sum(assessment), kib * kKiB);
  }
}

TEST(Plan, BlockVAndUnequalHeadDimsSizeTheirOwnBuffers) {
  Candidate candidate = tile(128, 64, 4, 2);
  EXPECT_EQ(assess(arch("sm120"), attention(192, 128), candidate).parts,
            (std::vector<std::pair<std::string, int64_t>>{{"q", 49152}, {"k", 49152}, {"v", 32768}}));
  candidate.block_v = 64;
  EXPECT_EQ(assess(arch("sm120"), attention(192, 128), candidate).parts.back().second, 16384);
}

TEST(Plan, GatedDeltaBudgetIsTheKernels) {
  const auto bytes = [](const Candidate& candidate) {
    return assess(arch("sm90"), gated_delta(128, 128), candidate).shared_bytes;
  };
  EXPECT_EQ(bytes({32, 32, 64, 128, 3, false}), 74752);
  EXPECT_EQ(bytes({32, 32, 128, 256, 3, false}), 87040);
  EXPECT_EQ(bytes({64, 64, 64, 128, 2, false}), 105472);
}

TEST(Plan, GatedDeltaPreparationIsItsScratchUpToHeadSize128) {
  const auto bytes = [](int64_t dim_k) { return gated_delta_prepare_shared_bytes({32, dim_k, 4, 2}); };
  EXPECT_EQ(bytes(128).kq, 16384);
  EXPECT_EQ(bytes(128).heads, 13568);
  EXPECT_EQ(bytes(64).total(), 20480);
  EXPECT_EQ(bytes(128).total(), 20480);
  EXPECT_EQ(bytes(256).total(), 33792);
  EXPECT_EQ(gated_delta_prepare_shared_bytes({32, 128, 3, 2}).total(), 17408);
}

TEST(Plan, GatedDeltaParts) {
  const Assessment assessment = assess(arch("sm120"), gated_delta(128, 64), {32, 32, 64, 128, 2, false});
  const std::vector<std::pair<std::string, int64_t>> parts{{"k", 16384},       {"q", 16384},     {"v", 8192},
                                                           {"t", 3072},        {"p", 3072},      {"gate", 1024},
                                                           {"barriers", 1024}, {"padding", 1024}};
  EXPECT_EQ(assessment.parts, parts);
}

TEST(Plan, ChunkIs32Where99KiBIsTheLimitAnd64Elsewhere) {
  for (const ArchProfile& profile : arch_profiles()) {
    for (int64_t head_dim : {16, 64, 128, 256}) {
      const PlanReport report = plan(PlanOperation::kGatedDeltaForward, std::string(profile.name), head_dim);
      ASSERT_TRUE(report.chosen.has_value()) << profile.name << " " << head_dim;
      // Chunk 64 with K = V = 256 needs more than SM80 has.
      const bool small = profile.shared_bytes_block <= 99 * kKiB || (profile.name == "sm80" && head_dim == 256);
      EXPECT_EQ(report.candidates[*report.chosen].block_kv, small ? 32 : 64) << profile.name << " " << head_dim;
      EXPECT_EQ(report.candidates[*report.chosen].block_q, report.candidates[*report.chosen].block_kv);
    }
  }
}

TEST(Plan, Chunk64IsRefusedUnderNinetyNineKiBAtHeadSize128) {
  const PlanReport report = plan(PlanOperation::kGatedDeltaForward, "sm120", 128);
  int refused = 0;
  for (const CandidateReport& candidate : report.candidates) {
    if (candidate.block_kv != 64) continue;
    refused++;
    EXPECT_FALSE(candidate.fits);
    EXPECT_EQ(candidate.reason, "shared_memory_over_limit");
    EXPECT_NE(candidate.detail.find(std::to_string(candidate.shared_bytes)), std::string::npos);
    EXPECT_NE(candidate.detail.find("101376"), std::string::npos);
  }
  EXPECT_GT(refused, 0);
}

TEST(Plan, FewTokensGoTokenByToken) {
  PlanRequest request{.operation = PlanOperation::kGatedDeltaForward,
                      .arch = "sm120",
                      .dtype = FLASHDELTA_BF16,
                      .head_dim = 128,
                      .head_dim_v = 0,
                      .seqlen = 16,
                      .candidates = {}};
  PlanReport report;
  ASSERT_TRUE(make_plan(request, &report).ok());
  ASSERT_EQ(report.chosen, 0u);
  const CandidateReport& chosen = report.candidates[0];
  EXPECT_EQ(chosen.kernel, "gated_delta_recurrent_bf16_k128");
  EXPECT_EQ(chosen.block_kv, 1);
  EXPECT_EQ(chosen.block_v, 64);
  EXPECT_EQ(chosen.shared_bytes, 4224);
  EXPECT_EQ(chosen.resident_blocks, 4);
  EXPECT_EQ(chosen.kv_iterations, 16);
  EXPECT_NE(plan_table(report).find("* chosen: token by token"), std::string::npos);
  request.seqlen = 17;
  ASSERT_TRUE(make_plan(request, &report).ok());
  EXPECT_EQ(report.candidates[*report.chosen].block_kv, 32);
  EXPECT_EQ(report.candidates[*report.chosen].kernel, "gated_delta_forward_bf16_k128_v64");
  EXPECT_EQ(report.why, "");
}

// Refusals.

struct RefusalCase {
  Reason reason;
  PlanProblem problem;
  Candidate candidate;
  const char *needed, *allowed;  // both numbers are in the sentence
};

std::vector<RefusalCase> refusal_cases() {
  PlanProblem fp32 = attention(128, 128);
  fp32.dtype = FLASHDELTA_FP32;
  const Candidate good = tile(64, 64, 4, 1);
  const Candidate chunk{32, 32, 128, 128, 2, false};
  return {
      {Reason::kDtypeNot16Bit, fp32, good, "32", "16"},
      {Reason::kHeadDimNotMultipleOf8, attention(100, 128), good, "100", "8"},
      {Reason::kHeadDimVNotMultipleOf8, attention(128, 4), good, "4", "8"},
      {Reason::kHeadDimOverLimit, attention(520, 128), tile(16, 16, 1, 1), "520", "512"},
      {Reason::kHeadDimVOverLimit, gated_delta(128, 264), chunk, "264", "256"},
      {Reason::kBlockKvNotMultipleOf16, attention(128, 128), tile(64, 24, 4, 1), "24", "16"},
      {Reason::kThreadsNotMultipleOf32, attention(128, 128), {50, 64, 0, 100, 1, false}, "100", "32"},
      {Reason::kThreadsOverBlockLimit, attention(16, 16), tile(1024, 16, 64, 1), "2048", "1024"},
      {Reason::kBlockQNotMultipleOfWarpRows, attention(128, 128), tile(96, 32, 4, 1), "192", "128"},
      {Reason::kBlockVNotMultipleOf8, attention(128, 128), {64, 64, 20, 128, 1, false}, "20", "8"},
      {Reason::kBlockVOverHeadDimV, attention(128, 64), {64, 64, 72, 128, 1, false}, "72", "64"},
      {Reason::kBlockQNotBlockKv, gated_delta(128, 128), {64, 32, 128, 128, 2, false}, "64", "32"},
      {Reason::kBlockVNotMultipleOfWarps, gated_delta(128, 128), {32, 32, 96, 128, 2, false}, "96", "64"},
      {Reason::kStagesUnderTwo, gated_delta(128, 128), {32, 32, 128, 128, 1, false}, "1", "2"},
      {Reason::kQInRegisters, gated_delta(128, 128), {32, 32, 128, 128, 2, true}, "1", "0"},
      {Reason::kStateOverRegisters, gated_delta(256, 256), {32, 32, 128, 128, 2, false}, "256", "255"},
      {Reason::kSharedMemoryOverLimit, attention(128, 128), tile(128, 128, 4, 2), "163840", "101376"},
  };
}

TEST(Plan, EveryRefusalHasItsReasonAndBothNumbers) {
  std::set<Reason> seen;
  for (const RefusalCase& c : refusal_cases()) {
    SCOPED_TRACE(reason_name(c.reason));
    const Assessment assessment = assess(arch("sm120"), c.problem, c.candidate);
    EXPECT_EQ(assessment.reason, c.reason) << assessment.detail;
    EXPECT_NE(assessment.detail.find(c.needed), std::string::npos) << assessment.detail;
    EXPECT_NE(assessment.detail.find(c.allowed), std::string::npos) << assessment.detail;
    EXPECT_EQ(assessment.detail.find('\n'), std::string::npos);
    EXPECT_EQ(assessment.resident_blocks, 0);
    seen.insert(c.reason);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(Reason::kSharedMemoryOverLimit)) << "a reason has no case";
}

TEST(Plan, ReasonNamesAreDistinctSnakeCase) {
  std::set<std::string> names;
  for (int i = 1; i <= static_cast<int>(Reason::kSharedMemoryOverLimit); i++) {
    const std::string name = reason_name(static_cast<Reason>(i));
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << name;
    EXPECT_NE(name, "unknown") << i;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_STREQ(reason_name(Reason::kNone), "");
  EXPECT_EQ(names.count("shared_memory_over_limit"), 1u);
}

TEST(Plan, RowsAWarpMustBeWhole) {
  EXPECT_TRUE(assess(arch("sm120"), attention(128, 128), tile(128, 64, 4, 1)).fits());
  EXPECT_TRUE(assess(arch("sm120"), attention(128, 128), tile(192, 32, 4, 1)).fits());
  EXPECT_FALSE(assess(arch("sm120"), attention(128, 128), tile(64, 64, 8, 1)).fits());
}

// Residency.

TEST(Plan, ResidencyCountsEachLimit) {
  const ArchProfile& sm120 = arch("sm120");
  EXPECT_EQ(resident_blocks(sm120, 49 * kKiB, 128), 2) << "49 + 1 KiB twice is the SM's 100";
  EXPECT_EQ(resident_blocks(sm120, 49 * kKiB + 1, 128), 1);
  EXPECT_EQ(resident_blocks(sm120, 99 * kKiB, 128), 1);
  EXPECT_EQ(resident_blocks(sm120, 99 * kKiB + 1, 128), 0);
  EXPECT_EQ(resident_blocks(sm120, kKiB, 1024), 1) << "1536 threads an SM";
  EXPECT_EQ(resident_blocks(sm120, kKiB, 512), 3);
  EXPECT_EQ(resident_blocks(sm120, 0, 32), 24) << "blocks an SM";
  EXPECT_EQ(resident_blocks(arch("sm86"), 0, 32), 16);
  EXPECT_EQ(resident_blocks(sm120, kKiB, 128, 255), 2) << "8 warps of 255 registers an SM";
  EXPECT_EQ(resident_blocks(sm120, kKiB, 256, 255), 1);
  EXPECT_EQ(resident_blocks(sm120, kKiB, 128, 168), 3) << "12 warps of 168";
  EXPECT_EQ(resident_blocks(sm120, kKiB, 288, 255), 0) << "9 warps of 255";
  EXPECT_EQ(resident_blocks(sm120, kKiB, 128, 256), 0);
}

// Ranking.

TEST(Plan, Sm120PrefersEightWarpsWhereFourStandAlone) {
  const PlanReport report = plan(PlanOperation::kAttentionForward, "sm120", 128);
  ASSERT_EQ(report.chosen, 0u);
  const CandidateReport& chosen = report.candidates[0];
  EXPECT_EQ(chosen.warps, 8);
  EXPECT_EQ(chosen.block_q, 256);
  EXPECT_EQ(chosen.block_kv, 64);
  EXPECT_EQ(chosen.shared_bytes, 96 * kKiB);
  // At head size 64 four warps fit twice, and were measured faster than eight.
  const PlanReport small = plan(PlanOperation::kAttentionForward, "sm120", 64);
  EXPECT_EQ(small.candidates[*small.chosen].warps, 4);
  EXPECT_GE(small.candidates[*small.chosen].resident_blocks, 2);
}

TEST(Plan, SomethingFitsEveryHeadDimOnEveryArch) {
  for (const ArchProfile& profile : arch_profiles()) {
    for (int64_t head_dim = 8; head_dim <= 512; head_dim += 8) {
      for (PlanOperation operation : {PlanOperation::kAttentionForward, PlanOperation::kGatedDeltaForward}) {
        if (operation == PlanOperation::kGatedDeltaForward && head_dim > 256) continue;
        const PlanReport report = plan(operation, std::string(profile.name), head_dim);
        ASSERT_TRUE(report.chosen.has_value()) << profile.name << " " << report.operation << " " << head_dim;
      }
    }
  }
}

TEST(Plan, TableIsRankedFitsFirst) {
  const PlanReport report = plan(PlanOperation::kAttentionForward, "sm120", 256);
  EXPECT_TRUE(std::is_partitioned(report.candidates.begin(), report.candidates.end(),
                                  [](const CandidateReport& candidate) { return candidate.fits; }));
  EXPECT_TRUE(report.candidates.front().fits);
  EXPECT_FALSE(report.candidates.back().fits);
}

// The report.

TEST(Plan, ReportNamesTheTargetAndHowOutputLeaves) {
  for (const ArchProfile& profile : arch_profiles()) {
    const PlanReport report = plan(PlanOperation::kAttentionForward, std::string(profile.target), 128);
    EXPECT_EQ(report.operation, "attention_forward");
    EXPECT_EQ(report.arch, profile.name);
    EXPECT_EQ(report.target, profile.target);
    EXPECT_EQ(report.algorithm, "mma_sync_sm80");
    EXPECT_EQ(report.output_path, "vector_store");
    EXPECT_EQ(report.shared_limit, profile.shared_bytes_block);
  }
  EXPECT_EQ(output_path(AlgorithmClass::kWgmmaSm90), OutputPath::kBulkStore);
  EXPECT_EQ(output_path(AlgorithmClass::kMmaSyncSm80), OutputPath::kVectorStore);
}

TEST(Plan, OwnCandidatesKeepTheirOrderAndTheBestIsChosen) {
  const PlanReport report = plan(PlanOperation::kAttentionForward, "sm120", 128,
                                 {tile(128, 128, 4, 2), tile(128, 128, 4, 1), tile(128, 128, 8, 1)});
  ASSERT_EQ(report.candidates.size(), 3u);
  EXPECT_EQ(report.candidates[0].reason, "shared_memory_over_limit");
  EXPECT_TRUE(report.candidates[1].fits);
  EXPECT_EQ(report.chosen, 2u);
  EXPECT_EQ(report.candidates[2].kv_iterations, 8) << "1000 keys, 128 at a time";
  EXPECT_FALSE(report.candidates[2].kernel.has_value());
  EXPECT_EQ(report.candidates[1].warps, 4);
  EXPECT_EQ(report.candidates[1].block_v, 128);
}

TEST(Plan, NothingChosenWhereNothingFits) {
  EXPECT_FALSE(plan(PlanOperation::kAttentionForward, "sm120", 128, {tile(128, 128, 4, 2)}).chosen.has_value());
  EXPECT_FALSE(plan(PlanOperation::kAttentionForward, "sm120", 100).chosen.has_value());
}

TEST(Plan, StagesDefaultToTheFewestTheOperationRunsWith) {
  EXPECT_EQ(plan(PlanOperation::kAttentionForward, "sm120", 128, {{64, 64}}).candidates[0].stages, 1);
  EXPECT_EQ(plan(PlanOperation::kGatedDeltaForward, "sm120", 128, {{32, 32}}).candidates[0].stages, 2);
}

TEST(Plan, SeqlenGivesIterations) {
  PlanRequest request{.operation = PlanOperation::kGatedDeltaForward,
                      .arch = "sm120",
                      .dtype = FLASHDELTA_FP16,
                      .head_dim = 128,
                      .head_dim_v = 0,
                      .seqlen = std::nullopt,
                      .candidates = {{32, 32}}};
  PlanReport report;
  ASSERT_TRUE(make_plan(request, &report).ok());
  EXPECT_FALSE(report.candidates[0].kv_iterations.has_value());
  for (const auto& [seqlen, iterations] : std::map<int64_t, int64_t>{{0, 0}, {1, 1}, {32, 1}, {33, 2}, {32768, 1024}}) {
    request.seqlen = seqlen;
    ASSERT_TRUE(make_plan(request, &report).ok());
    EXPECT_EQ(report.candidates[0].kv_iterations, iterations) << seqlen;
  }
}

TEST(Plan, WrongRequestsNameTheMember) {
  const PlanRequest good{.operation = PlanOperation::kAttentionForward,
                         .arch = "sm120",
                         .dtype = FLASHDELTA_BF16,
                         .head_dim = 128,
                         .head_dim_v = 0,
                         .seqlen = std::nullopt,
                         .candidates = {}};
  const auto message = [](const PlanRequest& request) {
    PlanReport report;
    const Status status = make_plan(request, &report);
    EXPECT_EQ(status.code, FLASHDELTA_INVALID_ARGUMENT);
    EXPECT_EQ(status.message.find('\n'), std::string::npos);
    return status.message.substr(0, status.message.find(':'));
  };
  PlanRequest request = good;
  request.arch = "sm70";
  EXPECT_EQ(message(request), "arch");
  request = good;
  request.dtype = FLASHDELTA_INT32;
  EXPECT_EQ(message(request), "dtype");
  request = good;
  request.head_dim = 0;
  EXPECT_EQ(message(request), "head_dim");
  request = good;
  request.head_dim_v = -8;
  EXPECT_EQ(message(request), "head_dim_v");
  request = good;
  request.seqlen = -1;
  EXPECT_EQ(message(request), "seqlen");
  request = good;
  request.candidates = {{0, 64}};
  EXPECT_EQ(message(request), "block_q");
  request.candidates = {{64, int64_t{1} << 40}};
  EXPECT_EQ(message(request), "block_kv");
}

TEST(Plan, Fp32IsAnAnswer) {
  PlanReport report;
  ASSERT_TRUE(make_plan({.operation = PlanOperation::kAttentionForward,
                         .arch = "120",
                         .dtype = FLASHDELTA_FP32,
                         .head_dim = 64,
                         .head_dim_v = 0,
                         .seqlen = std::nullopt,
                         .candidates = {}},
                        &report)
                  .ok());
  EXPECT_FALSE(report.chosen.has_value());
  for (const CandidateReport& candidate : report.candidates) EXPECT_EQ(candidate.reason, "dtype_not_16_bit");
}

TEST(Plan, TableShowsEveryCandidateAndRefusal) {
  const PlanReport report =
      plan(PlanOperation::kAttentionForward, "sm120", 128, {tile(128, 128, 4, 1), tile(128, 128, 4, 2)});
  const std::string table = plan_table(report);
  for (const char* text : {"attention_forward on sm120", "sm_120", "mma_sync_sm80", "vector_store", "101376", "97%",
                           "q 32768 + k 65536 + v 65536", "shared_memory_over_limit", "refused: 128x128", "163840"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
  EXPECT_EQ(table.back(), '\n');
  EXPECT_EQ(table.find(" \n"), std::string::npos) << "a line ends in a space";
}

// The text form.

TEST(ParseCandidate, DefaultsAndAnyOrder) {
  Candidate candidate;
  ASSERT_TRUE(parse_candidate("block_q=128,block_kv=64", &candidate).ok());
  EXPECT_EQ(candidate, (Candidate{128, 64, 0, 128, 0, false}));
  ASSERT_TRUE(parse_candidate("q_in_registers,stages=2,block_v=64,warps=8,block_kv=32,block_q=256", &candidate).ok());
  EXPECT_EQ(candidate, (Candidate{256, 32, 64, 256, 2, true}));
  ASSERT_TRUE(parse_candidate("threads=100,block_q=1,block_kv=1", &candidate).ok());
  EXPECT_EQ(candidate.threads, 100);
}

TEST(ParseCandidate, ErrorsNameTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "candidate:"},
      {"block_q=128", "block_kv: expected to be given"},
      {"block_kv=128", "block_q: expected to be given"},
      {"block_q=128,block_kv=128,", "candidate:"},
      {"block_q=128,block_kv=128,warp=4", "'warp'"},
      {"block_q=0,block_kv=128", "block_q: expected a whole number from 1 to 65536, got '0'"},
      {"block_q=-1,block_kv=128", "got '-1'"},
      {"block_q=1e3,block_kv=128", "got '1e3'"},
      {"block_q=,block_kv=128", "block_q:"},
      {"block_q,block_kv=128", "block_q:"},
      {"block_q=65537,block_kv=128", "got '65537'"},
      {"block_q=99999999999999999999,block_kv=128", "block_q:"},
      {"block_q=1,block_q=1,block_kv=1", "block_q: expected to be named once"},
      {"block_q=1,block_kv=1,q_in_registers=1", "q_in_registers: expected no value"},
      {"block_q=1,block_kv=1,q_in_registers,q_in_registers", "q_in_registers: expected to be named once"},
      {"block_q=1,block_kv=1,warps=1,threads=32", "threads: expected threads or warps"},
  };
  for (const auto& [text, expected] : cases) {
    Candidate candidate;
    const Status status = parse_candidate(text, &candidate);
    EXPECT_EQ(status.code, FLASHDELTA_INVALID_ARGUMENT) << text;
    EXPECT_NE(status.message.find(expected), std::string::npos) << text << " -> " << status.message;
    EXPECT_EQ(status.message.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace flashdelta
