// The safetensors format: a header of at most 100 MB, names once, ranges that tile the data.
#pragma once

#include <string>
#include <vector>

#include "io/file_access.hpp"
#include "io/tensors.hpp"

namespace flashdelta {

// One entry of the header, checked: the range lies in the file, fits dtype and shape, and touches its neighbours.
struct SafetensorsEntry {
  std::string name, dtype;  // dtype as the file spells it
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

// *data_begin: where the data starts in the file.
FileError read_safetensors_header(const InputFile& file, std::vector<SafetensorsEntry>* entries, uint64_t* data_begin);

// BF16, F16, F32, I32, I64; NONE for every other.
flashdelta_dtype safetensors_dtype(std::string_view name);

FileError write_safetensors(OutputFile* file, const TensorMap& tensors);

}  // namespace flashdelta
