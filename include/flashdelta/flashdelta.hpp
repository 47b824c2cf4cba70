// C++ over flashdelta.h: defaults by construction, views from pointers and shapes, exceptions from statuses. Header
// only; nothing here adds to what the C functions do, and their comments hold.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "flashdelta/flashdelta.h"

namespace flashdelta {

// What a failed call throws: the status and its sentence.
class Error : public std::runtime_error {
 public:
  Error(flashdelta_status code, const std::string& message) : std::runtime_error(message), code_(code) {}
  flashdelta_status code() const { return code_; }

 private:
  flashdelta_status code_;
};

inline void throw_if_error(flashdelta_status status) {
  if (status != FLASHDELTA_OK) throw Error(status, flashdelta_last_error());
}

// A contiguous view; for other strides fill flashdelta_tensor::strides after.
inline flashdelta_tensor tensor(const void* data, flashdelta_dtype dtype, std::initializer_list<int64_t> shape) {
  flashdelta_tensor t{};
  // The library writes to outputs alone; one view type serves both.
  throw_if_error(flashdelta_tensor_contiguous(const_cast<void*>(data), dtype, static_cast<int32_t>(shape.size()),
                                              shape.begin(), &t));
  return t;
}

struct Execution : flashdelta_execution {
  explicit Execution(flashdelta_backend which = FLASHDELTA_BACKEND_AUTO)
      : flashdelta_execution FLASHDELTA_EXECUTION_INIT {
    backend = which;
  }
};

struct AttentionForward : flashdelta_attention_forward_args {
  AttentionForward() { flashdelta_attention_forward_init(this); }

  void check(const flashdelta_execution& e) const { throw_if_error(flashdelta_attention_forward_check(this, &e)); }
  size_t workspace_bytes(const flashdelta_execution& e) const {
    size_t bytes = 0;
    throw_if_error(flashdelta_attention_forward_workspace(this, &e, &bytes));
    return bytes;
  }
  void run(const flashdelta_execution& e, void* workspace, size_t bytes) const {
    throw_if_error(flashdelta_attention_forward(this, &e, workspace, bytes));
  }
};

struct GatedDeltaForward : flashdelta_gated_delta_forward_args {
  GatedDeltaForward() { flashdelta_gated_delta_forward_init(this); }

  void check(const flashdelta_execution& e) const { throw_if_error(flashdelta_gated_delta_forward_check(this, &e)); }
  size_t workspace_bytes(const flashdelta_execution& e) const {
    size_t bytes = 0;
    throw_if_error(flashdelta_gated_delta_forward_workspace(this, &e, &bytes));
    return bytes;
  }
  void run(const flashdelta_execution& e, void* workspace, size_t bytes) const {
    throw_if_error(flashdelta_gated_delta_forward(this, &e, workspace, bytes));
  }
};

// Host memory for the workspace of CPU and emulator calls, kept from call to call.
class HostWorkspace {
 public:
  void* reserve(size_t bytes) {
    if (bytes > bytes_) {
      const size_t rounded = (bytes + 255) / 256 * 256;
      memory_.reset(std::aligned_alloc(256, rounded));
      bytes_ = memory_ ? rounded : 0;
      if (!memory_) throw std::bad_alloc();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

// Query, then run, on host memory: for CPU and emulator calls.
template <typename Call>
void run(const Call& call, const flashdelta_execution& execution, HostWorkspace& workspace) {
  const size_t bytes = call.workspace_bytes(execution);
  call.run(execution, workspace.reserve(bytes), bytes);
}

}  // namespace flashdelta
