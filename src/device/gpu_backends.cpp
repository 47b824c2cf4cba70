#include "device/gpu_backends.hpp"

#include "cuda/images.hpp"
#include "device/attention_forward.hpp"
#include "device/cuda_driver.hpp"
#include "device/emulator_device.hpp"

namespace flashdelta {
namespace {

thread_local emulator::Counters last_counters;  // NOLINT: what last_emulator_counters() promises

Status no_gated_delta(const GatedDeltaProblem&) {
  return not_supported("gated_delta_forward: no GPU kernel in this version; the cpu backend has it");
}

template <typename Problem>
Status no_workspace(const Problem&, const flashdelta_execution&, size_t* bytes) {
  *bytes = 0;
  return {};
}

// The profile that a call asks for, else the device's own.
const ArchProfile& profile(const flashdelta_execution& e, const ArchProfile& own) {
  return e.arch == 0 ? own : *parse_arch(std::to_string(e.arch));
}

// A device under the limits of a profile that is not larger than its own in anything.
Status check_profile(const Device& device, const ArchProfile& arch) {
  if (arch.shared_bytes_block <= device.info().shared_bytes_block) return {};
  return not_supported(fmt::format("execution.arch: {} has {} bytes of shared memory a block, {} only {}", arch.name,
                                   arch.shared_bytes_block, device.info().name, device.info().shared_bytes_block));
}

Status cuda_attention(const AttentionProblem& p, const flashdelta_execution& e, void*) {
  Device* device = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda_device(e.device, &device));
  const ArchProfile& arch = profile(e, *device->info().arch);
  FLASHDELTA_RETURN_IF_ERROR(check_profile(*device, arch));
  return attention_forward_on(*device, arch, p, e.stream);
}

Status emulator_attention(const AttentionProblem& p, const flashdelta_execution& e, void*) {
  const ArchProfile& arch = profile(e, *parse_arch("sm120"));
  EmulatorDevice device(arch, e.num_threads, 1);
  const Status status = attention_forward_on(device, arch, p, nullptr);
  last_counters = device.counters();
  return status;
}

Status unreachable_gated_delta(const GatedDeltaProblem& p, const flashdelta_execution&, void*) {
  return no_gated_delta(p);
}

}  // namespace

const Backend cuda_backend = {FLASHDELTA_BACKEND_CUDA,         "cuda",         false,
                              attention_forward_supported,     no_gated_delta, no_workspace<AttentionProblem>,
                              no_workspace<GatedDeltaProblem>, cuda_attention, unreachable_gated_delta};

const Backend emulator_backend = {FLASHDELTA_BACKEND_EMULATOR,     "emulator",         true,
                                  attention_forward_supported,     no_gated_delta,     no_workspace<AttentionProblem>,
                                  no_workspace<GatedDeltaProblem>, emulator_attention, unreachable_gated_delta};

const emulator::Counters& last_emulator_counters() { return last_counters; }

Status cuda_available() {
  const CudaDriver* driver = nullptr;
  return cuda_driver(&driver);
}

Status emulator_available() {
  for (const KernelImage& image : kernel_images()) {
    if (image.is_ptx && image.arch == 120) return {};
  }
  return not_supported("emulator: this build has no kernels to emulate, for compute_120; cpu is there");
}

bool is_device_memory(const void* pointer) {
  const CudaDriver* driver = nullptr;
  if (pointer == nullptr || !cuda_driver(&driver).ok()) return false;
  CUmemorytype type{};
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  return driver->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

}  // namespace flashdelta
