// A call in the memory of its backend: host tensors as they are for the CPU and the emulator, copies on the device for
// CUDA. Made once, run many times.
#pragma once

#include <memory>

#include "io/call.hpp"

namespace flashdelta {

class Device;

class BoundCall {
 public:
  BoundCall() = default;
  BoundCall(const BoundCall&) = delete;
  BoundCall& operator=(const BoundCall&) = delete;
  ~BoundCall();

  // Memory, copies of the inputs and of the outputs as they stand, workspace. `call` must outlive this.
  Status bind(Call& call, const flashdelta_execution& execution);
  // Runs, and waits until it is done.
  Status run();
  // The outputs back to the call's host tensors; nothing to do where they never left.
  Status fetch();

 private:
  Status stage(flashdelta_tensor* tensors, size_t count);
  Status allocate_workspace();

  Call* call_ = nullptr;
  flashdelta_execution execution_{};
  flashdelta_attention_forward_args attention_{};
  flashdelta_gated_delta_forward_args gated_delta_{};
  Device* device_ = nullptr;  // null: host memory
  struct Copy {
    void* host;
    void* device;
    size_t bytes;
  };
  std::vector<Copy> copies_;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
};

}  // namespace flashdelta
