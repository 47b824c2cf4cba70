// The compiled kernels that this build carries: PTX for any newer card and for the emulator, cubins for the cards it
// was built for. Empty where the build had no CUDA compiler.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace flashdelta {

struct KernelImage {
  std::string_view kernel;           // the entry's name: flashdelta_<row>
  int arch = 0;                      // 120: compiled for compute_120 or sm_120
  bool is_ptx = false;               // else a cubin, for cards of exactly this arch
  std::span<const std::byte> bytes;  // a zero byte that is not counted follows, as the driver wants of PTX
};

std::span<const KernelImage> kernel_images();

}  // namespace flashdelta
