// What an architecture and a card are, as rows of numbers. Sources are beside the rows, in profiles.cpp.
// A number that is not known is std::nullopt, never a guess.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace flashdelta {

// Instructions an architecture has. A kernel asks for the flag, never for the name of the architecture.
struct ArchFeatures {
  bool mma_sync = false, ldmatrix = false, cp_async = false;
  bool mbarrier = false;
  bool fp8_mma_sync = false;  // mma.sync.m16n8k32 on e4m3 and e5m2
  bool stmatrix = false;
  bool bulk_copy = false;            // TMA copies that complete on an mbarrier
  bool programmatic_launch = false;  // a kernel starts before the one ahead of it has ended
  bool ex2_bf16x2 = false;
  bool packed_fma_f32x2 = false;
  bool wgmma = false;    // under accelerated_target alone, as the rest here
  bool tcgen05 = false;  // with tensor memory
  bool setmaxnreg = false;
  bool kind_f8f6f4_mma = false;  // mma.sync kind::f8f6f4
};

struct ArchProfile {
  std::string_view name;                // "sm120"
  std::string_view target;              // "sm_120": what a kernel is compiled for
  std::string_view accelerated_target;  // "sm_120a"; empty where there is none
  int major = 0, minor = 0;             // compute capability
  int64_t shared_bytes_block = 0;       // the most one block may ask for
  int64_t shared_bytes_sm = 0;          // what all resident blocks and their reserves share
  int64_t shared_bytes_reserved = 0;    // taken by the system for each resident block
  int64_t threads_block = 0, threads_sm = 0;
  int64_t blocks_sm = 0;
  int64_t registers_sm = 0;      // 32-bit
  int64_t registers_thread = 0;  // the most one thread may have
  ArchFeatures features;
};

struct DeviceProfile {
  std::string_view name;  // "rtx-5090"
  const ArchProfile* arch = nullptr;
  int sm_count = 0;
  // bf16 inputs, fp32 accumulation, through mma.sync: of the whole card, and of one SM a clock.
  std::optional<double> mma_sync_bf16_tflops;
  std::optional<double> mma_sync_bf16_flop_per_clock_sm;
  std::optional<double> memory_tb_per_s;       // data sheet
  std::optional<double> memory_copy_tb_per_s;  // measured: bytes read and written by a copy

  // The clock at which the card reaches that rate; none where either rate is unknown.
  std::optional<double> clock_ghz() const;
};

std::span<const ArchProfile> arch_profiles();
std::span<const DeviceProfile> device_profiles();

// "sm120", "sm_120" or "120"; null: unknown.
const ArchProfile* parse_arch(std::string_view name);
const ArchProfile* find_arch(int number);  // 120
const DeviceProfile* find_device(std::string_view name);

}  // namespace flashdelta
