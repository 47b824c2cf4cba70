// The recurrent kernels, which take few tokens a sequence and states after each token: their own PTX on the emulator,
// against the float64 recurrence, in every option, with workspace-free launches and padding of NaN.
#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

class EmulatorGatedDeltaRecurrent : public EmulatorGatedDelta {};

Options few() {
  Options x;
  x.dim_k = x.dim_v = 64;
  x.lengths = {3, 1, 0, 16, 2};
  x.max_seqlen = 16;
  return x;
}

// Sees that the call is one of the recurrent kernels', then that it is right.
void expect_right_token_by_token(Call& call, uint32_t seed = 1) {
  GatedDeltaProblem problem;
  ASSERT_TRUE(call.bind(&problem).ok());
  const ArchProfile& sm120 = *parse_arch("sm120");
  GatedDeltaKernels kernels;
  ASSERT_TRUE(choose_gated_delta_kernels(problem, sm120, &kernels).ok());
  ASSERT_NE(kernels.recurrent, nullptr);
  size_t bytes = 1;
  ASSERT_TRUE(gated_delta_forward_workspace_on(problem, sm120, 170, &bytes).ok());
  EXPECT_EQ(bytes, 0u);
  expect_right_on_emulator(call, seed);
}

void expect_right_token_by_token(const Options& options, uint32_t seed = 1) {
  Call call(options);
  expect_right_token_by_token(call, seed);
}

TEST_F(EmulatorGatedDeltaRecurrent, ElementTypesAndOutputs) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    for (auto o_dtype : {dtype, FLASHDELTA_FP32}) {
      Options x = few();
      x.dtype = dtype, x.o_dtype = o_dtype;
      expect_right_token_by_token(x);
    }
  }
}

TEST_F(EmulatorGatedDeltaRecurrent, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{16, 3, 128, 128}, {1, 1, 8, 8}, {1, 2, 72, 200}, {2, 5, 128, 40}, {1, 1, 256, 256}, {2, 4, 136, 24}};
  for (const auto& shape : shapes) {
    Options x = few();
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {1, 4};
    x.value_major = false;
    expect_right_token_by_token(x, 3);
    x.dtype = x.o_dtype = FLASHDELTA_FP16;
    x.value_major = true;
    expect_right_token_by_token(x, 4);
  }
}

TEST_F(EmulatorGatedDeltaRecurrent, DenseTokensOfEveryCount) {
  for (int64_t tokens : {0, 1, 2, 15, 16}) {
    Options x = few();
    x.packed = false;
    x.lengths = {tokens, tokens, tokens};
    x.head_major = tokens % 2 == 0;
    expect_right_token_by_token(x);
  }
}

TEST_F(EmulatorGatedDeltaRecurrent, GatesAndNormsInTheKernel) {
  for (auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    Options x = few();
    x.dtype = x.o_dtype = x.gate_dtype = dtype;
    x.raw_gate = x.raw_beta = x.l2norm = true;
    x.beta_scale = 2;
    expect_right_token_by_token(x);
    x.gate_dtype = FLASHDELTA_FP32;
    x.o_dtype = FLASHDELTA_FP32;
    x.beta_scale = 1;
    x.scale = 0.7;
    expect_right_token_by_token(x);
  }
}

TEST_F(EmulatorGatedDeltaRecurrent, Resets) {
  Call call(few());
  call.g.refill([](int64_t i) { return i % 3 == 1 ? -INFINITY : i % 5 == 0 ? -60.0 : -0.01; });
  expect_right_token_by_token(call);
}

// Vectors, and states whose strides leave no vector aligned.
TEST_F(EmulatorGatedDeltaRecurrent, StatesInEveryForm) {
  Options x = few();
  x.dim_k = 40, x.dim_v = 72;
  x.lengths = {2, 0, 1};
  for (int64_t gap : {8, 1}) {
    x.state_gap = gap;
    for_each_form_of_state(x, [](const Options& form) { expect_right_token_by_token(form); });
  }
}

TEST_F(EmulatorGatedDeltaRecurrent, PoolsSkipsAndPlace) {
  Options x = few();
  x.lengths = {4, 3, 7, 0, 1};
  x.initial_pool = true;
  x.skipped = {0, 3};
  for (bool in_place : {false, true}) {
    x.in_place = in_place;
    expect_right_token_by_token(x);
  }
  x.in_place = x.initial_pool = x.initial = false;
  x.final_pool = true;
  expect_right_token_by_token(x);
}

// The states after each token, from given slots, from accepted tokens' and from zero; of any length.
TEST_F(EmulatorGatedDeltaRecurrent, StatesAfterEachToken) {
  for (bool value_major : {false, true}) {
    for (auto state_dtype : {FLASHDELTA_FP32, FLASHDELTA_BF16}) {
      for (bool in_place : {false, true}) {
        for (bool accepted : {false, true}) {
          Options x = few();
          x.lengths = {3, 1, 0, 5, 4};
          x.token_states = true;
          x.value_major = value_major, x.state_dtype = state_dtype, x.in_place = in_place, x.accepted = accepted;
          expect_right_token_by_token(x);
        }
      }
    }
  }
  Options x = few();
  x.token_states = true;
  x.initial = false;
  x.lengths = {40, 2};
  x.max_seqlen = 0;
  expect_right_token_by_token(x);
}

TEST_F(EmulatorGatedDeltaRecurrent, CheckpointsBesideStatesAfterEachToken) {
  Options x = few();
  x.token_states = true;
  x.lengths = {130, 0, 64};
  x.max_seqlen = 0;
  x.checkpoint_every = 64;
  expect_right_token_by_token(x);
}

TEST_F(EmulatorGatedDeltaRecurrent, ManySequences) {
  Options x = few();
  x.lengths.assign(2050, 1);
  x.lengths[7] = 0;
  x.group = 1;
  x.dim_k = x.dim_v = 8;
  expect_right_token_by_token(x);
}

TEST_F(EmulatorGatedDeltaRecurrent, TheSameBitsUnderEverySchedule) {
  Options x = few();
  Call first(x), second(x);
  GatedDeltaProblem p, q;
  ASSERT_TRUE(first.bind(&p).ok());
  ASSERT_TRUE(second.bind(&q).ok());
  ASSERT_TRUE(emulate(p, 1).ok());
  ASSERT_TRUE(emulate(q, 2).ok());
  expect_same_bits(first, second);
}

// Where the host knows no bound on the lengths the chunked kernels run; its copy of them is one.
TEST_F(EmulatorGatedDeltaRecurrent, IsChosenByWhatTheHostKnows) {
  const auto recurrent = [](const Options& options, const std::vector<int64_t>& host_lengths = {}) {
    Call call(options);
    call.host_lengths = host_lengths;
    GatedDeltaProblem problem;
    EXPECT_TRUE(call.bind(&problem).ok());
    return gated_delta_is_recurrent(problem);
  };
  Options x = few();
  EXPECT_TRUE(recurrent(x));
  x.max_seqlen = 0;
  EXPECT_FALSE(recurrent(x));
  EXPECT_TRUE(recurrent(x, {0, 3, 4, 4, 20, 22}));
  x.lengths = {17};
  x.tokens_after = 0;
  EXPECT_FALSE(recurrent(x));
  x.token_states = true;
  EXPECT_TRUE(recurrent(x));
}

}  // namespace
}  // namespace flashdelta::test
