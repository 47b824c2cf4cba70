// Python arrays as the C ABI's tensor views. An array that is None is an absent tensor.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "flashdelta/flashdelta.h"

namespace flashdelta::python {

namespace nb = nanobind;

struct DlpackExchange;
struct DlpackManagedVersioned;

// A status that is not OK becomes ValueError, NotImplementedError, MemoryError or RuntimeError with the C message.
void check(flashdelta_status status);

struct Place {
  int32_t type = 0;  // a DLDeviceType
  int32_t id = 0;

  bool is_cuda() const;
  bool is_host() const;
  std::string name() const;  // "cuda:0", "cpu"
  bool operator==(const Place& other) const;
};

// A view of an array that lives in Python. Keeps what the view needs alive.
struct Array {
  flashdelta_tensor view{};
  Place place;
  const DlpackExchange* exchange = nullptr;  // the framework's functions, where it has them
  nb::object owner;
};

// TypeError: no array, or a dtype that the library has not. ValueError: written is true and the array is read-only.
// stream: what the producer must have finished on before the array is read, for a framework without an exchange table.
Array read_array(nb::handle object, const char* name, bool written, uint64_t stream);

// A new array of the framework that `like` came from, on its device, through its exchange table. MemoryError and what
// else the framework raises.
struct NewArray {
  flashdelta_tensor view{};
  nb::object object;
};
NewArray new_array(const Array& like, flashdelta_dtype dtype, int32_t ndim, const int64_t* shape);

// Device memory for as long as this lives; the framework's allocator orders its reuse by stream.
class Memory {
 public:
  Memory(const Array& like, size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const;

 private:
  DlpackManagedVersioned* managed_ = nullptr;
};

// The framework's current stream on a CUDA device; `otherwise` where the framework has no exchange table.
void* current_stream(const Array& array, uint64_t otherwise);

}  // namespace flashdelta::python
