// Device memory that a call works in, from the framework's allocator, aligned as the library asks.
#pragma once

#include <memory>

#include "arrays.hpp"

namespace flashdelta::python {

constexpr size_t kAlignment = 256;  // of a workspace

// Up to 1 MiB is kept for the thread's next call on the same stream, whose work waits for this call's. Not where the
// stream is being captured: a graph's replay may run beside later calls.
class Workspace {
 public:
  Workspace(const Array& like, void* stream, size_t bytes);
  void* data() const { return data_; }

 private:
  std::unique_ptr<Memory> own_;
  void* data_;
};

void* aligned(void* memory);

}  // namespace flashdelta::python
