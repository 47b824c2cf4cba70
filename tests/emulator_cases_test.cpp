// Every gated delta case of the list on the emulator, through the C ABI, against the oracle. What no kernel does must
// be refused by name; cases of the long lists run at the size that the list has for every machine.
#include <cstdio>

#include "cases/cases.hpp"
#include "device/gpu_backends.hpp"
#include "support.hpp"

namespace flashdelta {

void PrintTo(const Case& one, std::ostream* out) { *out << one.name << " (" << one.source << ")"; }

namespace test {
namespace {

constexpr uint64_t seed = 11;
constexpr double most_flops = 3e9;  // of a case, as call_cost counts them

int ran = 0, refused = 0, too_long = 0;

class EmulatorGatedDeltaCases : public testing::TestWithParam<Case> {};

TEST_P(EmulatorGatedDeltaCases, agree_with_the_oracle) {
  const Case& one = GetParam();
  if (const Status status = emulator_available(); !status.ok()) GTEST_SKIP() << status.message;
  Call call = call_of(one.operation, one.inputs(one, seed), one.options);
  ASSERT_FALSE(HasFailure());
  if (call_cost(call).flops > most_flops) {
    too_long++;
    return;
  }
  poison(call.outputs.at("o"));
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = FLASHDELTA_BACKEND_EMULATOR;
  const Status status = run_call(call, execution);
  if (status.code == FLASHDELTA_NOT_SUPPORTED) {
    EXPECT_TRUE(one.dtype == FLASHDELTA_FP32 || one.options.chunk == 64) << status.message;
    refused++;
    return;
  }
  ASSERT_TRUE(status.ok()) << status.message;
  ran++;
  expect_right_on_gpu(call, one, seed);
}

std::vector<Case> gated_delta_list() {
  std::vector<Case> list;
  for (const Case& one : cases()) {
    if (one.operation == Operation::gated_delta_forward) list.push_back(one);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, EmulatorGatedDeltaCases, testing::ValuesIn(gated_delta_list()),
                         [](const auto& one) { return one.param.name; });

class CountCases : public testing::Environment {
 public:
  void TearDown() override {
    std::printf("gated delta cases on the emulator: %d run, %d refused by name, %d too long\n", ran, refused, too_long);
  }
};

const auto* const count_cases = testing::AddGlobalTestEnvironment(new CountCases);

}  // namespace
}  // namespace test
}  // namespace flashdelta
