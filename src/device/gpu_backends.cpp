#include "device/gpu_backends.hpp"

#include "cuda/images.hpp"
#include "device/attention_forward.hpp"
#include "device/cuda_driver.hpp"
#include "device/emulator_device.hpp"
#include "device/gated_delta_forward.hpp"

namespace flashdelta {
namespace {

thread_local emulator::Counters last_counters;  // NOLINT: what last_emulator_counters() promises

// The profile that a call asks for, else the device's own.
const ArchProfile& profile(const flashdelta_execution& e, const ArchProfile& own) {
  return e.arch == 0 ? own : *find_arch(e.arch);
}

// A device under the limits of a profile that is not larger than its own in anything.
Status check_profile(const Device& device, const ArchProfile& arch) {
  if (arch.shared_bytes_block <= device.info().shared_bytes_block) return {};
  return not_supported(fmt::format("execution.arch: {} has {} bytes of shared memory a block, {} only {}", arch.name,
                                   arch.shared_bytes_block, device.info().name, device.info().shared_bytes_block));
}

// The device of a CUDA call, and the profile it is planned under.
Status open_cuda(const flashdelta_execution& e, Device** device, const ArchProfile** arch) {
  FLASHDELTA_RETURN_IF_ERROR(open_cuda_device(e.device, device));
  *arch = &profile(e, *(*device)->info().arch);
  return check_profile(**device, **arch);
}

Status cuda_attention_prepare(const AttentionProblem& p, const flashdelta_execution& e) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return prepare_attention_forward(*device, *arch, p);
}

Status cuda_attention_workspace(const AttentionProblem& p, const flashdelta_execution& e, size_t* bytes) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return attention_forward_workspace_on(p, *arch, device->info().sm_count, bytes);
}

Status cuda_attention(const AttentionProblem& p, const flashdelta_execution& e, void* workspace) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return attention_forward_on(*device, *arch, p, workspace, e.stream);
}

Status cuda_gated_delta_prepare(const GatedDeltaProblem& p, const flashdelta_execution& e) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return prepare_gated_delta_forward(*device, *arch, p);
}

Status cuda_gated_delta_workspace(const GatedDeltaProblem& p, const flashdelta_execution& e, size_t* bytes) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return gated_delta_forward_workspace_on(p, *arch, device->info().sm_count, bytes);
}

Status cuda_gated_delta(const GatedDeltaProblem& p, const flashdelta_execution& e, void* workspace) {
  Device* device = nullptr;
  const ArchProfile* arch = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(open_cuda(e, &device, &arch));
  return gated_delta_forward_on(*device, *arch, p, workspace, e.stream);
}

// The emulator, as an SM120 card unless the call asks for another; warps in one random order, always the same.
EmulatorDevice open_emulator(const flashdelta_execution& e) {
  return {profile(e, *parse_arch("sm120")), e.num_threads, 1};
}

Status emulator_attention_workspace(const AttentionProblem& p, const flashdelta_execution& e, size_t* bytes) {
  const EmulatorDevice device = open_emulator(e);
  return attention_forward_workspace_on(p, *device.info().arch, device.info().sm_count, bytes);
}

Status emulator_attention(const AttentionProblem& p, const flashdelta_execution& e, void* workspace) {
  EmulatorDevice device = open_emulator(e);
  const Status status = attention_forward_on(device, *device.info().arch, p, workspace, nullptr);
  last_counters = device.counters();
  return status;
}

Status emulator_gated_delta_workspace(const GatedDeltaProblem& p, const flashdelta_execution& e, size_t* bytes) {
  const EmulatorDevice device = open_emulator(e);
  return gated_delta_forward_workspace_on(p, *device.info().arch, device.info().sm_count, bytes);
}

Status emulator_gated_delta(const GatedDeltaProblem& p, const flashdelta_execution& e, void* workspace) {
  EmulatorDevice device = open_emulator(e);
  const Status status = gated_delta_forward_on(device, *device.info().arch, p, workspace, nullptr);
  last_counters = device.counters();
  return status;
}

}  // namespace

const Backend cuda_backend = {FLASHDELTA_BACKEND_CUDA,
                              "cuda",
                              false,
                              attention_forward_supported,
                              gated_delta_forward_supported,
                              cuda_attention_prepare,
                              cuda_gated_delta_prepare,
                              cuda_attention_workspace,
                              cuda_gated_delta_workspace,
                              cuda_attention,
                              cuda_gated_delta};

const Backend emulator_backend = {FLASHDELTA_BACKEND_EMULATOR,
                                  "emulator",
                                  true,
                                  attention_forward_supported,
                                  gated_delta_forward_supported,
                                  nullptr,
                                  nullptr,
                                  emulator_attention_workspace,
                                  emulator_gated_delta_workspace,
                                  emulator_attention,
                                  emulator_gated_delta};

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

bool may_be_captured(void* stream) {
  const CudaDriver* driver = nullptr;
  CUstreamCaptureStatus status{};
  return !cuda_driver(&driver).ok() ||
         driver->stream_is_capturing(static_cast<CUstream>(stream), &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace flashdelta
