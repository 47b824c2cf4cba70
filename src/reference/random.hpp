// Random numbers by counter: number i of a stream depends on (seed, stream, i) alone, so any thread can make any part
// and every machine makes the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace flashdelta {

class Random {
 public:
  Random(uint64_t seed, std::string_view stream) : key_(mix(seed + 0x9e3779b97f4a7c15u)) {
    for (char c : stream) key_ = mix(key_ ^ static_cast<unsigned char>(c));
  }

  uint64_t bits(int64_t i) const { return mix(key_ + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u); }

  // In [0, 1).
  double uniform(int64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }

  // Mean 0, variance 1: the sum of eight uniform 16-bit numbers, which is within 5 sigma and near enough to normal.
  // Integers up to the last step: std::log and std::cos differ in their last bit between machines.
  double normal(int64_t i) const {
    int64_t sum = 0;
    for (int half = 0; half < 2; half++) {
      const uint64_t word = bits(2 * i + half);
      sum += static_cast<int64_t>((word & 0xffff) + ((word >> 16) & 0xffff) + ((word >> 32) & 0xffff) + (word >> 48));
    }
    constexpr double mean = 8 * 65535 / 2.0;
    const double sigma = std::sqrt(8.0 * (65536.0 * 65536.0 - 1) / 12.0);
    return (static_cast<double>(sum) - mean) / sigma;
  }

 private:
  static uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014)
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t key_;
};

}  // namespace flashdelta
