#include "workspace.hpp"

#include <algorithm>

#if FLASHDELTA_GPU
#include "device/gpu_backends.hpp"
#endif

namespace flashdelta::python {
namespace {

constexpr size_t kLeastKept = size_t{64} << 10, kMostKept = size_t{1} << 20;

struct Kept {
  const DlpackExchange* exchange = nullptr;
  int32_t device = 0;
  void* stream = nullptr;
  size_t bytes = 0;
  std::unique_ptr<Memory> memory;

  bool serves(const Array& like, void* its_stream, size_t needed) const {
    return memory != nullptr && exchange == like.exchange && device == like.place.id && stream == its_stream &&
           bytes >= needed;
  }
  ~Kept() {
    if (Py_IsInitialized() == 0) (void)memory.release();  // the process ends, and the framework may have gone before
  }
};

thread_local Kept kept;  // NOLINT: what Workspace says of a thread

#if !FLASHDELTA_GPU
bool may_be_captured(void*) { return true; }
#endif

}  // namespace

void* aligned(void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);  // NOLINT
}

Workspace::Workspace(const Array& like, void* stream, size_t bytes) {
  if (bytes > kMostKept || may_be_captured(stream)) {
    own_ = std::make_unique<Memory>(like, bytes + kAlignment);
    data_ = aligned(own_->data());
    return;
  }
  if (!kept.serves(like, stream, bytes)) {
    const size_t most = std::max(bytes, kLeastKept);
    kept.memory.reset();
    kept.memory = std::make_unique<Memory>(like, most + kAlignment);
    kept.exchange = like.exchange;
    kept.device = like.place.id;
    kept.stream = stream;
    kept.bytes = most;
  }
  data_ = aligned(kept.memory->data());
}

}  // namespace flashdelta::python
