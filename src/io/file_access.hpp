// Files as the tensor readers and the writer use them: every system call's answer is checked, no memory is mapped (a
// file that shrinks under a reader is an error, not a SIGBUS).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_file.hpp"

namespace flashdelta {

// Text from outside, for a one-line message: control characters escaped, long text cut.
std::string printable(std::string_view text, size_t longest = 200);

// Bytes of a dense tensor; nothing where its bits, zero sizes counted as one, pass 2^63, or the last byte is not whole.
std::optional<uint64_t> dense_bytes(const std::vector<int64_t>& shape, int64_t bits_per_element);

FileError malformed(const std::string& path, std::string_view what);

class InputFile {
 public:
  InputFile() = default;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  FileError open(const std::string& path);
  FileError read(uint64_t offset, void* to, uint64_t bytes) const;
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// open, write.., commit. Without commit the target keeps what it held.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  FileError open(const std::string& path);
  FileError write(const void* from, uint64_t bytes);
  FileError commit();

 private:
  FileError failed(int error) const;

  std::string path_, target_;
  int fd_ = -1;
  bool direct_ = false;
};

}  // namespace flashdelta
