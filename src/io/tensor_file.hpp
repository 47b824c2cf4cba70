// Tensor files: safetensors and .npy, read in full, and safetensors written whole or not at all.
//
// safetensors (huggingface/safetensors, "Format"): 8 bytes N, N bytes of JSON {name: {dtype, shape, data_offsets}},
// then the tensors' bytes without gap or overlap. BF16, F16, F32, I32 and I64 become tensors. .npy (NumPy enhancement
// proposal 1, versions 1 to 3): one little-endian array <f2, <f4, <i4 or <i8 in C order. It goes under the file's stem:
// q.npy, in whatever folder, is `q`.
#pragma once

#include <string>
#include <vector>

#include "io/tensors.hpp"

namespace flashdelta {

// Why a file was not read or written: one line, which names the path. unreadable and unwritable are the file system's
// words (exit code 4); malformed is what the file holds (exit code 2).
struct [[nodiscard]] FileError {
  enum class Kind { none, unreadable, unwritable, malformed } kind = Kind::none;
  std::string message;
  bool ok() const { return kind == Kind::none; }
};

// Reads a regular file; its first bytes tell the format, not its name. Adds to *tensors; a name that is there already
// is malformed. safetensors of another dtype, or of more than FLASHDELTA_MAX_NDIM dimensions, are checked like the rest
// and left out: *ignored (may be null) gets "name: why" for each, where the why holds no ": ".
FileError read_tensors(const std::string& path, TensorMap* tensors, std::vector<std::string>* ignored);

// Can write_tensors be expected to work? For a caller that computes for long before it writes.
FileError check_output(const std::string& path);

// Writes safetensors. A regular or new file is written under another name in the same folder and renamed when complete,
// so that on failure the target keeps what it held; a symbolic link's target is replaced, not the link. A device or
// pipe is written directly. One write at a time in a process.
FileError write_tensors(const std::string& path, const TensorMap& tensors);

// Removes what a write_tensors in progress has left so far. Safe in a signal handler that then ends the process.
void remove_partial_output();

}  // namespace flashdelta
