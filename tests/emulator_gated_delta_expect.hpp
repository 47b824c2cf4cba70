// gated_delta_forward on the emulator against the float64 recurrence.
#pragma once

#include "cpu_gated_delta_expect.hpp"
#include "device/gpu_backends.hpp"
#include "emulator_gated_delta_run.hpp"

namespace flashdelta::test {

class EmulatorGatedDelta : public testing::Test {
 protected:
  void SetUp() override {
    const Status status = emulator_available();
    if (!status.ok()) GTEST_SKIP() << status.message;
  }
};

// The tolerances of the project's contract, which expect_outputs and expect_states scale from.
inline double contract_factor(const Options& x) { return x.dtype == FLASHDELTA_BF16 ? 1.5 : 2; }

// Relative L2 errors by the inputs' dtype, whatever the outputs' is.
inline void expect_close(Call& call, const Answers& answers, const std::vector<uint8_t>& before, double factor) {
  const Options options = call.options;
  call.options.o_dtype = call.options.state_dtype = options.dtype;
  if (options.dtype == FLASHDELTA_FP16 && options.state_dtype == FLASHDELTA_BF16) {
    call.options.state_dtype = FLASHDELTA_BF16;
  }
  expect_outputs(call, answers, factor);
  expect_states(call, answers, before, factor);
  call.options = options;
  expect_rest_untouched(call, answers.problem);
}

// o, the final states and checkpoints of a call on the emulator.
inline std::vector<uint8_t> outputs(Call& call, uint32_t seed = 1, const std::optional<GatedDeltaParts>& parts = {},
                                    const char* arch = "sm120") {
  GatedDeltaProblem problem;
  EXPECT_TRUE(call.bind(&problem).ok());
  const Status status = emulate(problem, seed, parts, arch);
  EXPECT_TRUE(status.ok()) << status.message;
  std::vector<uint8_t> bytes = call.o.bytes();
  for (const Buffer* states : {&call.final_state(), &call.checkpoints}) {
    bytes.insert(bytes.end(), states->bytes().begin(), states->bytes().end());
  }
  return bytes;
}

inline void expect_right_on_emulator(Call& call, uint32_t seed = 1, double factor = 1,
                                     const std::optional<GatedDeltaParts>& parts = {}) {
  const Answers answers = expected_answers(call);
  ASSERT_FALSE(::testing::Test::HasFailure());
  const std::vector<uint8_t> before = call.final_state().bytes();
  const Status status = emulate(answers.problem, seed, parts);
  ASSERT_TRUE(status.ok()) << status.message;
  expect_close(call, answers, before, factor * contract_factor(call.options));
}

inline void expect_right_on_emulator(const Options& options, uint32_t seed = 1) {
  Call call(options);
  expect_right_on_emulator(call, seed);
}

}  // namespace flashdelta::test
