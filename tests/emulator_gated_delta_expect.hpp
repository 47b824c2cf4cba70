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

// Calls f(x) for a state of each layout and dtype: read and written, written alone, read alone.
template <class F>
void for_each_form_of_state(Options x, const F& f) {
  for (bool value_major : {false, true}) {
    for (auto state_dtype : {FLASHDELTA_FP32, FLASHDELTA_BF16}) {
      x.value_major = value_major;
      x.state_dtype = state_dtype;
      x.initial = x.final = true;
      f(x);
      x.initial = false;
      f(x);
      x.initial = true, x.final = false;
      f(x);
    }
  }
}

// What the plan offers for a shape: its parts, and that the workspace it asks for is theirs.
struct PlannedShape {
  int64_t heads_k, heads_v, sequences, tokens;  // of each sequence
  flashdelta_context_parallel parallel = FLASHDELTA_CONTEXT_PARALLEL_EXACT;
  int sm_count = 132;
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  const char* arch = "sm120";
  int64_t dim = 128;
  int64_t max_tokens = 0;  // packed, and the longest that the host knows of; 0: dense
  bool in_place = false;   // the final states where the initial ones are
};

inline GatedDeltaParts planned(const PlannedShape& s) {
  static char memory;
  GatedDeltaProblem p;
  p.q.dtype = p.o.dtype = s.dtype;
  p.dim_k = p.dim_v = s.dim;
  p.heads_k = s.heads_k, p.heads_v = s.heads_v;
  p.sequences = s.sequences;
  p.tokens = p.max_tokens = s.tokens;
  if (s.max_tokens > 0) {
    p.tokens = s.sequences * s.tokens, p.max_tokens = s.max_tokens;
    p.cu_seqlens = {&memory, FLASHDELTA_INT32, 1};
  }
  p.context_parallel = s.parallel;
  p.decay_threshold = -9;
  if (s.in_place) p.initial = p.final = {&memory, FLASHDELTA_FP32, s.sequences, 0, 0, 0};
  GatedDeltaKernels kernels;
  const ArchProfile& arch = *parse_arch(s.arch);
  EXPECT_TRUE(choose_gated_delta_kernels(p, arch, &kernels).ok());
  const GatedDeltaParts parts = gated_delta_parts(p, kernels, s.sm_count);
  size_t bytes = 0;
  EXPECT_TRUE(gated_delta_forward_workspace_on(p, arch, s.sm_count, &bytes).ok());
  EXPECT_EQ(bytes, gated_delta_workspace(p, kernels, parts).total);
  return parts;
}

}  // namespace flashdelta::test
