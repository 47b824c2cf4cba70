#include "device/cuda_driver.hpp"

#include <dlfcn.h>

namespace flashdelta {
namespace {

// cuda.h renames many functions by macro (cuMemAlloc is cuMemAlloc_v2); the name to look up is the renamed one.
#define FLASHDELTA_NAME_OF(function) FLASHDELTA_QUOTE(function)
#define FLASHDELTA_QUOTE(text) #text

struct Loaded {
  CudaDriver driver;
  Status status;
};

template <typename Function>
bool look_up(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

bool look_up_all(void* library, CudaDriver* d) {
  return look_up(library, FLASHDELTA_NAME_OF(cuInit), &d->init) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDriverGetVersion), &d->driver_version) &&
         look_up(library, FLASHDELTA_NAME_OF(cuGetErrorString), &d->error_string) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDeviceGetCount), &d->device_count) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDeviceGet), &d->device_get) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDeviceGetName), &d->device_name) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDeviceGetAttribute), &d->device_attribute) &&
         look_up(library, FLASHDELTA_NAME_OF(cuDevicePrimaryCtxRetain), &d->primary_context_retain) &&
         look_up(library, FLASHDELTA_NAME_OF(cuCtxGetCurrent), &d->context_current) &&
         look_up(library, FLASHDELTA_NAME_OF(cuCtxPushCurrent), &d->context_push) &&
         look_up(library, FLASHDELTA_NAME_OF(cuCtxPopCurrent), &d->context_pop) &&
         look_up(library, FLASHDELTA_NAME_OF(cuLibraryLoadData), &d->library_load) &&
         look_up(library, FLASHDELTA_NAME_OF(cuLibraryGetKernel), &d->library_kernel) &&
         look_up(library, FLASHDELTA_NAME_OF(cuKernelGetFunction), &d->kernel_function) &&
         look_up(library, FLASHDELTA_NAME_OF(cuKernelSetAttribute), &d->kernel_set_attribute) &&
         look_up(library, FLASHDELTA_NAME_OF(cuLaunchKernelEx), &d->launch) &&
         look_up(library, FLASHDELTA_NAME_OF(cuStreamSynchronize), &d->synchronize) &&
         look_up(library, FLASHDELTA_NAME_OF(cuStreamIsCapturing), &d->stream_is_capturing) &&
         look_up(library, FLASHDELTA_NAME_OF(cuMemAlloc), &d->allocate) &&
         look_up(library, FLASHDELTA_NAME_OF(cuMemFree), &d->release) &&
         look_up(library, FLASHDELTA_NAME_OF(cuMemcpyHtoD), &d->copy_to_device) &&
         look_up(library, FLASHDELTA_NAME_OF(cuMemcpyDtoH), &d->copy_to_host) &&
         look_up(library, FLASHDELTA_NAME_OF(cuPointerGetAttribute), &d->pointer_attribute) &&
         look_up(library, FLASHDELTA_NAME_OF(cuTensorMapEncodeTiled), &d->encode_tensor_map);
}

Status load(CudaDriver* d) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_supported("cuda: no NVIDIA driver on this machine (libcuda.so.1 is not there)");
  constexpr int needed = CUDA_VERSION;
  const auto too_old = [](int version) {
    return not_supported(fmt::format("cuda: the NVIDIA driver is for CUDA {}.{}; this build's kernels need {}.{}",
                                     version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10));
  };
  int version = 0;
  if (look_up(library, FLASHDELTA_NAME_OF(cuDriverGetVersion), &d->driver_version) &&
      d->driver_version(&version) == CUDA_SUCCESS && version < needed) {
    return too_old(version);
  }
  if (!look_up_all(library, d)) return too_old(version);
  if (const CUresult result = d->init(0); result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NO_DEVICE) return not_supported("cuda: the NVIDIA driver sees no device");
    return d->check(result, "the NVIDIA driver could not be initialised");
  }
  int count = 0;
  FLASHDELTA_RETURN_IF_ERROR(d->check(d->device_count(&count), "counting devices"));
  if (count == 0) return not_supported("cuda: the NVIDIA driver sees no device");
  return {};
}

}  // namespace

Status CudaDriver::check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) return {};
  const char* words = nullptr;
  if (error_string(result, &words) != CUDA_SUCCESS || words == nullptr) words = "an error without a name";
  return {FLASHDELTA_DEVICE_ERROR, fmt::format("cuda: {}: {} ({})", what, words, static_cast<int>(result))};
}

Status cuda_driver(const CudaDriver** driver) {
  static const Loaded loaded = [] {
    Loaded l;
    l.status = load(&l.driver);
    return l;
  }();
  *driver = &loaded.driver;
  return loaded.status;
}

}  // namespace flashdelta
