// Every case of the list, on the CPU backend, against the oracle. Outputs are NaN before the run; what the contract
// leaves alone must still be what it was.
#include "cases/cases.hpp"

#include <algorithm>
#include <cstdio>

#include "core/problem.hpp"
#include "support.hpp"

namespace flashdelta {

// How GoogleTest prints a case.
void PrintTo(const Case& one, std::ostream* out) { *out << one.name << " (" << one.source << ")"; }

namespace test {
namespace {

constexpr uint64_t seed = 20261129;

class Cases : public testing::TestWithParam<Case> {};

// NaN wherever the run must write. A pool's slots that it must not write, as check_call sees them, keep initial_state's
// bits; the contract promises nothing else of final_state, so there only written slots are poisoned.
void poison_outputs(Call& call) {
  for (auto& [name, tensor] : call.outputs) {
    if (name != "final_state") poison(tensor);
  }
  if (call.operation != Operation::gated_delta_forward) return;
  GatedDeltaProblem problem;
  ASSERT_TRUE(make_problem(call.gated_delta, &problem).ok());
  const HostTensor& state = call.outputs.at("final_state");
  const int64_t size = problem.heads_v * problem.dim_k * problem.dim_v;
  const auto poison_slot = [&](int64_t slot) {
    if (slot < 0) return;
    for (int64_t i = 0; i < size; i++) state.set(slot * size + i, std::numeric_limits<float>::quiet_NaN());
  };
  for (int64_t n = 0; n < problem.sequences; n++) {
    if (problem.skipped(n)) continue;
    poison_slot(problem.final_slot(n));
    for (int64_t t = 0; problem.token_indices && t < problem.sequence(n).length; t++) {
      poison_slot(problem.token_indices.at(n, t));
    }
  }
}

// Rows of o past the last sequence, still the NaN that they were.
void expect_tail_untouched(const Call& call) {
  const bool attention = call.operation == Operation::attention_forward;
  const auto offsets = call.inputs.find(attention ? "cu_seqlens_q" : "cu_seqlens");
  if (offsets == call.inputs.end()) return;
  const HostTensor& o = call.outputs.at("o");
  const int64_t tokens = attention ? o.shape()[0] : o.shape()[1];
  const int64_t end = offsets->second.get_int(offsets->second.numel() - 1);
  const int64_t row = o.numel() / std::max<int64_t>(tokens, 1);
  for (int64_t i = end * row; i < tokens * row; i++) ASSERT_TRUE(std::isnan(o.get(i))) << "o, row " << i / row;
  if (!attention) return;
  const HostTensor& lse = call.outputs.at("lse");
  for (int64_t head = 0; head < lse.shape()[0]; head++) {
    for (int64_t token = end; token < tokens; token++) ASSERT_TRUE(std::isnan(lse.get(head * tokens + token)));
  }
}

// A skipped sequence owns rows of checkpoints that nobody writes.
void expect_skipped_checkpoints_untouched(const Call& call) {
  if (call.outputs.count("checkpoints") == 0) return;
  GatedDeltaProblem problem;
  ASSERT_TRUE(make_problem(call.gated_delta, &problem).ok());
  const HostTensor& checkpoints = call.outputs.at("checkpoints");
  const int64_t size = problem.heads_v * problem.dim_k * problem.dim_v;
  for (int64_t n = 0; n < problem.sequences; n++) {
    if (!problem.skipped(n)) continue;
    for (int64_t i = problem.checkpoint_row(n) * size; i < problem.checkpoint_row(n + 1) * size; i++) {
      ASSERT_TRUE(std::isnan(checkpoints.get(i))) << "checkpoints, row " << i / size;
    }
  }
}

TEST_P(Cases, agrees_with_the_oracle) {
  const Case& one = GetParam();
  Call call = call_of(one.operation, one.inputs(one, seed), one.options);
  ASSERT_FALSE(HasFailure());
  ASSERT_NO_FATAL_FAILURE(poison_outputs(call));
  ASSERT_NO_FATAL_FAILURE(expect_right(call, seed));
  expect_tail_untouched(call);
  if (one.operation == Operation::gated_delta_forward) expect_skipped_checkpoints_untouched(call);
}

INSTANTIATE_TEST_SUITE_P(All, Cases, testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

TEST(CaseList, names_are_unique_and_lower_snake) {
  std::map<std::string, int> seen;
  for (const Case& one : cases()) {
    EXPECT_EQ(++seen[one.name], 1) << one.name;
    EXPECT_EQ(one.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << one.name;
    EXPECT_FALSE(one.source.empty()) << one.name;
  }
}

// FlashQLA's forward list is there by name: 19 shapes, from a state and from zero, in both layouts, at both sizes.
TEST(CaseList, has_all_of_flashqlas_forward_list) {
  const auto count = [](const std::vector<Case>& list) {
    return std::count_if(list.begin(), list.end(),
                         [](const Case& one) { return one.name.rfind("gdn_flashqla_", 0) == 0; });
  };
  EXPECT_EQ(count(cases()), 19 * 4);
  EXPECT_EQ(count(full_size_cases()), 19 * 4);
  for (const Case& one : full_size_cases()) EXPECT_NE(one.inputs, nullptr) << one.name;
}

TEST(CaseList, inputs_follow_the_seed) {
  const Case& one = cases().front();
  EXPECT_TRUE(same_bits(one.inputs(one, 1).at("q"), one.inputs(one, 1).at("q")));
  EXPECT_FALSE(same_bits(one.inputs(one, 1).at("q"), one.inputs(one, 2).at("q")));
}

class CountCases : public testing::Environment {
 public:
  void TearDown() override {
    int ran = 0;
    const auto* unit = testing::UnitTest::GetInstance();
    for (int i = 0; i < unit->total_test_suite_count(); i++) {
      const auto* suite = unit->GetTestSuite(i);
      if (std::string(suite->name()) == "All/Cases") ran = suite->test_to_run_count();
    }
    std::printf("cases run: %d of %zu\n", ran, cases().size());
  }
};

const auto* const count_cases = testing::AddGlobalTestEnvironment(new CountCases);

}  // namespace
}  // namespace test
}  // namespace flashdelta
