// What several tests need: calls that must succeed, poison, verdicts as text.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cases/cases.hpp"
#include "io/call.hpp"

namespace flashdelta::test {

inline flashdelta_execution on_cpu() {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = FLASHDELTA_BACKEND_CPU;
  return execution;
}

inline Call call_of(Operation operation, const TensorMap& tensors, const CallOptions& options) {
  Call call;
  const Status status = make_call(operation, tensors, options, &call);
  EXPECT_TRUE(status.ok()) << status.message;
  return call;
}

inline void fill(const HostTensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.numel(); i++) tensor.set(i, value);
}

inline void poison(const HostTensor& tensor) { fill(tensor, std::numeric_limits<float>::quiet_NaN()); }

// Runs on the CPU backend and holds every output against the oracle.
inline void expect_right(Call& call, uint64_t seed = 1) {
  const Status ran = run_call(call, on_cpu());
  ASSERT_TRUE(ran.ok()) << ran.message;
  std::vector<OutputError> errors;
  const Status checked = check_call(call, seed, &errors);
  ASSERT_TRUE(checked.ok()) << checked.message;
  ASSERT_FALSE(errors.empty());
  for (const OutputError& error : errors) {
    EXPECT_EQ(error.fault, "") << error.name << ": relative error " << error.relative_l2 << ", " << error.rows_checked
                               << " of " << error.rows << " rows checked";
  }
}

// Holds the outputs of a case that ran on a GPU kernel against the oracle.
inline void expect_right_on_gpu(const Call& call, const Case& one, uint64_t seed) {
  std::vector<OutputError> errors;
  const Status checked = check_call(call, seed, &errors);
  ASSERT_TRUE(checked.ok()) << checked.message;
  ASSERT_FALSE(errors.empty());
  const double tolerance = one.dtype == FLASHDELTA_BF16 ? 6e-3 : 1e-3;
  for (const OutputError& error : errors) {
    if (one.gpu_factor > 1 && error.relative_l2 <= one.gpu_factor * tolerance) continue;
    EXPECT_EQ(error.fault, "") << error.name << ": relative error " << error.relative_l2;
  }
}

inline bool same_bits(const HostTensor& x, const HostTensor& y) {
  return x.dtype() == y.dtype() && x.shape() == y.shape() && std::memcmp(x.data(), y.data(), x.bytes()) == 0;
}

}  // namespace flashdelta::test
