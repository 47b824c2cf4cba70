#include "device/emulator_device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "cuda/images.hpp"
#include "emulator/tensor_map.hpp"

namespace flashdelta {
namespace {

// Decoding a kernel's PTX takes longer than running a small one: modules are kept for the process.
Status find_module(std::string_view kernel, const emulator::Module** module) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<emulator::Module>, std::less<>> modules;
  const std::lock_guard lock(mutex);
  auto it = modules.find(kernel);
  if (it == modules.end()) {
    const KernelImage* ptx = nullptr;
    for (const KernelImage& image : kernel_images()) {
      if (image.is_ptx && image.arch == 120 && image.kernel == kernel) ptx = &image;
    }
    if (ptx == nullptr) return not_supported(fmt::format("emulator: this build has no PTX of {}", kernel));
    auto loaded = std::make_unique<emulator::Module>();
    FLASHDELTA_RETURN_IF_ERROR(loaded->load({reinterpret_cast<const char*>(ptx->bytes.data()), ptx->bytes.size()}));
    it = modules.emplace(kernel, std::move(loaded)).first;
  }
  *module = it->second.get();
  return {};
}

// Tensors may be views of one another (q, k and v of one projection; a state updated in place): what overlaps is one
// region to the emulator, which knows a byte by one name.
void add_regions(std::span<const Region> regions, emulator::Memory* memory) {
  std::vector<Region> sorted;
  for (const Region& region : regions) {
    if (region.bytes > 0) sorted.push_back(region);
  }
  const auto begin = [](const Region& r) { return reinterpret_cast<uintptr_t>(r.data); };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Region& a, const Region& b) { return begin(a) < begin(b); });
  for (size_t i = 0; i < sorted.size();) {
    Region whole = sorted[i];
    std::string name = whole.name;
    for (i++; i < sorted.size() && begin(sorted[i]) < begin(whole) + whole.bytes; i++) {
      const Region& next = sorted[i];
      whole.bytes = std::max<size_t>(whole.bytes, begin(next) + next.bytes - begin(whole));
      whole.written |= next.written;
      whole.defined |= next.defined;
      name += fmt::format(" and {}", next.name);
    }
    memory->add(const_cast<void*>(whole.data), whole.bytes, name,
                {.readable = true, .writable = whole.written, .initialised = whole.defined});
  }
}

}  // namespace

EmulatorDevice::EmulatorDevice(const ArchProfile& arch, int threads, uint32_t seed) : threads_(threads), seed_(seed) {
  info_.name = fmt::format("emulator of {}", arch.name);
  info_.arch = &arch;
  info_.checks_memory = true;
  for (const DeviceProfile& device : device_profiles()) {  // a card of this kind, so that plans are that card's
    if (device.arch == &arch && info_.sm_count == 0) info_.sm_count = device.sm_count;
  }
  if (info_.sm_count == 0) info_.sm_count = 1;
  info_.shared_bytes_block = arch.shared_bytes_block;
  info_.shared_bytes_sm = arch.shared_bytes_sm;
  info_.shared_bytes_reserved = arch.shared_bytes_reserved;
  info_.threads_sm = static_cast<int>(arch.threads_sm);
  info_.blocks_sm = static_cast<int>(arch.blocks_sm);
}

Status EmulatorDevice::prepare(std::string_view kernel) {
  const emulator::Module* module = nullptr;
  return find_module(kernel, &module);
}

Status EmulatorDevice::launch(const KernelLaunch& l, void*) {
  const emulator::Module* module = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(find_module(l.kernel, &module));
  emulator::Memory memory;
  add_regions(l.regions, &memory);
  emulator::Launch launch;
  launch.kernel = l.kernel;
  launch.grid = l.grid;
  launch.block = {l.threads, 1, 1};
  launch.dynamic_shared_bytes = l.dynamic_shared_bytes;
  const auto* bytes = reinterpret_cast<const uint8_t*>(l.parameters.data());
  launch.parameters.assign(bytes, bytes + l.parameters.size());
  launch.limits.shared_per_block = static_cast<uint32_t>(info_.shared_bytes_block);
  launch.limits.registers_per_thread = static_cast<uint32_t>(info_.arch->registers_thread);
  launch.limits.registers_per_block = static_cast<uint32_t>(info_.arch->registers_sm);
  launch.limits.threads_per_block = static_cast<uint32_t>(info_.arch->threads_block);
  launch.seed = seed_;
  launch.threads = threads_;
  emulator::Report report;
  FLASHDELTA_RETURN_IF_ERROR(module->launch(memory, launch, &report, &counters_));
  if (report.silent()) return {};
  return {FLASHDELTA_DEVICE_ERROR, fmt::format("emulator: {}", report.text())};
}

bool EmulatorDevice::map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const {
  const emulator::TensorMap mapped{.data = reinterpret_cast<uintptr_t>(layout.data),
                                   .sizes = layout.sizes,
                                   .strides = layout.strides,
                                   .box = layout.box};
  static_assert(sizeof mapped <= sizeof *map);
  if (!info_.arch->features.bulk_copy || !mapped.is_valid()) return false;
  std::memcpy(map->words, &mapped, sizeof mapped);
  return true;
}

Status EmulatorDevice::allocate(size_t bytes, void** memory) {
  *memory = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
  if (*memory == nullptr) return {FLASHDELTA_OUT_OF_MEMORY, fmt::format("emulator: no memory for {} bytes", bytes)};
  return {};
}

void EmulatorDevice::release(void* memory) { std::free(memory); }

Status EmulatorDevice::copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

Status EmulatorDevice::copy_to_host(void* to, const void* from, size_t bytes) {
  return copy_to_device(to, from, bytes);
}

}  // namespace flashdelta
