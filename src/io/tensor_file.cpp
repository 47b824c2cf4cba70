#include "io/tensor_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>

#include "io/npy.hpp"
#include "io/safetensors.hpp"

namespace flashdelta {
namespace {

std::string stem_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.rfind('.'));
}

bool has_npy_magic(const InputFile& file) {
  std::string magic(npy_magic.size(), '\0');
  return file.size() >= magic.size() && file.read(0, magic.data(), magic.size()).ok() && magic == npy_magic;
}

FileError add_tensor(const std::string& path, const std::string& name, HostTensor tensor, TensorMap* tensors) {
  if (tensors->emplace(name, std::move(tensor)).second) return {};
  return malformed(path,
                   fmt::format("tensor '{}': expected a name that no other file has, got it twice", printable(name)));
}

FileError read_safetensors(const InputFile& file, TensorMap* tensors, std::vector<std::string>* ignored) {
  std::vector<SafetensorsEntry> entries;
  uint64_t data_begin = 0;
  if (FileError error = read_safetensors_header(file, &entries, &data_begin); !error.ok()) return error;
  for (const SafetensorsEntry& entry : entries) {
    const flashdelta_dtype dtype = safetensors_dtype(entry.dtype);
    if (dtype == FLASHDELTA_NONE || entry.shape.size() > FLASHDELTA_MAX_NDIM) {
      const std::string why =
          dtype == FLASHDELTA_NONE ? "dtype " + entry.dtype : fmt::format("{} dimensions", entry.shape.size());
      if (ignored != nullptr) ignored->push_back(entry.name + ": " + why);
      continue;
    }
    HostTensor tensor(dtype, entry.shape);
    if (FileError error = file.read(data_begin + entry.begin, tensor.data(), entry.end - entry.begin); !error.ok()) {
      return error;
    }
    if (FileError error = add_tensor(file.path(), entry.name, tensor, tensors); !error.ok()) return error;
  }
  return {};
}

}  // namespace

FileError read_tensors(const std::string& path, TensorMap* tensors, std::vector<std::string>* ignored) {
  try {
    InputFile file;
    if (FileError error = file.open(path); !error.ok()) return error;
    if (!has_npy_magic(file) && !path.ends_with(".npy")) return read_safetensors(file, tensors, ignored);
    HostTensor tensor;
    if (FileError error = read_npy(file, &tensor); !error.ok()) return error;
    return add_tensor(path, stem_of(path), tensor, tensors);
  } catch (const std::bad_alloc&) {
    return {FileError::Kind::unreadable, printable(path) + ": cannot read: out of memory"};
  }
}

FileError write_tensors(const std::string& path, const TensorMap& tensors) {
  OutputFile file;
  if (FileError error = file.open(path); !error.ok()) return error;
  if (FileError error = write_safetensors(&file, tensors); !error.ok()) return error;
  return file.commit();
}

}  // namespace flashdelta
