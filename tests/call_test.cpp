// From named tensors to calls: what is taken, refused and allocated; and that a check sees what is wrong.
#include <gtest/gtest.h>

#include "cases/inputs.hpp"
#include "support.hpp"

namespace flashdelta::test {
namespace {

constexpr Operation attention = Operation::attention_forward;
constexpr Operation gated_delta = Operation::gated_delta_forward;

const Case& case_named(const std::string& name) {
  for (const Case& one : cases()) {
    if (one.name == name) return one;
  }
  throw std::out_of_range(name);
}

TensorMap tensors_of(const std::string& name) {
  const Case& one = case_named(name);
  return one.inputs(one, 3);
}

std::string refusal(Operation operation, const TensorMap& tensors, const CallOptions& options = {}) {
  Call call;
  const Status status = make_call(operation, tensors, options, &call);
  EXPECT_EQ(status.code, FLASHDELTA_INVALID_ARGUMENT) << status.message;
  EXPECT_EQ(status.message.find('\n'), std::string::npos);
  return status.message.substr(0, status.message.find(':'));
}

TEST(MakeCall, operations_have_names) {
  EXPECT_EQ(parse_operation("gdn-forward"), gated_delta);
  EXPECT_EQ(parse_operation("gdn-backward"), Operation::gated_delta_backward);
  EXPECT_EQ(parse_operation("attention"), std::nullopt);
  for (const char* name : {"attention-forward", "attention-backward", "gated-delta-forward", "gated-delta-backward"}) {
    const auto operation = parse_operation(name);
    ASSERT_TRUE(operation.has_value());
    EXPECT_EQ(operation_name(*operation), name);
  }
}

TEST(MakeCall, names_what_is_missing) {
  for (const char* name : {"q", "k", "v"}) {
    TensorMap tensors = tensors_of("plain");
    tensors.erase(name);
    EXPECT_EQ(refusal(attention, tensors), name);
  }
  for (const char* name : {"q", "k", "v", "g", "beta"}) {
    TensorMap tensors = tensors_of("gdn_plain");
    tensors.erase(name);
    EXPECT_EQ(refusal(gated_delta, tensors), name);
  }
  for (const char* name : {"A_log", "a", "dt_bias"}) {
    TensorMap tensors = tensors_of("gdn_raw_gate");
    tensors.erase(name);
    EXPECT_EQ(refusal(gated_delta, tensors), name);
  }
}

TEST(MakeCall, refuses_both_forms_at_once) {
  TensorMap tensors = tensors_of("gdn_plain");
  tensors["b"] = tensors.at("beta");
  EXPECT_EQ(refusal(gated_delta, tensors), "beta");
  tensors = tensors_of("gdn_plain");
  tensors["a"] = tensors.at("g");
  EXPECT_EQ(refusal(gated_delta, tensors), "g");
}

TEST(MakeCall, refuses_hostile_shapes_without_paying_for_them) {
  TensorMap tensors = tensors_of("gdn_plain");
  // No element in either, and a state of 2^80 bytes.
  tensors["q"] = tensors["k"] = HostTensor(FLASHDELTA_BF16, {1, 0, 1 << 20, 1 << 20});
  tensors["v"] = HostTensor(FLASHDELTA_BF16, {1, 0, 1 << 20, 1 << 20});
  EXPECT_EQ(refusal(gated_delta, tensors), "q");
  tensors = tensors_of("plain");
  tensors["q"] = HostTensor(FLASHDELTA_BF16, {1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(refusal(attention, tensors), "q");
  tensors["q"] = HostTensor(FLASHDELTA_BF16, {});
  EXPECT_EQ(refusal(attention, tensors), "q");
}

TEST(MakeCall, ignores_other_tensors) {
  TensorMap tensors = tensors_of("plain");
  tensors["cu_seqlens"] = int_tensor(FLASHDELTA_INT32, {0, 3});  // the delta rule's name
  tensors["expected_o"] = tensors.at("q");
  const Call call = call_of(attention, tensors, {});
  EXPECT_EQ(call.inputs.size(), 3u);
  EXPECT_EQ(call.outputs.size(), 2u);
}

TEST(MakeCall, a_pool_starts_as_the_initial_states) {
  const Case& one = case_named("gdn_pool_skip");
  const Call call = call_of(gated_delta, one.inputs(one, 3), one.options);
  EXPECT_TRUE(same_bits(call.outputs.at("final_state"), call.inputs.at("initial_state")));
}

TEST(MakeCall, a_pool_without_initial_states_is_as_large_as_its_indices) {
  TensorMap tensors = tensors_of("gdn_no_state");
  tensors["final_state_indices"] = int_tensor(FLASHDELTA_INT64, {9});
  Call call = call_of(gated_delta, tensors, {});
  EXPECT_EQ(call.outputs.at("final_state").shape(), (std::vector<int64_t>{10, 2, 128, 128}));
  expect_right(call);
  tensors["final_state_indices"] = int_tensor(FLASHDELTA_INT64, {std::numeric_limits<int64_t>::max()});
  Call huge;
  EXPECT_FALSE(make_call(gated_delta, tensors, {}, &huge).ok());
}

TEST(MakeCall, checkpoints_have_the_rows_that_are_written) {
  const Case& one = case_named("gdn_checkpoints");  // 63, 64, 65, 200, 0 and 128 tokens, every 64
  const Call call = call_of(gated_delta, one.inputs(one, 3), one.options);
  EXPECT_EQ(call.outputs.at("checkpoints").shape(), (std::vector<int64_t>{7, 2, 64, 64}));
}

TEST(MakeCall, gradients_are_not_made) {
  Call call;
  EXPECT_EQ(make_call(Operation::attention_backward, tensors_of("plain"), {}, &call).code, FLASHDELTA_NOT_SUPPORTED);
}

TEST(RunCall, lengths_may_change_under_a_call) {  // FlashQLA keeps indices by the identity of cu_seqlens
  const Case& one = case_named("gdn_empty_in_the_middle");
  Call call = call_of(gated_delta, one.inputs(one, 3), one.options);
  expect_right(call);
  auto* offsets = static_cast<int32_t*>(call.inputs.at("cu_seqlens").data());
  offsets[1] = 7;
  offsets[2] = 99;
  expect_right(call);
}

TEST(CallCost, counts_the_field_s_arithmetic) {
  const Call call = call_of(attention, tensors_of("causal_two_diagonal_blocks"), {});
  EXPECT_EQ(call_cost(call).flops, 2.0 * 256 * 2 * 384 * 384);
  CallOptions causal;
  causal.causal = true;
  EXPECT_EQ(call_cost(call_of(attention, tensors_of("causal_two_diagonal_blocks"), causal)).flops,
            2.0 * 256 * 2 * 384 * 385 / 2);
  const Call delta = call_of(gated_delta, tensors_of("gdn_no_state"), {});
  EXPECT_EQ(call_cost(delta).flops, 6.0 * 128 * 128 * 70 * 2);
  EXPECT_EQ(call_cost(delta).bytes, 2 * 70 * 128 * (2 + 2 * 2) + 2 * 4 * 70 * 2 + 4 * 2 * 128 * 128);
}

// A right run with one number changed must be found wrong, in that output and in no other.
class Spoiled : public testing::Test {
 protected:
  void start(const std::string& name) {
    const Case& one = case_named(name);
    call_ = call_of(one.operation, one.inputs(one, 3), one.options);
    ASSERT_NO_FATAL_FAILURE(expect_right(call_));
  }

  void expect_fault(const std::string& output, int64_t index, float value, const std::string& fault) {
    const HostTensor& tensor = call_.outputs.at(output);
    const float before = tensor.get(index);
    tensor.set(index, value);
    std::vector<OutputError> errors;
    ASSERT_TRUE(check_call(call_, 3, &errors).ok());
    for (const OutputError& error : errors) {
      EXPECT_EQ(error.fault.substr(0, fault.size()), error.name == output ? fault : "") << error.name;
    }
    tensor.set(index, before);
  }

  int64_t last(const std::string& output) const { return call_.outputs.at(output).numel() - 1; }

  Call call_;
};

TEST_F(Spoiled, attention) {
  ASSERT_NO_FATAL_FAILURE(start("causal_group_4"));
  expect_fault("o", 0, 1e3f, "error");
  expect_fault("o", last("o"), 1e3f, "error");
  expect_fault("o", 777, NAN, "NaN");
  expect_fault("o", 777, INFINITY, "infinities differ");
  expect_fault("lse", 5, 1e3f, "error");
  expect_fault("lse", 5, -INFINITY, "infinities differ");
}

TEST_F(Spoiled, rows_without_a_key) {
  ASSERT_NO_FATAL_FAILURE(start("no_keys"));
  expect_fault("o", 7, 0.5f, "error");
  expect_fault("lse", 7, 0, "infinities differ");
  expect_fault("lse", 7, INFINITY, "infinities differ");  // what FlashAttention-2 writes
}

TEST_F(Spoiled, sampled_attention) {
  ASSERT_NO_FATAL_FAILURE(start("bench_dense_d128"));
  std::vector<OutputError> errors;
  ASSERT_TRUE(check_call(call_, 3, &errors).ok());
  ASSERT_LT(errors.front().rows_checked, errors.front().rows);
  expect_fault("o", 0, 1e3f, "error");
  expect_fault("o", last("o"), 1e3f, "error");
  expect_fault("o", last("o") / 2, NAN, "NaN");  // seen in any row
}

TEST_F(Spoiled, gated_delta) {
  ASSERT_NO_FATAL_FAILURE(start("gdn_checkpoints"));
  for (const char* output : {"o", "final_state", "checkpoints"}) {
    expect_fault(output, 0, 1e4f, "error");
    expect_fault(output, last(output), 1e4f, "error");
    expect_fault(output, last(output) / 2, NAN, "NaN");
    expect_fault(output, last(output) / 2, INFINITY, "infinities differ");
  }
}

TEST_F(Spoiled, sampled_gated_delta) {
  ASSERT_NO_FATAL_FAILURE(start("gdn_bench_16_16"));
  std::vector<OutputError> errors;
  ASSERT_TRUE(check_call(call_, 3, &errors).ok());
  ASSERT_LT(errors.front().rows_checked, errors.front().rows);
  expect_fault("final_state", 0, 1e4f, "error");
  expect_fault("o", last("o"), 1e4f, "error");
  expect_fault("o", last("o") / 2, NAN, "NaN");  // seen in any head
}

TEST_F(Spoiled, skipped_sequences_and_their_slots) {
  ASSERT_NO_FATAL_FAILURE(start("gdn_pool_skip"));  // sequence 1 is tokens 33 to 52 and has slot 1 of 8 to itself
  expect_fault("o", 40 * 2 * 64, 1e4f, "error");
  expect_fault("final_state", 1 * 2 * 64 * 64 + 5, 0.25f, "slot 1 was written");
  expect_fault("final_state", last("final_state") - 1, 0.25f, "slot 7 was written");
}

}  // namespace
}  // namespace flashdelta::test
