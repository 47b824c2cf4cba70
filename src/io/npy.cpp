#include "io/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace flashdelta {
namespace {

constexpr uint64_t max_header = uint64_t{1} << 20;

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The dict literal as NumPy writes it: three keys, each once, in any order.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  // "": parsed; else what was expected.
  std::string parse(Header* header) {
    if (!take("{")) return "a dict";
    bool descr = false, fortran = false, shape = false;
    while (!take("}")) {
      const auto key = quoted();
      if (!key || !take(":")) return "the keys 'descr', 'fortran_order' and 'shape'";
      if (*key == "descr" && !descr) {
        const auto value = quoted();
        if (!value) return "one plain dtype in 'descr'";
        header->descr = *value;
        descr = true;
      } else if (*key == "fortran_order" && !fortran) {
        header->fortran_order = take("True");
        if (!header->fortran_order && !take("False")) return "True or False in 'fortran_order'";
        fortran = true;
      } else if (*key == "shape" && !shape) {
        if (!tuple(&header->shape)) return "a tuple of whole numbers from 0 in 'shape'";
        shape = true;
      } else {
        return fmt::format("the keys 'descr', 'fortran_order' and 'shape', each once (not '{}')", printable(*key));
      }
      if (!take(",") && !at("}")) return "a comma between keys";
    }
    if (!descr || !fortran || !shape) return "the keys 'descr', 'fortran_order' and 'shape'";
    skip_space();
    return text_.empty() ? "" : "nothing after the dict";
  }

 private:
  void skip_space() { text_.remove_prefix(std::min(text_.find_first_not_of(" \n\r\t"), text_.size())); }

  bool at(std::string_view token) {
    skip_space();
    return text_.starts_with(token);
  }

  bool take(std::string_view token) {
    if (!at(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string> quoted() {
    const std::string_view mark = at("'") ? "'" : "\"";
    if (!take(mark)) return std::nullopt;
    const size_t end = text_.find(mark);
    if (end == std::string_view::npos) return std::nullopt;
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return value;
  }

  bool tuple(std::vector<int64_t>* shape) {
    if (!take("(")) return false;
    while (!take(")")) {
      skip_space();
      int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) return false;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      take("L");  // Python 2 wrote long integers so
      shape->push_back(size);
      if (!take(",") && !at(")")) return false;
    }
    return true;
  }

  std::string_view text_;
};

std::optional<flashdelta_dtype> parse_descr(std::string_view descr) {
  if (descr == "<f2") return FLASHDELTA_FP16;
  if (descr == "<f4") return FLASHDELTA_FP32;
  if (descr == "<i4") return FLASHDELTA_INT32;
  if (descr == "<i8") return FLASHDELTA_INT64;
  return std::nullopt;
}

// Reads the dict's text; *data_begin is where the array starts.
FileError read_header(const InputFile& file, std::string* text, uint64_t* data_begin) {
  std::array<unsigned char, 12> start{};
  const uint64_t have = std::min<uint64_t>(file.size(), start.size());
  if (FileError error = file.read(0, start.data(), have); !error.ok()) return error;
  if (!std::equal(npy_magic.begin(), npy_magic.end(), reinterpret_cast<const char*>(start.data()))) {
    return malformed(file.path(), fmt::format("expected a .npy file (\\x93NUMPY first), got '{}'",
                                              printable({reinterpret_cast<const char*>(start.data()), have})));
  }
  const int major = start[6];
  const uint64_t prefix = major == 1 ? 10 : 12;
  if (have < prefix) {
    return malformed(file.path(), fmt::format("expected a .npy header, got a file of {} bytes", file.size()));
  }
  if (major < 1 || major > 3) return malformed(file.path(), fmt::format("expected .npy version 1 to 3, got {}", major));
  uint64_t length = 0;
  for (uint64_t i = prefix; i-- > 8;) length = length << 8 | start[i];
  if (length > max_header || length > file.size() - prefix) {
    return malformed(file.path(), fmt::format("header length: expected at most {} bytes, got {}",
                                              std::min(max_header, file.size() - prefix), length));
  }
  text->resize(length);
  *data_begin = prefix + length;
  return file.read(prefix, text->data(), length);
}

}  // namespace

FileError read_npy(const InputFile& file, HostTensor* tensor) {
  std::string text;
  uint64_t data_begin = 0;
  if (FileError error = read_header(file, &text, &data_begin); !error.ok()) return error;
  Header header;
  if (const std::string expected = HeaderParser(text).parse(&header); !expected.empty()) {
    return malformed(file.path(), fmt::format("header: expected {}, got {}", expected, printable(text)));
  }
  const auto dtype = parse_descr(header.descr);
  if (!dtype) {
    return malformed(file.path(),
                     fmt::format("descr: expected <f2, <f4, <i4 or <i8, got '{}'", printable(header.descr)));
  }
  if (header.fortran_order) return malformed(file.path(), "fortran_order: expected False (C order), got True");
  if (header.shape.size() > FLASHDELTA_MAX_NDIM) {
    return malformed(file.path(), fmt::format("shape: expected at most {} dimensions, got {}", FLASHDELTA_MAX_NDIM,
                                              header.shape.size()));
  }
  const auto bytes = dense_bytes(header.shape, dtype_size(*dtype) * 8);
  const uint64_t have = file.size() - data_begin;
  if (!bytes || *bytes != have) {
    return malformed(file.path(),
                     fmt::format("shape [{}] of {}: expected {} bytes of data, got {}", fmt::join(header.shape, ","),
                                 header.descr, bytes ? std::to_string(*bytes) : "at most 2^63", have));
  }
  *tensor = HostTensor(*dtype, header.shape);
  return file.read(data_begin, tensor->data(), have);
}

}  // namespace flashdelta
