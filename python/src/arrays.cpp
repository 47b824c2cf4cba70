#include "arrays.hpp"

#include <nanobind/stl/string.h>

#include <string_view>
#include <unordered_map>

#include "dlpack_exchange.hpp"

namespace flashdelta::python {
namespace {

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

std::string class_name(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

// The framework has raised instead of showing its memory: its first line, with the argument's name.
[[noreturn]] void raise_unviewable(const char* name) {
  const nb::python_error raised;
  const std::string words = nb::cast<std::string>(nb::str(raised.value()));
  raise(PyExc_TypeError, std::string(name) + ": expected an array that DLPack can view; its framework says: " +
                             words.substr(0, words.find('\n')));
}

// Looked up once a type; the reference to the type keeps its address from being another type's.
const DlpackExchange* exchange_of(nb::handle object) {
  static std::unordered_map<PyTypeObject*, const DlpackExchange*> known;
  static PyTypeObject* last_type = nullptr;  // all under the interpreter's lock
  static const DlpackExchange* last_table = nullptr;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type == last_type) return last_table;
  if (const auto found = known.find(type); found != known.end()) {
    last_type = type;
    return last_table = found->second;
  }
  const DlpackExchange* table = nullptr;
  const nb::handle type_object(reinterpret_cast<PyObject*>(type));
  if (nb::hasattr(type_object, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = type_object.attr("__dlpack_c_exchange_api__");
    auto* header = static_cast<DlpackExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    PyErr_Clear();
    while (header != nullptr && header->version.major != 1) header = header->previous;
    table = reinterpret_cast<DlpackExchange*>(header);
    if (table != nullptr && table->tensor_from_object == nullptr) table = nullptr;
  }
  type_object.inc_ref();
  known.emplace(type, table);
  return table;
}

void view_tensor(const DLTensor& tensor, const char* name, Array* out) {
  if (flashdelta_tensor_from_dlpack(&tensor, &out->view, &out->place.type, &out->place.id) != FLASHDELTA_OK) {
    const std::string message = flashdelta_last_error();
    const std::string field = message.substr(0, message.find(':'));
    const std::string words = std::string(name) + message.substr(field.size());
    if (field == "dl_tensor.dtype") raise(PyExc_TypeError, words);
    raise(PyExc_ValueError, words);
  }
}

// Through __dlpack__. The capsule is kept, not consumed: it frees its tensor when the last reference goes.
void read_capsule(nb::handle object, const char* name, bool written, uint64_t stream, Array* out) {
  const nb::tuple device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
  nb::dict keywords;
  if (nb::cast<int>(nb::int_(device[0])) == kDLCUDA) keywords["stream"] = stream == 0 ? 1 : stream;  // 1: the default
  keywords["max_version"] = nb::make_tuple(1, 1);
  const nb::object method = object.attr("__dlpack__");
  const nb::tuple none = nb::make_tuple();
  PyObject* made = PyObject_Call(method.ptr(), none.ptr(), keywords.ptr());
  if (made == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {  // older than DLPack 1.0
    PyErr_Clear();
    nb::del(keywords["max_version"]);
    made = PyObject_Call(method.ptr(), none.ptr(), keywords.ptr());
  }
  if (made == nullptr) raise_unviewable(name);
  out->owner = nb::steal(made);
  if (PyCapsule_IsValid(made, "dltensor_versioned")) {
    const auto* managed = static_cast<DlpackManagedVersioned*>(PyCapsule_GetPointer(made, "dltensor_versioned"));
    if (managed->version.major != 1) raise(PyExc_TypeError, std::string(name) + ": expected DLPack of version 1");
    if (written && (managed->flags & kDlpackReadOnly) != 0) {
      raise(PyExc_ValueError, std::string(name) + ": expected an array that can be written, got a read-only one");
    }
    return view_tensor(managed->dl_tensor, name, out);
  }
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(made, "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  view_tensor(managed->dl_tensor, name, out);
}

}  // namespace

void check(flashdelta_status status) {
  switch (status) {
    case FLASHDELTA_OK: return;
    case FLASHDELTA_INVALID_ARGUMENT: raise(PyExc_ValueError, flashdelta_last_error());
    case FLASHDELTA_NOT_SUPPORTED: raise(PyExc_NotImplementedError, flashdelta_last_error());
    case FLASHDELTA_OUT_OF_MEMORY: raise(PyExc_MemoryError, flashdelta_last_error());
    default:
      if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal that stopped the call
      raise(PyExc_RuntimeError, std::string(flashdelta_status_name(status)) + ": " + flashdelta_last_error());
  }
}

bool Place::is_cuda() const { return type == kDLCUDA; }
bool Place::is_host() const { return type == kDLCPU || type == kDLCUDAHost; }
bool Place::operator==(const Place& other) const {
  return is_host() ? other.is_host() : type == other.type && id == other.id;
}

std::string Place::name() const {
  if (is_host()) return "cpu";
  return (is_cuda() ? "cuda:" : "DLPack device " + std::to_string(type) + ":") + std::to_string(id);
}

Array read_array(nb::handle object, const char* name, bool written, uint64_t stream) {
  Array out;
  if (object.is_none()) return out;
  out.exchange = exchange_of(object);
  if (out.exchange != nullptr) {
    DLTensor tensor{};
    if (out.exchange->tensor_from_object(object.ptr(), &tensor) != 0) raise_unviewable(name);
    view_tensor(tensor, name, &out);
    return out;
  }
  if (!nb::hasattr(object, "__dlpack__")) {
    raise(PyExc_TypeError, std::string(name) + ": expected an array with __dlpack__ (torch, numpy, cupy, jax), got " +
                               class_name(object));
  }
  read_capsule(object, name, written, stream, &out);
  return out;
}

namespace {

DLDataType dlpack_type(flashdelta_dtype dtype) {
  if (dtype == FLASHDELTA_BF16) return {kDLBfloat, 16, 1};
  if (dtype == FLASHDELTA_FP16) return {kDLFloat, 16, 1};
  return {kDLFloat, 32, 1};
}

void set_python_error(void*, const char* kind, const char* message) {
  const bool memory = std::string_view(kind) == "MemoryError";
  PyErr_SetString(memory ? PyExc_MemoryError : PyExc_RuntimeError, message);
}

DlpackManagedVersioned* allocate(const Array& like, DLDataType type, int32_t ndim, const int64_t* shape) {
  DLTensor prototype{};
  prototype.device = {static_cast<DLDeviceType>(like.place.type), like.place.id};
  prototype.dtype = type;
  prototype.ndim = ndim;
  prototype.shape = const_cast<int64_t*>(shape);  // NOLINT: DLPack has no const; the allocator reads it
  DlpackManagedVersioned* managed = nullptr;
  if (like.exchange->allocate(&prototype, &managed, nullptr, set_python_error) != 0) throw nb::python_error();
  return managed;
}

}  // namespace

NewArray new_array(const Array& like, flashdelta_dtype dtype, int32_t ndim, const int64_t* shape) {
  DlpackManagedVersioned* managed = allocate(like, dlpack_type(dtype), ndim, shape);
  Array made;
  view_tensor(managed->dl_tensor, "output", &made);
  void* object = nullptr;
  if (like.exchange->managed_to_object(managed, &object) != 0) throw nb::python_error();
  return {made.view, nb::steal(static_cast<PyObject*>(object))};
}

Memory::Memory(const Array& like, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  managed_ = allocate(like, {kDLUInt, 8, 1}, 1, &size);
}

Memory::~Memory() {
  if (managed_->deleter != nullptr) managed_->deleter(managed_);
}

void* Memory::data() const { return static_cast<char*>(managed_->dl_tensor.data) + managed_->dl_tensor.byte_offset; }

void* current_stream(const Array& array, uint64_t otherwise) {
  void* stream = reinterpret_cast<void*>(otherwise);  // NOLINT: a cudaStream_t that Python knows as a number
  if (array.exchange == nullptr || !array.place.is_cuda()) return stream;
  if (array.exchange->current_stream(kDLCUDA, array.place.id, &stream) != 0) throw nb::python_error();
  return stream;
}

}  // namespace flashdelta::python
