// A CUDA device through the driver API. Every call works in the device's primary context, which is the one that the
// CUDA runtime, PyTorch and JAX use, and leaves the caller's current context as it was.
#include <map>
#include <mutex>

#include "cuda/images.hpp"
#include "device/cuda_driver.hpp"
#include "device/device.hpp"
#include "device/tensor_map.hpp"

namespace flashdelta {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDriver& driver, CUdevice device) : driver_(driver), device_(device) {}

  Status open() {
    FLASHDELTA_RETURN_IF_ERROR(
        driver_.check(driver_.primary_context_retain(&context_, device_), "retaining the primary context"));
    char name[256] = {};
    FLASHDELTA_RETURN_IF_ERROR(driver_.check(driver_.device_name(name, sizeof name, device_), "the device's name"));
    info_.name = name;
    int major = 0, minor = 0, sms = 0, block = 0, sm = 0, reserved = 0, threads = 0, blocks = 0;
    const std::pair<CUdevice_attribute, int*> attributes[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &block},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &sm},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &reserved},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &blocks},
    };
    for (const auto& [attribute, value] : attributes) {
      FLASHDELTA_RETURN_IF_ERROR(
          driver_.check(driver_.device_attribute(value, attribute, device_), "a device attribute"));
    }
    capability_ = major * 10 + minor;
    for (const ArchProfile& row : arch_profiles()) {
      if (row.major * 10 + row.minor <= capability_) info_.arch = &row;
    }
    if (info_.arch == nullptr) {
      return not_supported(
          fmt::format("cuda: {} has compute capability {}.{}; the kernels need 8.0 or above", name, major, minor));
    }
    info_.sm_count = sms;
    info_.shared_bytes_block = block;
    info_.shared_bytes_sm = sm;
    info_.shared_bytes_reserved = reserved;
    info_.threads_sm = threads;
    info_.blocks_sm = blocks;
    return {};
  }

  const DeviceInfo& info() const override { return info_; }

  Status prepare(std::string_view kernel) override {
    CUkernel unused = nullptr;
    return find(kernel, &unused);
  }

  Status launch(const KernelLaunch& l, void* stream) override {
    CUkernel kernel = nullptr;
    FLASHDELTA_RETURN_IF_ERROR(find(l.kernel, &kernel));
    // Not as a buffer (CU_LAUNCH_PARAM_BUFFER_POINTER): a struct aligned to 128 bytes lies somewhere behind its start.
    void* arguments[] = {const_cast<std::byte*>(l.parameters.data())};
    CUlaunchAttribute beside{};
    beside.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    beside.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig launch{};
    launch.gridDimX = l.grid[0], launch.gridDimY = l.grid[1], launch.gridDimZ = l.grid[2];
    launch.blockDimX = l.threads, launch.blockDimY = launch.blockDimZ = 1;
    launch.sharedMemBytes = l.dynamic_shared_bytes;
    launch.hStream = static_cast<CUstream>(stream);
    launch.attrs = &beside;
    launch.numAttrs = l.beside_previous && info_.arch->features.programmatic_launch ? 1 : 0;
    return in_context("launching", l.kernel, [&] {
      return driver_.launch(&launch, reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
    });
  }

  bool map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const override {
    if (!info_.arch->features.bulk_copy) return false;
    bool mapped = false;
    const auto encode = [&] {
      mapped = encode_tensor_map(driver_.encode_tensor_map, layout, map);
      return CUDA_SUCCESS;
    };
    return in_context("mapping", "a tensor", encode).ok() && mapped;
  }

  Status allocate(size_t bytes, void** memory) override {
    CUdeviceptr pointer = 0;
    FLASHDELTA_RETURN_IF_ERROR(in_context("allocating", fmt::format("{} bytes", bytes),
                                          [&] { return driver_.allocate(&pointer, std::max<size_t>(bytes, 1)); }));
    *memory = reinterpret_cast<void*>(pointer);
    return {};
  }

  void release(void* memory) override {
    // Nothing can be done about a failed free, and the next call will report the device's state.
    (void)in_context("freeing", "memory", [&] { return driver_.release(reinterpret_cast<CUdeviceptr>(memory)); });
  }

  Status synchronize(void* stream) override {
    return in_context("waiting for", "the device", [&] { return driver_.synchronize(static_cast<CUstream>(stream)); });
  }

  Status copy_to_device(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return {};
    return in_context("copying to", "the device",
                      [&] { return driver_.copy_to_device(reinterpret_cast<CUdeviceptr>(to), from, bytes); });
  }

  Status copy_to_host(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return {};
    return in_context("copying from", "the device", [&] {
      return driver_.copy_to_host(to, reinterpret_cast<CUdeviceptr>(const_cast<void*>(from)), bytes);
    });
  }

 private:
  // verb and subject: what is tried, put into words only where it fails.
  template <typename Call>
  Status in_context(std::string_view verb, std::string_view subject, Call call) const {
    CUcontext current = nullptr;  // mostly the framework has made it so
    const bool inside = driver_.context_current(&current) == CUDA_SUCCESS && current == context_;
    if (!inside)
      FLASHDELTA_RETURN_IF_ERROR(driver_.check(driver_.context_push(context_), "entering the primary context"));
    const CUresult result = call();
    CUcontext popped = nullptr;
    if (!inside) FLASHDELTA_RETURN_IF_ERROR(driver_.check(driver_.context_pop(&popped), "leaving the primary context"));
    return result == CUDA_SUCCESS ? Status{} : driver_.check(result, fmt::format("{} {}", verb, subject));
  }

  // The best image for this device: machine code of its own major version, newest first, else PTX it can compile.
  const KernelImage* choose_image(std::string_view kernel) const {
    const KernelImage* best = nullptr;
    for (const KernelImage& image : kernel_images()) {
      if (image.kernel != kernel || image.arch > capability_) continue;
      if (!image.is_ptx && image.arch / 10 != capability_ / 10) continue;
      const auto rank = [](const KernelImage& i) { return (i.is_ptx ? 0 : 1000) + i.arch; };
      if (best == nullptr || rank(image) > rank(*best)) best = &image;
    }
    return best;
  }

  Status find(std::string_view name, CUkernel* kernel) {
    const std::lock_guard lock(mutex_);
    if (const auto it = kernels_.find(name); it != kernels_.end()) {
      *kernel = it->second;
      return {};
    }
    const KernelImage* image = choose_image(name);
    if (image == nullptr) {
      return not_supported(
          fmt::format("cuda: this build has no code of {} for {} (sm_{})", name, info_.name, capability_));
    }
    CUlibrary library = nullptr;
    FLASHDELTA_RETURN_IF_ERROR(in_context("loading", name, [&] {
      return driver_.library_load(&library, image->bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    }));
    FLASHDELTA_RETURN_IF_ERROR(in_context(
        "finding", name, [&] { return driver_.library_kernel(kernel, library, std::string(name).c_str()); }));
    FLASHDELTA_RETURN_IF_ERROR(in_context("shared memory of", name, [&] {
      return driver_.kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          static_cast<int>(info_.shared_bytes_block), *kernel, device_);
    }));
    CUfunction loaded = nullptr;  // asking for it loads the code, which a stream under capture would not allow
    FLASHDELTA_RETURN_IF_ERROR(
        in_context("loading the code of", name, [&] { return driver_.kernel_function(&loaded, *kernel); }));
    kernels_.emplace(name, *kernel);
    return {};
  }

  const CudaDriver& driver_;
  CUdevice device_;
  CUcontext context_ = nullptr;
  int capability_ = 0;
  DeviceInfo info_;
  std::mutex mutex_;
  std::map<std::string, CUkernel, std::less<>> kernels_;
};

}  // namespace

Status open_cuda_device(int ordinal, Device** device) {
  const CudaDriver* driver = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(cuda_driver(&driver));
  static thread_local std::pair<int, CudaDevice*> last{-1, nullptr};  // a call asks several times
  if (last.first == ordinal) {
    *device = last.second;
    return {};
  }
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<CudaDevice>> devices;
  const std::lock_guard lock(mutex);
  auto& slot = devices[ordinal];
  if (slot == nullptr) {
    int count = 0;
    FLASHDELTA_RETURN_IF_ERROR(driver->check(driver->device_count(&count), "counting devices"));
    if (ordinal >= count) {
      return invalid("execution.device", fmt::format("under the {} devices there are", count), std::to_string(ordinal));
    }
    CUdevice handle = 0;
    FLASHDELTA_RETURN_IF_ERROR(driver->check(driver->device_get(&handle, ordinal), "opening the device"));
    auto opened = std::make_unique<CudaDevice>(*driver, handle);
    FLASHDELTA_RETURN_IF_ERROR(opened->open());
    slot = std::move(opened);
  }
  last = {ordinal, slot.get()};
  *device = slot.get();
  return {};
}

}  // namespace flashdelta
