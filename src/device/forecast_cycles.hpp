// A kernel's counters on the emulator as cycles of a card's multiprocessor: what the forecasts share. docs/forecast.md
// has the model.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "device/forecast.hpp"
#include "emulator/emulator.hpp"

namespace flashdelta {

inline constexpr double kMmaFlops = 2 * 16 * 8 * 16;
inline constexpr double kQuarters = 4;  // each issues one warp instruction a clock and has its own tensor core
// 16 special-function results a clock an SM: CUDA Programming Guide, throughput of native arithmetic instructions.
inline constexpr double kSpecialCycles = 32.0 / 16;
// Fitted: what a block loses at each barrier while no other block of its SM covers for it.
inline constexpr double kBarrierCycles = 450;
// Cycles that an instruction takes from the tensor core of its quarter, beyond its own.
struct TensorToll {
  double fp32 = 0, special = 0, convert = 0, integer = 0, shared_store = 0;
};

// Measured on an H200 alone (docs/forecast.md). None is known of SM120, where an mma takes 16 or 32 cycles: no toll.
inline TensorToll tensor_toll(const DeviceProfile& device) {
  if (device.name == "h200") return {.fp32 = 0.9, .special = 1.5, .convert = 0.8, .integer = 0.65, .shared_store = 2};
  return {};
}

// Cycles of an SM by limit, and those that nothing fills.
struct Cycles {
  enum { kTensor, kShared, kIssue, kSpecial, kLimits };
  std::array<double, kLimits> limit{};
  double exposed = 0;

  double total() const { return *std::max_element(limit.begin(), limit.end()) + exposed; }
  void add(const Cycles& other, double times) {
    for (int i = 0; i < kLimits; i++) limit[i] += times * other.limit[i];
    exposed += times * other.exposed;
  }
};

inline Cycles cycles_of(const emulator::Counters& c, const DeviceProfile& device, int warps, int64_t resident) {
  using emulator::Counter;
  const TensorToll toll = tensor_toll(device);
  const auto count = [&](emulator::Counter counter) { return static_cast<double>(c[counter]); };
  const double mma = count(Counter::kMmaBf16) + count(Counter::kMmaF16);
  const double special = count(Counter::kEx2) + count(Counter::kMufu);
  const double tolls = toll.fp32 * count(Counter::kFp32) + toll.special * special +
                       toll.convert * count(Counter::kConvert) +
                       toll.integer * (count(Counter::kInteger) + count(Counter::kPredicate)) +
                       toll.shared_store * count(Counter::kSharedStore);
  Cycles cycles;
  cycles.limit[Cycles::kTensor] = mma * kMmaFlops / *device.mma_sync_bf16_flop_per_clock_sm + tolls / kQuarters;
  cycles.limit[Cycles::kShared] = count(Counter::kSharedWavefronts);
  cycles.limit[Cycles::kIssue] = count(Counter::kInstructions) / kQuarters;
  cycles.limit[Cycles::kSpecial] = kSpecialCycles * special;
  cycles.exposed = kBarrierCycles * count(Counter::kBarrier) / warps / static_cast<double>(resident);
  return cycles;
}

inline emulator::Counters difference(emulator::Counters a, const emulator::Counters& b) {
  for (size_t i = 0; i < a.value.size(); i++) a.value[i] -= std::min(a.value[i], b.value[i]);
  return a;
}

// NOT_SUPPORTED where a rate that the forecasts need is not known.
inline Status check_rates(const DeviceProfile& device) {
  if (device.clock_ghz() && device.memory_tb_per_s) return {};
  return not_supported(fmt::format("device: the rate of mma.sync on {} is not known", device.name));
}

inline double memory_rate(const DeviceProfile& device) {
  return device.memory_copy_tb_per_s.value_or(*device.memory_tb_per_s) * 1e12;
}

// The shares of the forecast's time, from an SM's cycles by limit and memory's seconds.
inline void set_limits(const Cycles& busy, double memory_seconds, double hertz, Forecast* forecast) {
  const char* names[] = {"tensor", "shared", "issue", "special"};
  for (int i = 0; i < Cycles::kLimits; i++) {
    forecast->limits.push_back({names[i], busy.limit[i] / hertz / forecast->seconds});
  }
  forecast->limits.push_back({"memory", memory_seconds / forecast->seconds});
  forecast->binding =
      std::max_element(forecast->limits.begin(), forecast->limits.end(), [](const auto& a, const auto& b) {
        return a.share < b.share;
      })->name;
}

}  // namespace flashdelta
