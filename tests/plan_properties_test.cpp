// What holds of every candidate: bytes, parts, fit, residency and ranking, over random tiles, head dims and
// architectures.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "plan/plan.hpp"

namespace flashdelta {
namespace {

int64_t sum(const Assessment& assessment) {
  int64_t total = 0;
  for (const auto& [name, bytes] : assessment.parts) total += bytes;
  return total;
}

struct Drawn {
  const ArchProfile* profile;
  PlanProblem problem;
  Candidate candidate;
};

// Mostly sound candidates, of any arch and operation, so that fits and refusals both occur.
Drawn draw() {
  const bool is_attention = *rc::gen::arbitrary<bool>();
  const int64_t limit = is_attention ? 65 : 33;
  Drawn drawn;
  drawn.profile = &arch_profiles()[*rc::gen::inRange<size_t>(0, arch_profiles().size())];
  drawn.problem.operation = is_attention ? PlanOperation::kAttentionForward : PlanOperation::kGatedDeltaForward;
  drawn.problem.head_dim = 8 * *rc::gen::inRange<int64_t>(1, limit);
  drawn.problem.head_dim_v = 8 * *rc::gen::inRange<int64_t>(1, limit);
  const int64_t warps = *rc::gen::inRange<int64_t>(1, 17);
  drawn.candidate.threads = 32 * warps;
  drawn.candidate.block_kv = 16 * *rc::gen::inRange<int64_t>(1, 17);
  drawn.candidate.stages = *rc::gen::inRange<int64_t>(is_attention ? 1 : 2, 5);
  if (is_attention) {
    drawn.candidate.block_q = 16 * warps * *rc::gen::inRange<int64_t>(1, 4);
    drawn.candidate.q_in_registers = *rc::gen::arbitrary<bool>();
  } else {
    drawn.candidate.block_q = drawn.candidate.block_kv;
    drawn.candidate.block_v = 16 * warps;
  }
  return drawn;
}

RC_GTEST_PROP(PlanProperty, FitsIffUnderTheLimit, ()) {
  const Drawn drawn = draw();
  const Assessment assessment = assess(*drawn.profile, drawn.problem, drawn.candidate);
  RC_ASSERT(assessment.fits() == (assessment.shared_bytes <= drawn.profile->shared_bytes_block));
  RC_ASSERT(assessment.fits() || assessment.reason == Reason::kSharedMemoryOverLimit);
  RC_ASSERT(assessment.fits() == assessment.detail.empty());
}

RC_GTEST_PROP(PlanProperty, PartsSumToTheTotal, ()) {
  const Drawn drawn = draw();
  const Assessment assessment = assess(*drawn.profile, drawn.problem, drawn.candidate);
  RC_ASSERT(sum(assessment) == assessment.shared_bytes);
}

RC_GTEST_PROP(PlanProperty, BytesGrowWithStagesAndTiles, ()) {
  const Drawn drawn = draw();
  const auto bytes = [&](const Candidate& candidate) {
    return assess(*drawn.profile, drawn.problem, candidate).shared_bytes;
  };
  Candidate more_stages = drawn.candidate, more_keys = drawn.candidate, from_shared = drawn.candidate;
  more_stages.stages++;
  more_keys.block_kv += 16;
  from_shared.q_in_registers = false;
  RC_ASSERT(bytes(more_stages) > bytes(drawn.candidate));
  RC_ASSERT(bytes(more_keys) > bytes(drawn.candidate));
  RC_ASSERT(bytes(from_shared) >= bytes(drawn.candidate));
}

RC_GTEST_PROP(PlanProperty, ResidencyIsTheMostThatFits, ()) {
  const Drawn drawn = draw();
  const ArchProfile& profile = *drawn.profile;
  const Assessment assessment = assess(profile, drawn.problem, drawn.candidate);
  const int64_t blocks = assessment.resident_blocks;
  RC_ASSERT(assessment.fits() == (blocks >= 1));
  const auto holds = [&](int64_t n) {
    return n <= profile.blocks_sm && n * block_threads(drawn.problem, drawn.candidate) <= profile.threads_sm &&
           n * ((assessment.shared_bytes + 127) / 128 * 128 + profile.shared_bytes_reserved) <= profile.shared_bytes_sm;
  };
  RC_PRE(assessment.fits());
  RC_ASSERT(holds(blocks));
  RC_ASSERT(!holds(blocks + 1));
}

RC_GTEST_PROP(PlanProperty, MoreRegistersNeverMeanMoreBlocks, ()) {
  const ArchProfile& profile = arch_profiles()[*rc::gen::inRange<size_t>(0, arch_profiles().size())];
  const int64_t threads = 32 * *rc::gen::inRange<int64_t>(1, 33);
  const int64_t registers = *rc::gen::inRange<int64_t>(1, 255);
  const int64_t bytes = *rc::gen::inRange<int64_t>(0, profile.shared_bytes_block + 1);
  const int64_t blocks = resident_blocks(profile, bytes, threads, registers);
  RC_ASSERT(resident_blocks(profile, bytes, threads, registers + 1) <= blocks);
  RC_ASSERT(blocks <= resident_blocks(profile, bytes, threads));
  RC_ASSERT(blocks * threads * registers <= profile.registers_sm);
}

RC_GTEST_PROP(PlanProperty, RankIsAPermutationWithFitsFirst, ()) {
  const Drawn drawn = draw();
  const std::vector<Candidate> candidates = table_candidates(drawn.problem);
  std::vector<Assessment> assessments;
  for (const Candidate& candidate : candidates) {
    assessments.push_back(assess(*drawn.profile, drawn.problem, candidate));
  }
  std::vector<size_t> order = rank(*drawn.profile, drawn.problem, candidates, assessments);
  RC_ASSERT(std::is_partitioned(order.begin(), order.end(), [&](size_t i) { return assessments[i].fits(); }));
  std::sort(order.begin(), order.end());
  RC_ASSERT(order.size() == candidates.size());
  for (size_t i = 0; i < order.size(); i++) RC_ASSERT(order[i] == i);
}

}  // namespace
}  // namespace flashdelta
