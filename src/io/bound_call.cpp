#include "io/bound_call.hpp"

#include <algorithm>
#include <cstdlib>

#if FLASHDELTA_GPU
#include "device/device.hpp"
#endif

namespace flashdelta {
namespace {

Status last_error(flashdelta_status code) {
  if (code == FLASHDELTA_OK) return {};
  return {code, flashdelta_last_error()};
}

#if FLASHDELTA_GPU
int64_t longest(const HostTensor& offsets) {
  int64_t most = 0;
  for (int64_t i = 1; i < offsets.numel(); i++) most = std::max(most, offsets.get_int(i) - offsets.get_int(i - 1));
  return most;
}

// What the plan may know of lengths that the kernels read where they lie.
void tell_lengths(const Call& call, flashdelta_attention_forward_args* attention,
                  flashdelta_gated_delta_forward_args* gated_delta) {
  for (const auto& [name, field] : {std::pair{"cu_seqlens_q", &attention->max_seqlen_q},
                                    {"cu_seqlens_k", &attention->max_seqlen_k},
                                    {"cu_seqlens", &gated_delta->max_seqlen}}) {
    if (const auto it = call.inputs.find(name); it != call.inputs.end()) *field = longest(it->second);
  }
}
#endif

}  // namespace

Status BoundCall::bind(Call& call, const flashdelta_execution& execution) {
  call_ = &call;
  execution_ = execution;
  attention_ = call.attention;
  gated_delta_ = call.gated_delta;
#if FLASHDELTA_GPU
  if (execution.backend == FLASHDELTA_BACKEND_CUDA || execution.backend == FLASHDELTA_BACKEND_EMULATOR) {
    tell_lengths(call, &attention_, &gated_delta_);
  }
  if (execution.backend == FLASHDELTA_BACKEND_CUDA) {
    FLASHDELTA_RETURN_IF_ERROR(open_cuda_device(execution.device, &device_));
    // The header pins the layout: an argument struct's tensors stand together, from q to the first plain field.
    const bool is_attention = call.operation == Operation::attention_forward;
    FLASHDELTA_RETURN_IF_ERROR(is_attention
                                   ? stage(&attention_.q, (offsetof(flashdelta_attention_forward_args, max_seqlen_q) -
                                                           offsetof(flashdelta_attention_forward_args, q)) /
                                                              sizeof(flashdelta_tensor))
                                   : stage(&gated_delta_.q, (offsetof(flashdelta_gated_delta_forward_args, max_seqlen) -
                                                             offsetof(flashdelta_gated_delta_forward_args, q)) /
                                                                sizeof(flashdelta_tensor)));
  }
#endif
  return allocate_workspace();
}

Status BoundCall::stage([[maybe_unused]] flashdelta_tensor* tensors, [[maybe_unused]] size_t count) {
#if FLASHDELTA_GPU
  for (const TensorMap* map : {&call_->inputs, &call_->outputs}) {
    for (const auto& [name, tensor] : *map) {
      Copy copy{tensor.data(), nullptr, tensor.bytes()};
      FLASHDELTA_RETURN_IF_ERROR(device_->allocate(copy.bytes, &copy.device));
      copies_.push_back(copy);
      FLASHDELTA_RETURN_IF_ERROR(device_->copy_to_device(copy.device, copy.host, copy.bytes));
    }
  }
  for (size_t i = 0; i < count; i++) {
    const auto copy = std::find_if(copies_.begin(), copies_.end(),
                                   [&](const Copy& c) { return c.host == tensors[i].data && c.host != nullptr; });
    if (copy != copies_.end()) tensors[i].data = copy->device;
  }
#endif
  return {};
}

Status BoundCall::allocate_workspace() {
  const bool is_attention = call_->operation == Operation::attention_forward;
  FLASHDELTA_RETURN_IF_ERROR(last_error(
      is_attention ? flashdelta_attention_forward_workspace(&attention_, &execution_, &workspace_bytes_)
                   : flashdelta_gated_delta_forward_workspace(&gated_delta_, &execution_, &workspace_bytes_)));
  if (workspace_bytes_ == 0) return {};
#if FLASHDELTA_GPU
  if (device_ != nullptr) return device_->allocate(workspace_bytes_, &workspace_);
#endif
  workspace_ = std::aligned_alloc(256, (workspace_bytes_ + 255) / 256 * 256);
  if (workspace_ != nullptr) return {};
  return {FLASHDELTA_OUT_OF_MEMORY, fmt::format("workspace: no memory for {} bytes", workspace_bytes_)};
}

Status BoundCall::run() {
  const bool is_attention = call_->operation == Operation::attention_forward;
  FLASHDELTA_RETURN_IF_ERROR(last_error(
      is_attention ? flashdelta_attention_forward(&attention_, &execution_, workspace_, workspace_bytes_)
                   : flashdelta_gated_delta_forward(&gated_delta_, &execution_, workspace_, workspace_bytes_)));
#if FLASHDELTA_GPU
  if (device_ != nullptr) return device_->synchronize(execution_.stream);
#endif
  return {};
}

Status BoundCall::fetch() {
#if FLASHDELTA_GPU
  const size_t first_output = call_->inputs.size();
  for (size_t i = first_output; i < copies_.size(); i++) {
    FLASHDELTA_RETURN_IF_ERROR(device_->copy_to_host(copies_[i].host, copies_[i].device, copies_[i].bytes));
  }
#endif
  return {};
}

BoundCall::~BoundCall() {
#if FLASHDELTA_GPU
  if (device_ != nullptr) {
    for (const Copy& copy : copies_) device_->release(copy.device);
    if (workspace_ != nullptr) device_->release(workspace_);
    return;
  }
#endif
  std::free(workspace_);
}

}  // namespace flashdelta
