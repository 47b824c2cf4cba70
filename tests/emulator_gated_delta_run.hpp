// Runs gated_delta_forward's kernels on the emulator of an SM120.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "device/emulator_device.hpp"
#include "device/gated_delta_forward.hpp"

namespace flashdelta::test {

// Runs in a workspace of exactly the size asked for, its bytes NaN.
inline Status emulate(const GatedDeltaProblem& p, uint32_t seed) {
  const ArchProfile& arch = *parse_arch("sm120");
  EmulatorDevice device(arch, 2, seed);
  size_t bytes = 0;
  FLASHDELTA_RETURN_IF_ERROR(gated_delta_forward_workspace_on(p, arch, &bytes));
  std::unique_ptr<uint8_t, decltype(&std::free)> workspace(
      static_cast<uint8_t*>(std::aligned_alloc(256, (bytes + 256) / 256 * 256)), &std::free);
  std::memset(workspace.get(), 0xFF, bytes);
  return gated_delta_forward_on(device, arch, p, workspace.get(), nullptr);
}

}  // namespace flashdelta::test
