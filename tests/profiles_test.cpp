// The rows of src/core/profiles.cpp against published numbers, and lookups by name.
#include "core/profiles.hpp"

#include <gtest/gtest.h>

#include <string>

namespace flashdelta {
namespace {

struct Expected {
  const char* name;
  int64_t shared_kib_block, shared_kib_sm, threads_sm, blocks_sm;
};

TEST(ArchProfiles, LimitsAreThePublishedOnes) {
  const Expected rows[] = {{"sm80", 163, 164, 2048, 32}, {"sm86", 99, 100, 1536, 16},   {"sm89", 99, 100, 1536, 24},
                           {"sm90", 227, 228, 2048, 32}, {"sm100", 227, 228, 2048, 32}, {"sm120", 99, 100, 1536, 24},
                           {"sm121", 99, 100, 1536, 24}};
  ASSERT_EQ(arch_profiles().size(), std::size(rows));
  for (const Expected& row : rows) {
    SCOPED_TRACE(row.name);
    const ArchProfile* arch = parse_arch(row.name);
    ASSERT_NE(arch, nullptr);
    EXPECT_EQ(arch->shared_bytes_block, row.shared_kib_block * 1024);
    EXPECT_EQ(arch->shared_bytes_sm, row.shared_kib_sm * 1024);
    EXPECT_EQ(arch->shared_bytes_reserved, 1024);
    EXPECT_EQ(arch->threads_sm, row.threads_sm);
    EXPECT_EQ(arch->threads_block, 1024);
    EXPECT_EQ(arch->blocks_sm, row.blocks_sm);
    EXPECT_EQ(arch->registers_sm, 65536);
    EXPECT_EQ(arch->registers_thread, 255);
  }
}

TEST(ArchProfiles, OneBlockOfTheLargestSizeAlwaysFitsAnSm) {
  for (const ArchProfile& arch : arch_profiles()) {
    EXPECT_LE(arch.shared_bytes_block + arch.shared_bytes_reserved, arch.shared_bytes_sm) << arch.name;
    EXPECT_LE(arch.threads_block, arch.threads_sm) << arch.name;
  }
}

TEST(ArchProfiles, Sm120IsWhatTheDeviceReports) {
  EXPECT_EQ(parse_arch("sm120")->shared_bytes_sm, 102400);
  EXPECT_EQ(parse_arch("sm120")->shared_bytes_block, 101376);
}

TEST(ArchProfiles, NamesParseInThreeSpellingsAndNoOther) {
  for (const ArchProfile& arch : arch_profiles()) {
    const std::string number(arch.name.substr(2));
    EXPECT_EQ(number, std::to_string(10 * arch.major + arch.minor));
    EXPECT_EQ(arch.target, "sm_" + number);
    for (const std::string& name : {number, "sm" + number, "sm_" + number}) EXPECT_EQ(parse_arch(name), &arch) << name;
  }
  for (const char* name : {"", "sm", "sm_", "sm70", "sm12", "SM120", "sm120a", "120 ", "rtx-5090"}) {
    EXPECT_EQ(parse_arch(name), nullptr) << name;
  }
}

TEST(ArchProfiles, FeaturesFollowTheTable) {
  for (const ArchProfile& arch : arch_profiles()) {
    SCOPED_TRACE(arch.name);
    const ArchFeatures& features = arch.features;
    EXPECT_TRUE(features.mma_sync && features.ldmatrix && features.cp_async && features.mbarrier);
    const int capability = 10 * arch.major + arch.minor;
    EXPECT_EQ(features.fp8_mma_sync, capability >= 89);
    const bool from_90 = capability >= 90;
    EXPECT_EQ(features.stmatrix, from_90);
    EXPECT_EQ(features.bulk_copy, from_90);
    EXPECT_EQ(features.programmatic_launch, from_90);
    EXPECT_EQ(features.ex2_bf16x2, from_90);
    EXPECT_EQ(features.setmaxnreg, from_90);
    EXPECT_EQ(arch.accelerated_target.empty(), !from_90);
    EXPECT_EQ(features.packed_fma_f32x2, capability >= 100);
    EXPECT_EQ(features.kind_f8f6f4_mma, capability >= 100);
    EXPECT_EQ(features.wgmma, capability == 90);
    EXPECT_EQ(features.tcgen05, capability == 100);
  }
}

TEST(DeviceProfiles, RowsHoldTheirCardsNumbers) {
  struct Row {
    const char *name, *arch;
    int sm_count;
    std::optional<double> tflops, flop_per_clock, memory;
  };
  const Row rows[] = {{"a800", "sm80", 108, 312, 2048, 2.04},
                      {"rtx-5090", "sm120", 170, 209.5, 512, 1.79},
                      {"rtx-pro-6000", "sm120", 188, 503.8, 1024, 1.79},
                      {"b200", "sm100", 148, std::nullopt, std::nullopt, 8},
                      {"h200", "sm90", 132, 644, 8192 / 3.0, 4.8}};
  ASSERT_EQ(device_profiles().size(), std::size(rows));
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const DeviceProfile* device = find_device(row.name);
    ASSERT_NE(device, nullptr);
    EXPECT_EQ(device->arch, parse_arch(row.arch));
    EXPECT_EQ(device->sm_count, row.sm_count);
    EXPECT_EQ(device->mma_sync_bf16_tflops, row.tflops);
    EXPECT_EQ(device->mma_sync_bf16_flop_per_clock_sm, row.flop_per_clock);
    EXPECT_EQ(device->memory_tb_per_s, row.memory);
  }
}

TEST(DeviceProfiles, ClocksFollowFromTheRates) {
  EXPECT_NEAR(*find_device("a800")->clock_ghz(), 1.41, 0.005);
  EXPECT_NEAR(*find_device("rtx-5090")->clock_ghz(), 2.407, 0.005);
  EXPECT_NEAR(*find_device("rtx-pro-6000")->clock_ghz(), 2.617, 0.005);
  EXPECT_NEAR(*find_device("h200")->clock_ghz(), 1.787, 0.005);
  EXPECT_FALSE(find_device("b200")->clock_ghz().has_value());
}

TEST(DeviceProfiles, OnlyMeasuredCopiesAreGiven) {
  for (const DeviceProfile& device : device_profiles()) {
    EXPECT_EQ(device.memory_copy_tb_per_s.has_value(), device.name == "h200") << device.name;
    if (device.memory_copy_tb_per_s) {
      EXPECT_LT(*device.memory_copy_tb_per_s, *device.memory_tb_per_s);
    }
  }
}

TEST(DeviceProfiles, UnknownNamesAreNull) {
  for (const char* name : {"", "h100", "RTX-5090", "sm120"}) EXPECT_EQ(find_device(name), nullptr) << name;
}

}  // namespace
}  // namespace flashdelta
