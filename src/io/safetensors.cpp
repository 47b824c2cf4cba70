#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "io/safetensors_header.hpp"

namespace flashdelta {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors and .npy are read as they lie");

constexpr uint64_t max_header = 100'000'000;

struct Dtype {
  std::string_view name;
  int64_t bits;
  flashdelta_dtype dtype;
};

constexpr std::array<Dtype, 21> dtypes{{
    {"BF16", 16, FLASHDELTA_BF16},   {"F16", 16, FLASHDELTA_FP16},    {"F32", 32, FLASHDELTA_FP32},
    {"I32", 32, FLASHDELTA_INT32},   {"I64", 64, FLASHDELTA_INT64},   {"F64", 64, FLASHDELTA_NONE},
    {"C64", 64, FLASHDELTA_NONE},    {"U64", 64, FLASHDELTA_NONE},    {"U32", 32, FLASHDELTA_NONE},
    {"I16", 16, FLASHDELTA_NONE},    {"U16", 16, FLASHDELTA_NONE},    {"I8", 8, FLASHDELTA_NONE},
    {"U8", 8, FLASHDELTA_NONE},      {"BOOL", 8, FLASHDELTA_NONE},    {"F8_E4M3", 8, FLASHDELTA_NONE},
    {"F8_E5M2", 8, FLASHDELTA_NONE}, {"F8_E8M0", 8, FLASHDELTA_NONE}, {"F8_E4M3FNUZ", 8, FLASHDELTA_NONE},
    {"F6_E2M3", 6, FLASHDELTA_NONE}, {"F6_E3M2", 6, FLASHDELTA_NONE}, {"F4", 4, FLASHDELTA_NONE},
}};

const Dtype* find_dtype(std::string_view name) {
  const auto* found = std::find_if(dtypes.begin(), dtypes.end(), [&](const Dtype& d) { return d.name == name; });
  return found == dtypes.end() ? nullptr : found;
}

const char* file_dtype(flashdelta_dtype dtype) {
  const auto* found = std::find_if(dtypes.begin(), dtypes.end(), [&](const Dtype& d) { return d.dtype == dtype; });
  return found->name.data();
}

// One entry against itself and the data's size; "": right.
std::string check_entry(const SafetensorsEntry& entry, uint64_t data_bytes) {
  const Dtype* dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) return fmt::format("expected a safetensors dtype, got '{}'", printable(entry.dtype));
  const auto bytes = dense_bytes(entry.shape, dtype->bits);
  const std::string form =
      fmt::format("{} [{}]", entry.dtype, printable(fmt::format("{}", fmt::join(entry.shape, ","))));
  if (!bytes) return fmt::format("expected a shape of whole bytes under 2^63, got {}", form);
  if (entry.begin > entry.end) {
    return fmt::format("data_offsets: expected begin at most end, got [{}, {}]", entry.begin, entry.end);
  }
  if (entry.end > data_bytes) {
    return fmt::format("data_offsets: expected an end within the file's {} bytes of data, got {}", data_bytes,
                       entry.end);
  }
  if (entry.end - entry.begin != *bytes) {
    return fmt::format("data_offsets: expected {} bytes for {}, got {}", *bytes, form, entry.end - entry.begin);
  }
  return "";
}

// Ranges tile the data: no overlap, no gap, nothing after the last. Sorts *entries by place.
std::string check_layout(std::vector<SafetensorsEntry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(),
            [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t end = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : *entries) {
    if (entry.begin < end) {
      return fmt::format("tensors '{}' and '{}' overlap: expected a begin of {}, got {}", printable(before->name),
                         printable(entry.name), end, entry.begin);
    }
    if (entry.begin > end) {
      return fmt::format("tensor '{}': expected no gap before it (begin {}), got begin {}", printable(entry.name), end,
                         entry.begin);
    }
    end = entry.end;
    before = &entry;
  }
  if (end == data_bytes) return "";
  return fmt::format("expected {} bytes of data, the end of the last tensor, got {}", end, data_bytes);
}

}  // namespace

flashdelta_dtype safetensors_dtype(std::string_view name) {
  const Dtype* found = find_dtype(name);
  return found == nullptr ? FLASHDELTA_NONE : found->dtype;
}

FileError read_safetensors_header(const InputFile& file, std::vector<SafetensorsEntry>* entries, uint64_t* data_begin) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return malformed(file.path(),
                     fmt::format("expected safetensors (8 bytes of header length first), got {} bytes", file.size()));
  }
  if (FileError error = file.read(0, &length, sizeof(length)); !error.ok()) return error;
  const uint64_t rest = file.size() - sizeof(length);
  if (length > max_header) {
    return malformed(file.path(), fmt::format("header length: expected at most {} bytes, got {}", max_header, length));
  }
  if (length > rest) {
    return malformed(file.path(), fmt::format("header length: expected at most the file's remaining {} bytes, got {}",
                                              rest, length));
  }
  std::string text(length, '\0');
  if (FileError error = file.read(sizeof(length), text.data(), length); !error.ok()) return error;
  if (const std::string wrong = parse_safetensors_header(text, entries); !wrong.empty()) {
    return malformed(file.path(), wrong);
  }
  const uint64_t data_bytes = rest - length;
  for (const SafetensorsEntry& entry : *entries) {
    if (const std::string wrong = check_entry(entry, data_bytes); !wrong.empty()) {
      return malformed(file.path(), fmt::format("tensor '{}': {}", printable(entry.name), wrong));
    }
  }
  if (const std::string wrong = check_layout(entries, data_bytes); !wrong.empty()) return malformed(file.path(), wrong);
  *data_begin = sizeof(length) + length;
  return {};
}

FileError write_safetensors(OutputFile* file, const TensorMap& tensors) {
  // Wide elements first: then every tensor's bytes are aligned to its element, whatever the shapes.
  std::vector<TensorMap::const_pointer> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_size(a->second.dtype()) > dtype_size(b->second.dtype());
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  uint64_t end = 0;
  for (const auto* tensor : order) {
    const uint64_t begin = end;
    end += tensor->second.bytes();
    header[tensor->first] = {{"dtype", file_dtype(tensor->second.dtype())},
                             {"shape", tensor->second.shape()},
                             {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    return {FileError::Kind::unwritable, "tensor names: expected UTF-8, got other bytes"};
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  if (FileError error = file->write(&length, sizeof(length)); !error.ok()) return error;
  if (FileError error = file->write(text.data(), length); !error.ok()) return error;
  for (const auto* tensor : order) {
    if (FileError error = file->write(tensor->second.data(), tensor->second.bytes()); !error.ok()) return error;
  }
  return {};
}

}  // namespace flashdelta
