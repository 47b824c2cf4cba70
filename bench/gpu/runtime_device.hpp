// A Device over the CUDA runtime, for programs that are linked statically and carried to a machine with a card. It
// takes machine code of the card's own architecture alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "bench/gpu/runtime_tensor_map.hpp"
#include "cuda/images.hpp"
#include "device/device.hpp"

namespace flashdelta::bench {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(3);
}

class RuntimeDevice final : public Device {
 public:
  RuntimeDevice() {
    cudaDeviceProp card;
    check_cuda(cudaGetDeviceProperties(&card, 0), "the device");
    capability_ = card.major * 10 + card.minor;
    for (const ArchProfile& row : arch_profiles()) {
      if (row.major * 10 + row.minor <= capability_) info_.arch = &row;
    }
    info_.name = card.name;
    info_.sm_count = card.multiProcessorCount;
    info_.shared_bytes_block = static_cast<int64_t>(card.sharedMemPerBlockOptin);
    info_.shared_bytes_sm = static_cast<int64_t>(card.sharedMemPerMultiprocessor);
    info_.shared_bytes_reserved = static_cast<int64_t>(card.reservedSharedMemPerBlock);
    info_.threads_sm = card.maxThreadsPerMultiProcessor;
    info_.blocks_sm = card.maxBlocksPerMultiProcessor;
  }

  const DeviceInfo& info() const override { return info_; }
  Status prepare(std::string_view kernel) override { return find(kernel) ? Status{} : missing(kernel); }

  Status launch(const KernelLaunch& l, void* stream) override {
    const cudaKernel_t kernel = find(l.kernel);
    if (kernel == nullptr) return missing(l.kernel);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(l.grid[0], l.grid[1], l.grid[2]);
    config.blockDim = dim3(l.threads);
    config.dynamicSmemBytes = l.dynamic_shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute beside{};
    beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    beside.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &beside;
    config.numAttrs = l.beside_previous ? 1 : 0;
    void* arguments[] = {const_cast<std::byte*>(l.parameters.data())};  // one struct by value
    check_cuda(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments), "a launch");
    return {};
  }

  bool map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const override {
    return info_.arch->features.bulk_copy && bench::encode_tensor_map(layout, map);
  }

  Status allocate(size_t bytes, void** memory) override {
    check_cuda(cudaMalloc(memory, std::max<size_t>(bytes, 256)), "memory");
    return {};
  }
  void release(void* memory) override { cudaFree(memory); }
  Status synchronize(void* stream) override {
    check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "a stream");
    return {};
  }
  Status copy_to_device(void* to, const void* from, size_t bytes) override {
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy");
    return {};
  }
  Status copy_to_host(void* to, const void* from, size_t bytes) override {
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a copy");
    return {};
  }

 private:
  static Status missing(std::string_view kernel) { return not_supported(fmt::format("no machine code of {}", kernel)); }

  cudaKernel_t find(std::string_view name) {
    cudaKernel_t& kernel = kernels_[std::string(name)];
    for (const KernelImage& image : kernel_images()) {
      if (kernel != nullptr || image.kernel != name || image.is_ptx || image.arch != capability_) continue;
      cudaLibrary_t library = nullptr;
      check_cuda(cudaLibraryLoadData(&library, image.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                 "loading");
      check_cuda(cudaLibraryGetKernel(&kernel, library, std::string(name).c_str()), "finding a kernel");
      check_cuda(
          cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(info_.shared_bytes_block)),
          "shared memory");
    }
    return kernel;
  }

  DeviceInfo info_;
  int capability_ = 0;
  std::map<std::string, cudaKernel_t> kernels_;
};

}  // namespace flashdelta::bench
