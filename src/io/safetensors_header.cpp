#include "io/safetensors_header.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

namespace flashdelta {
namespace {

constexpr size_t max_dimensions = 64;  // NumPy's limit; more is an attack

// The events of nlohmann's SAX parser, each checked against what may stand there.
class HeaderHandler {
 public:
  explicit HeaderHandler(std::vector<SafetensorsEntry>* entries) : entries_(entries) {}

  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool binary(std::vector<std::uint8_t>&) { return scalar("binary"); }
  bool number_integer(int64_t value) { return scalar(value == 0 ? "-0" : std::to_string(value)); }
  bool number_float(double, const std::string& text) { return scalar(text); }

  bool number_unsigned(uint64_t value) {
    if (level_ == Level::shape) return dimension(value);
    if (level_ != Level::offsets) return scalar(std::to_string(value));
    if (offsets_ == 2) return fail(fmt::format("{}: expected two numbers, got more", place()));
    (offsets_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(std::string& value) {
    if (level_ == Level::metadata) return true;
    if (level_ != Level::entry || field_ != "dtype") return scalar("'" + printable(value) + "'");
    entry().dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) {
    if (level_ == Level::outside) {
      level_ = Level::top;
    } else if (level_ == Level::top) {
      level_ = in_metadata_ ? Level::metadata : Level::entry;
    } else {
      return scalar("an object");
    }
    return true;
  }

  bool end_object() {
    if (level_ == Level::entry && (!has_dtype_ || !has_shape_ || !has_offsets_)) {
      const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
      return fail(fmt::format("tensor '{}': expected dtype, shape and data_offsets, got no {}", printable(entry().name),
                              missing));
    }
    level_ = level_ == Level::top ? Level::outside : Level::top;
    return true;
  }

  bool start_array(size_t) {
    if (level_ != Level::entry || field_ == "dtype") return scalar("an array");
    level_ = field_ == "shape" ? Level::shape : Level::offsets;
    return true;
  }

  bool end_array() {
    if (level_ == Level::offsets && offsets_ != 2) {
      return fail(fmt::format("{}: expected two numbers, got {}", place(), offsets_));
    }
    level_ = Level::entry;
    return true;
  }

  bool key(std::string& name) {
    if (level_ == Level::entry) return entry_field(name);
    auto& seen = level_ == Level::metadata ? metadata_names_ : names_;
    if (!seen.insert(name).second) {
      return fail(fmt::format("header: expected each name once, got '{}' twice", printable(name)));
    }
    if (level_ == Level::metadata) {
      field_ = std::move(name);
      return true;
    }
    in_metadata_ = name == "__metadata__";
    if (!in_metadata_) {
      entries_->emplace_back().name = std::move(name);
      has_dtype_ = has_shape_ = has_offsets_ = false;
      offsets_ = 0;
    }
    field_.clear();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail(fmt::format("header: expected JSON, got a text that stops being JSON at byte {}", position));
  }

  const std::string& wrong() const { return wrong_; }

 private:
  enum class Level { outside, top, metadata, entry, shape, offsets };

  SafetensorsEntry& entry() { return entries_->back(); }

  bool fail(std::string wrong) {
    wrong_ = std::move(wrong);
    return false;
  }

  bool dimension(uint64_t value) {
    auto& shape = entry().shape;
    if (shape.size() == max_dimensions) {
      return fail(fmt::format("{}: expected at most {} dimensions, got more", place(), max_dimensions));
    }
    if (value > INT64_MAX) return fail(fmt::format("{}: expected sizes under 2^63, got {}", place(), value));
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool entry_field(std::string& name) {
    bool* has = name == "dtype"          ? &has_dtype_
                : name == "shape"        ? &has_shape_
                : name == "data_offsets" ? &has_offsets_
                                         : nullptr;
    if (has == nullptr || *has) {
      return fail(fmt::format("tensor '{}': expected dtype, shape and data_offsets, each once, got {} '{}'",
                              printable(entry().name), has == nullptr ? "the field" : "a second", printable(name)));
    }
    *has = true;
    field_ = std::move(name);
    return true;
  }

  std::string place() {
    if (level_ == Level::outside) return "header";
    if (in_metadata_)
      return level_ == Level::top ? "__metadata__" : fmt::format("__metadata__ '{}'", printable(field_));
    const std::string tensor = fmt::format("tensor '{}'", printable(entry().name));
    return level_ == Level::top ? tensor : tensor + ": " + field_;
  }

  // What stands here is not what may stand here.
  bool scalar(std::string_view got) {
    const char* expected = "a string";
    if (level_ == Level::outside || level_ == Level::top) expected = "an object";
    if (level_ == Level::entry && field_ != "dtype") expected = "an array";
    if (level_ == Level::shape || level_ == Level::offsets) expected = "whole numbers from 0";
    return fail(fmt::format("{}: expected {}, got {}", place(), expected, got));
  }

  std::vector<SafetensorsEntry>* entries_;
  Level level_ = Level::outside;
  bool in_metadata_ = false;
  std::unordered_set<std::string> names_, metadata_names_;
  std::string field_, wrong_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

}  // namespace

std::string parse_safetensors_header(std::string_view text, std::vector<SafetensorsEntry>* entries) {
  if (text.empty() || text.front() != '{') {
    return fmt::format("header: expected a JSON object, got {}",
                       text.empty() ? "no byte" : "'" + printable(text.substr(0, 8)) + "'");
  }
  // The parser takes a zero byte for the end of its input and would not look behind it.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return fmt::format("header: expected JSON, got a zero byte at {}", zero);
  }
  entries->clear();
  HeaderHandler handler(entries);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.wrong();
}

}  // namespace flashdelta
