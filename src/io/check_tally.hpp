// Differences between numbers that a run wrote and the oracle's, summed up for one output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "io/call.hpp"

namespace flashdelta {

class Tally {
 public:
  // want counts as fp32 holds it: no output can hold 1e-85, and zero is then right.
  void add(double got, double wanted) {
    const double want = static_cast<float>(wanted);
    if (std::isnan(got)) {
      nan_ = true;
    } else if (!std::isfinite(got) || !std::isfinite(want)) {
      infinity_ = infinity_ || got != want;
    } else {
      const double difference = got - want;
      difference_ += difference * difference;
      expected_ += want * want;
      largest_ = std::max(largest_, std::abs(difference));
      excess_ = std::max(excess_, std::abs(difference) - 1e-5 * std::abs(want));
    }
  }

  void add_row() { rows_++; }
  void add_nan() { nan_ = true; }

  void add(const Tally& other) {
    difference_ += other.difference_;
    expected_ += other.expected_;
    largest_ = std::max(largest_, other.largest_);
    excess_ = std::max(excess_, other.excess_);
    rows_ += other.rows_;
    nan_ = nan_ || other.nan_;
    infinity_ = infinity_ || other.infinity_;
  }

  // Relative L2 error; where all that is expected is zero, the largest absolute one.
  double relative_l2() const { return expected_ > 0 ? std::sqrt(difference_ / expected_) : largest_; }
  double lse_error() const { return std::max(excess_, 0.0); }

  OutputError verdict(const char* name, double error, double tolerance, int64_t rows) const {
    OutputError result{name, error, tolerance, rows_, rows, ""};
    if (nan_) {
      result.fault = "NaN";
    } else if (infinity_) {
      result.fault = "infinities differ";
    } else if (!(error <= tolerance)) {
      result.fault = fmt::format("error {:.2e} over {:.0e}", error, tolerance);
    }
    return result;
  }

 private:
  double difference_ = 0, expected_ = 0, largest_ = 0, excess_ = 0;
  int64_t rows_ = 0;
  bool nan_ = false, infinity_ = false;
};

inline double tolerance_of(flashdelta_dtype dtype) {
  switch (dtype) {
    case FLASHDELTA_BF16: return 6e-3;
    case FLASHDELTA_FP16: return 1e-3;
    default: return 1e-4;
  }
}

// Whether a contiguous row holds a NaN. On bits, so that a whole output is read at the speed of memory.
inline bool has_nan(const void* data, flashdelta_dtype dtype, int64_t count) {
  unsigned found = 0;
  if (dtype == FLASHDELTA_FP32) {
    const auto* row = static_cast<const uint32_t*>(data);
    for (int64_t i = 0; i < count; i++) found |= (row[i] & 0x7fffffffu) > 0x7f800000u ? 1u : 0u;
  } else {
    const unsigned infinity = dtype == FLASHDELTA_BF16 ? 0x7f80u : 0x7c00u;
    const auto* row = static_cast<const uint16_t*>(data);
    for (int64_t i = 0; i < count; i++) found |= (row[i] & 0x7fffu) > infinity ? 1u : 0u;
  }
  return found != 0;
}

// `count` of the numbers 0 .. total - 1, one from each of `count` equal parts, with the first and the last in it.
std::vector<int64_t> sample(int64_t total, int64_t count, uint64_t seed);

}  // namespace flashdelta
