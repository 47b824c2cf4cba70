// One array of a .npy file, versions 1 to 3: "\x93NUMPY", major, minor, header length (2 bytes in version 1, else 4), a
// Python dict {'descr': .., 'fortran_order': .., 'shape': ..}, the array's bytes.
#pragma once

#include "io/file_access.hpp"
#include "io/tensors.hpp"

namespace flashdelta {

inline constexpr std::string_view npy_magic = "\x93NUMPY";

FileError read_npy(const InputFile& file, HostTensor* tensor);

}  // namespace flashdelta
