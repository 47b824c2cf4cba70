// The rows. Sources:
//  - limits: CUDA Programming Guide, features and technical specifications by compute capability; blocks and registers
//    also in the toolkit's cuda_occupancy.h (13.0). For 12.x the guide's 100 KiB and 24 blocks an SM are what an RTX
//    5090 reports of itself (102,400 bytes; 101,376 a block). The Blackwell tuning guide's 128 KiB is L1 and shared
//    memory together.
//  - features: each instruction compiled by nvcc 13.0 for each target, and for its accelerated target.
//  - rates: noted beside each card.
#include "core/profiles.hpp"

#include <array>

namespace flashdelta {
namespace {

constexpr int64_t kKiB = 1024;

constexpr ArchFeatures kSm80Features{.mma_sync = true, .ldmatrix = true, .cp_async = true, .mbarrier = true};

constexpr ArchFeatures sm89_features() {
  ArchFeatures features = kSm80Features;
  features.fp8_mma_sync = true;
  return features;
}

constexpr ArchFeatures sm90_features() {
  ArchFeatures features = sm89_features();
  features.stmatrix = features.bulk_copy = features.programmatic_launch = features.ex2_bf16x2 = true;
  features.setmaxnreg = features.wgmma = true;
  return features;
}

constexpr ArchFeatures sm100_features() {
  ArchFeatures features = sm90_features();
  features.wgmma = false;
  features.tcgen05 = features.packed_fma_f32x2 = features.kind_f8f6f4_mma = true;
  return features;
}

constexpr ArchFeatures sm120_features() {
  ArchFeatures features = sm100_features();
  features.tcgen05 = false;
  return features;
}

struct Limits {
  int64_t shared_kib_block, shared_kib_sm, threads_sm, blocks_sm;
};

constexpr ArchProfile row(std::string_view name, std::string_view target, std::string_view accelerated_target,
                          int capability, Limits limits, ArchFeatures features) {
  return {.name = name,
          .target = target,
          .accelerated_target = accelerated_target,
          .major = capability / 10,
          .minor = capability % 10,
          .shared_bytes_block = limits.shared_kib_block * kKiB,
          .shared_bytes_sm = limits.shared_kib_sm * kKiB,
          .shared_bytes_reserved = kKiB,
          .threads_block = 1024,
          .threads_sm = limits.threads_sm,
          .blocks_sm = limits.blocks_sm,
          .registers_sm = 65536,
          .registers_thread = 255,
          .features = features};
}

constexpr std::array kArchs{
    row("sm80", "sm_80", "", 80, {163, 164, 2048, 32}, kSm80Features),
    row("sm86", "sm_86", "", 86, {99, 100, 1536, 16}, kSm80Features),
    row("sm89", "sm_89", "", 89, {99, 100, 1536, 24}, sm89_features()),
    row("sm90", "sm_90", "sm_90a", 90, {227, 228, 2048, 32}, sm90_features()),
    row("sm100", "sm_100", "sm_100a", 100, {227, 228, 2048, 32}, sm100_features()),
    row("sm120", "sm_120", "sm_120a", 120, {99, 100, 1536, 24}, sm120_features()),
    row("sm121", "sm_121", "sm_121a", 121, {99, 100, 1536, 24}, sm120_features()),
};

constexpr const ArchProfile* arch(std::string_view name) {
  for (const ArchProfile& profile : kArchs) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

constexpr std::array kDevices{
    // Data sheet: dense bf16 and HBM2e. Four tensor cores of 256 FMA a clock.
    DeviceProfile{.name = "a800",
                  .arch = arch("sm80"),
                  .sm_count = 108,
                  .mma_sync_bf16_tflops = 312,
                  .mma_sync_bf16_flop_per_clock_sm = 2048,
                  .memory_tb_per_s = 2.04,
                  .memory_copy_tb_per_s = std::nullopt},
    // White paper; with fp32 accumulation an mma takes 32 cycles of a quarter SM, half the rate of the PRO card.
    DeviceProfile{.name = "rtx-5090",
                  .arch = arch("sm120"),
                  .sm_count = 170,
                  .mma_sync_bf16_tflops = 209.5,
                  .mma_sync_bf16_flop_per_clock_sm = 512,
                  .memory_tb_per_s = 1.79,
                  .memory_copy_tb_per_s = std::nullopt},
    // White paper; 16 cycles an mma.
    DeviceProfile{.name = "rtx-pro-6000",
                  .arch = arch("sm120"),
                  .sm_count = 188,
                  .mma_sync_bf16_tflops = 503.8,
                  .mma_sync_bf16_flop_per_clock_sm = 1024,
                  .memory_tb_per_s = 1.79,
                  .memory_copy_tb_per_s = std::nullopt},
    // Data sheet. Its tensor rate is tcgen05's; what mma.sync gives there is not known.
    DeviceProfile{.name = "b200",
                  .arch = arch("sm100"),
                  .sm_count = 148,
                  .mma_sync_bf16_tflops = std::nullopt,
                  .mma_sync_bf16_flop_per_clock_sm = std::nullopt,
                  .memory_tb_per_s = 8,
                  .memory_copy_tb_per_s = std::nullopt},
    // Measured: 644 TFLOP/s at 6 cycles an mma, so 4 * 4096 / 6 FLOP (wgmma would give 790); copies run at 4.0 to 4.3
    // TB/s, of which the row takes the low end. The data sheet's memory rate is 4.8.
    DeviceProfile{.name = "h200",
                  .arch = arch("sm90"),
                  .sm_count = 132,
                  .mma_sync_bf16_tflops = 644,
                  .mma_sync_bf16_flop_per_clock_sm = 4 * 4096 / 6.0,
                  .memory_tb_per_s = 4.8,
                  .memory_copy_tb_per_s = 4.0},
};

}  // namespace

std::optional<double> DeviceProfile::clock_ghz() const {
  if (!mma_sync_bf16_tflops || !mma_sync_bf16_flop_per_clock_sm) return std::nullopt;
  return *mma_sync_bf16_tflops * 1000 / (*mma_sync_bf16_flop_per_clock_sm * sm_count);
}

std::span<const ArchProfile> arch_profiles() { return kArchs; }
std::span<const DeviceProfile> device_profiles() { return kDevices; }

const ArchProfile* parse_arch(std::string_view name) {
  for (const ArchProfile& profile : kArchs) {
    if (name == profile.name || name == profile.target || name == profile.name.substr(2)) return &profile;
  }
  return nullptr;
}

const ArchProfile* find_arch(int number) {
  for (const ArchProfile& profile : kArchs) {
    if (number == profile.major * 10 + profile.minor) return &profile;
  }
  return nullptr;
}

const DeviceProfile* find_device(std::string_view name) {
  for (const DeviceProfile& device : kDevices) {
    if (name == device.name) return &device;
  }
  return nullptr;
}

}  // namespace flashdelta
