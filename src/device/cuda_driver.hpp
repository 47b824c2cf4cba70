// NVIDIA's driver API, looked up when it is first needed: the library loads on machines that have no driver.
#pragma once

#include <cuda.h>

#include "core/status.hpp"

namespace flashdelta {

struct CudaDriver {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDriverGetVersion) driver_version = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGetCount) device_count = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetName) device_name = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) primary_context_retain = nullptr;
  decltype(&cuCtxGetCurrent) context_current = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuLibraryLoadData) library_load = nullptr;
  decltype(&cuLibraryGetKernel) library_kernel = nullptr;
  decltype(&cuKernelGetFunction) kernel_function = nullptr;
  decltype(&cuKernelSetAttribute) kernel_set_attribute = nullptr;
  decltype(&cuLaunchKernelEx) launch = nullptr;
  decltype(&cuStreamSynchronize) synchronize = nullptr;
  decltype(&cuStreamIsCapturing) stream_is_capturing = nullptr;
  decltype(&cuMemAlloc) allocate = nullptr;
  decltype(&cuMemFree) release = nullptr;
  decltype(&cuMemcpyHtoD) copy_to_device = nullptr;
  decltype(&cuMemcpyDtoH) copy_to_host = nullptr;
  decltype(&cuPointerGetAttribute) pointer_attribute = nullptr;
  decltype(&cuTensorMapEncodeTiled) encode_tensor_map = nullptr;

  // OK, or DEVICE_ERROR: what was tried, and the driver's words.
  Status check(CUresult result, std::string_view what) const;
};

// The driver, initialised; NOT_SUPPORTED where there is none, it is too old, or it sees no device.
Status cuda_driver(const CudaDriver** driver);

}  // namespace flashdelta
