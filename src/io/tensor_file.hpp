// safetensors and .npy, read in full and written whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "io/tensors.hpp"

namespace flashdelta {

// Why a file was not read or written. unreadable and unwritable are the file system's words (exit code 4); malformed is
// what the file holds (exit code 2).
struct FileError {
  enum class Kind { none, unreadable, unwritable, malformed } kind = Kind::none;
  std::string message;
  bool ok() const { return kind == Kind::none; }
};

// Reads .safetensors, or one array of a .npy, under the name `q` is not guessed: the file's stem names it.
// Tensors whose dtype is not one of BF16, F16, F32, I32, I64 are checked and left out (their names go to *ignored).
FileError read_tensors(const std::string& path, TensorMap* tensors, std::vector<std::string>* ignored);

// Writes beside the target and renames; a device or pipe is written directly. Nothing is left behind on failure, and an
// interrupt (remove_partial_output, safe in a signal handler) leaves nothing either.
FileError write_tensors(const std::string& path, const TensorMap& tensors);
void remove_partial_output();

}  // namespace flashdelta
