// Runs gated_delta_forward's kernels on the emulator, of an SM120 unless said.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "device/emulator_device.hpp"
#include "device/gated_delta_forward.hpp"

namespace flashdelta::test {

// Runs in a workspace of exactly the size asked for, its bytes NaN. parts: to be taken instead of the plan's. counters:
// of the launches, or null.
inline Status emulate(const GatedDeltaProblem& p, uint32_t seed, const std::optional<GatedDeltaParts>& parts = {},
                      const char* arch_name = "sm120", emulator::Counters* counters = nullptr) {
  const ArchProfile& arch = *parse_arch(arch_name);
  EmulatorDevice device(arch, 2, seed);
  size_t bytes = 0;
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(p, arch, &kernels));
  FLASHDELTA_RETURN_IF_ERROR(gated_delta_forward_workspace_on(p, arch, device.info().sm_count, &bytes));
  if (parts) bytes = gated_delta_workspace(p, kernels, *parts).total;
  std::unique_ptr<uint8_t, decltype(&std::free)> workspace(
      static_cast<uint8_t*>(std::aligned_alloc(256, (bytes + 256) / 256 * 256)), &std::free);
  std::memset(workspace.get(), 0xFF, bytes);
  const Status status = parts ? gated_delta_forward_in_parts(device, arch, p, kernels, *parts, workspace.get(), nullptr)
                              : gated_delta_forward_on(device, arch, p, workspace.get(), nullptr);
  if (counters != nullptr) *counters = device.counters();
  return status;
}

}  // namespace flashdelta::test
