#include "io/file_access.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace flashdelta {
namespace {

// One call moves at most this much: Linux moves at most 2 GiB - 4 KiB.
constexpr uint64_t max_transfer = uint64_t{1} << 30;

// The temporary's name while there is one. A signal handler reads it, so it is a plain array behind a flag.
char partial_path[PATH_MAX];
std::atomic<bool> partial_exists{false};
static_assert(std::atomic<bool>::is_always_lock_free);

FileError file_error(FileError::Kind kind, const std::string& path, std::string_view why) {
  return {kind, fmt::format("{}: {}", printable(path), why)};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Follows symbolic links by hand, because the last one may point to a file that is yet to be made.
bool follow_links(std::string* path) {
  for (int hops = 0; hops < 40; hops++) {
    char target[PATH_MAX];
    const ssize_t length = ::readlink(path->c_str(), target, sizeof(target));
    if (length < 0) return true;
    const std::string link(target, static_cast<size_t>(length));
    *path = link.starts_with('/') ? link : folder_of(*path) + "/" + link;
  }
  errno = ELOOP;
  return false;
}

// Where the bytes go: `direct` for a device or pipe, else *target is the regular file to replace.
FileError resolve_output(const std::string& path, std::string* target, bool* direct) {
  const auto failed = [&](int error) {
    return file_error(FileError::Kind::unwritable, path, fmt::format("cannot write: {}", std::strerror(error)));
  };
  if (path.empty()) return file_error(FileError::Kind::unwritable, path, "cannot write: the path is empty");
  struct stat status;
  *direct = false;
  *target = path;
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return failed(EISDIR);
    if (::access(path.c_str(), W_OK) != 0) return failed(errno);
    *direct = !S_ISREG(status.st_mode);
    if (*direct) return {};
  } else if (errno != ENOENT) {
    return failed(errno);
  }
  if (!follow_links(target)) return failed(errno);
  if (target->ends_with('/')) return failed(EISDIR);
  if (::access(folder_of(*target).c_str(), W_OK | X_OK) != 0) return failed(errno);
  return {};
}

}  // namespace

std::string printable(std::string_view text, size_t longest) {
  size_t length = std::min(text.size(), longest);
  while (length < text.size() && length > 0 && (text[length] & 0xc0) == 0x80) length--;  // no half of a UTF-8 character
  std::string out;
  for (size_t i = 0; i < length; i++) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xc2 && i + 1 < length && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (byte < 32 || byte == 127 || c1) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[i];
    }
  }
  return length < text.size() ? out + "..." : out;
}

std::optional<uint64_t> dense_bytes(const std::vector<int64_t>& shape, int64_t bits_per_element) {
  int64_t bits = bits_per_element;
  bool empty = false;
  for (const int64_t size : shape) {
    empty |= size == 0;
    // A zero counts as one: strides of a tensor without elements are computed all the same.
    if (__builtin_mul_overflow(bits, std::max<int64_t>(size, 1), &bits)) return std::nullopt;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return static_cast<uint64_t>(bits / 8);
}

FileError malformed(const std::string& path, std::string_view what) {
  return file_error(FileError::Kind::malformed, path, what);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

FileError InputFile::open(const std::string& path) {
  path_ = path;
  // Not blocking: a pipe without a writer would hold the open call, and is refused below.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status;
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) {
    return file_error(FileError::Kind::unreadable, path, fmt::format("cannot read: {}", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    const char* kind = S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe";
    return file_error(FileError::Kind::unreadable, path, fmt::format("cannot read: expected a file, got {}", kind));
  }
  size_ = static_cast<uint64_t>(status.st_size);
  return {};
}

FileError InputFile::read(uint64_t offset, void* to, uint64_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, std::min(bytes, max_transfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return file_error(FileError::Kind::unreadable, path_, fmt::format("cannot read: {}", std::strerror(errno)));
    }
    if (got == 0)
      return file_error(FileError::Kind::unreadable, path_, "cannot read: the file was cut while it was read");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return {};
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  remove_partial_output();
}

FileError OutputFile::failed(int error) const {
  return file_error(FileError::Kind::unwritable, path_, fmt::format("cannot write: {}", std::strerror(error)));
}

FileError OutputFile::open(const std::string& path) {
  path_ = path;
  if (FileError error = resolve_output(path, &target_, &direct_); !error.ok()) return error;
  if (direct_) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    return fd_ < 0 ? failed(errno) : FileError{};
  }
  static int serial = 0;
  do {
    const std::string name = fmt::format("{}/.flashdelta-{}-{}.tmp", folder_of(target_), ::getpid(), serial++);
    if (name.size() >= sizeof(partial_path)) return failed(ENAMETOOLONG);
    std::memcpy(partial_path, name.c_str(), name.size() + 1);
    partial_exists.store(true);  // before it exists: an interrupt in between removes nothing or the new file
    fd_ = ::open(partial_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) partial_exists.store(false);
  } while (fd_ < 0 && errno == EEXIST);
  return fd_ < 0 ? failed(errno) : FileError{};
}

FileError OutputFile::write(const void* from, uint64_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, at, std::min(bytes, max_transfer));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed(errno);
    at += put;
    bytes -= static_cast<uint64_t>(put);
  }
  return {};
}

FileError OutputFile::commit() {
  const int closed = ::close(fd_);  // the last chance of a network file system to report a failed write
  fd_ = -1;
  if (closed != 0) return failed(errno);
  if (direct_) return {};
  if (std::rename(partial_path, target_.c_str()) != 0) return failed(errno);
  partial_exists.store(false);
  return {};
}

FileError check_output(const std::string& path) {
  std::string target;
  bool direct = false;
  return resolve_output(path, &target, &direct);
}

void remove_partial_output() {
  if (partial_exists.exchange(false)) ::unlink(partial_path);
}

}  // namespace flashdelta
