// The emulator's own tensor map: what a host writes where a CUDA host has the driver write one.
#pragma once

#include <array>
#include <cstdint>

namespace flashdelta::emulator {

// A 4D tensor of 16-bit numbers, innermost dimension first, copied in boxes that lie in shared memory as rows of 128
// bytes, swizzled; outside the tensor they are zero.
struct TensorMap {
  static constexpr uint64_t kMagic = 0x7465'6e73'6f72'6d70;
  uint64_t magic = kMagic;
  uint64_t data = 0;
  std::array<uint64_t, 4> sizes{};
  std::array<uint64_t, 3> strides{};  // bytes, of dimensions 1, 2 and 3
  std::array<uint32_t, 4> box{};

  // What the driver would refuse.
  bool is_valid() const {
    bool valid = magic == kMagic && data % 16 == 0 && box[0] == 64;
    for (uint64_t size : sizes) valid = valid && size >= 1 && size <= uint64_t{1} << 32;
    for (uint64_t stride : strides) valid = valid && stride % 16 == 0 && stride < uint64_t{1} << 40;
    for (uint32_t size : box) valid = valid && size >= 1 && size <= 256;
    return valid;
  }
  uint32_t rows() const { return box[1] * box[2] * box[3]; }
  uint32_t box_bytes() const { return rows() * 128; }
};

}  // namespace flashdelta::emulator
