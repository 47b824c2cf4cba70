// Where kernels run: a CUDA device, or the PTX emulator behind the same five calls. Code above this interface
// (planning, workspace, sequences of kernels) is the same for both, so a machine without a GPU runs all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/profiles.hpp"
#include "core/status.hpp"
#include "cuda/tensor_map.h"

namespace flashdelta {

// What a device says of itself; it wins over the profile table's row.
struct DeviceInfo {
  std::string name;
  const ArchProfile* arch = nullptr;  // the row of its compute capability, or the nearest below
  int sm_count = 0;
  int64_t shared_bytes_block = 0;  // with opt-in
  int64_t shared_bytes_sm = 0;
  int64_t shared_bytes_reserved = 0;  // a resident block
  int64_t threads_sm = 0, blocks_sm = 0;
  bool checks_memory = false;  // whether it looks at a launch's regions
};

// Memory that a kernel may touch. A device that checks memory holds every access to the list; others need none.
struct Region {
  const void* data = nullptr;
  size_t bytes = 0;
  const char* name = "";
  bool written = false;  // an output, or scratch
  bool defined = true;   // false: holds nothing before the launch
};

// A 4D tensor of 16-bit numbers as the copy engine sees it, innermost dimension first. Boxes are copied swizzled in
// rows of 128 bytes; outside the tensor they are zero.
struct TensorLayout {
  const void* data = nullptr;
  std::array<uint64_t, 4> sizes{};
  std::array<uint64_t, 3> strides{};  // bytes, of dimensions 1, 2 and 3
  std::array<uint32_t, 4> box{};
};

// Tokens as kernels copy them: sizes are of features, heads, tokens and sequences, strides in elements of the last
// three. A box is that many tokens of one head and 64 features.
inline TensorLayout token_boxes(const void* data, const std::array<int64_t, 4>& sizes,
                                const std::array<int64_t, 3>& strides, uint32_t tokens) {
  TensorLayout layout{.data = data, .box = {64, 1, tokens, 1}};
  for (size_t i = 0; i < sizes.size(); i++) layout.sizes[i] = static_cast<uint64_t>(sizes[i]);
  // A stride along one element alone is never used, and may be anything that the engine takes.
  for (size_t i = 0; i < strides.size(); i++) {
    layout.strides[i] = sizes[i + 1] == 1 ? 16 : static_cast<uint64_t>(strides[i]) * 2;
  }
  return layout;
}

struct KernelLaunch {
  std::string_view kernel;  // the entry's name
  std::array<uint32_t, 3> grid{1, 1, 1};
  uint32_t threads = 0;
  uint32_t dynamic_shared_bytes = 0;
  std::span<const std::byte> parameters;  // the one struct that the kernel takes by value
  std::span<const Region> regions;
  // May start when every block of the launch before it on the stream has let it (ptx/dependent_launch.cuh), and waits
  // for that launch by itself. A device may also run one after the other.
  bool beside_previous = false;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // Makes a kernel ready, so that launch() may be captured in a graph: what is lazy happens here.
  virtual Status prepare(std::string_view kernel) = 0;

  // Asynchronous on the stream (null: the default one); allocates nothing, synchronises nothing.
  virtual Status launch(const KernelLaunch& launch, void* stream) = 0;

  // The map of a layout for kernels' parameters. False: the device copies no such tensors (it has no engine for them,
  // or a stride that the engine cannot take); kernels then copy piece by piece.
  virtual bool map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const = 0;

  virtual Status allocate(size_t bytes, void** memory) = 0;
  virtual void release(void* memory) = 0;
  // Waits for all that was launched on the stream.
  virtual Status synchronize(void* stream) = 0;

  // Both wait until the copy is done, and all that was launched on the default stream before it.
  virtual Status copy_to_device(void* to, const void* from, size_t bytes) = 0;
  virtual Status copy_to_host(void* to, const void* from, size_t bytes) = 0;
};

// The entry of a row of a kernel table.
inline std::string kernel_entry(std::string_view row) { return std::string("flashdelta_").append(row); }

// A launch's regions, made for a device that looks at them: on a card they would cost as much as the rest of the host's
// part.
template <class Make>
std::vector<Region> regions_for(const Device& device, Make make) {
  return device.info().checks_memory ? make() : std::vector<Region>{};
}

// The CUDA device of that ordinal, kept for the process; NOT_SUPPORTED or DEVICE_ERROR says in one line what is wrong:
// no driver, a driver too old for this build's kernels, no device, no such ordinal.
Status open_cuda_device(int ordinal, Device** device);

}  // namespace flashdelta
