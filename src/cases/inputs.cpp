#include "cases/inputs.hpp"

#include <cstdlib>
#include <limits>

namespace flashdelta {

std::string_view Variant::find(std::string_view name) const {
  size_t begin = 0;
  while (begin < text_.size()) {
    const size_t end = std::min(text_.find(' ', begin), text_.size());
    const std::string_view word = text_.substr(begin, end - begin);
    if (word.substr(0, word.find('=')) == name) return word;
    begin = end + 1;
  }
  return {};
}

std::string Variant::text(std::string_view name, std::string_view otherwise) const {
  const std::string_view word = find(name);
  if (word.empty()) return std::string(otherwise);
  return std::string(word.size() > name.size() ? word.substr(name.size() + 1) : "");
}

double Variant::number(std::string_view name, double otherwise) const {
  return has(name) ? std::strtod(text(name, "").c_str(), nullptr) : otherwise;
}

HostTensor normal_tensor(flashdelta_dtype dtype, std::vector<int64_t> shape, const Random& random, double gain,
                         double offset) {
  return make_tensor(dtype, std::move(shape), [&](int64_t i) { return gain * random.normal(i) + offset; });
}

HostTensor int_tensor(flashdelta_dtype dtype, const std::vector<int64_t>& values) {
  HostTensor tensor(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); i++) {
    if (dtype == FLASHDELTA_INT64) {
      static_cast<int64_t*>(tensor.data())[i] = values[i];
    } else {
      static_cast<int32_t*>(tensor.data())[i] = static_cast<int32_t>(values[i]);
    }
  }
  return tensor;
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths, int64_t room) {
  std::vector<int64_t> offsets{0};
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length + room);
  return offsets;
}

void poison_rows(const HostTensor& tensor, const std::vector<bool>& owned, int64_t size) {
  for (size_t row = 0; row < owned.size(); row++) {
    if (owned[row]) continue;
    for (int64_t i = 0; i < size; i++) {
      tensor.set(static_cast<int64_t>(row) * size + i, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> list = attention_cases();
    for (Case& one : gated_delta_cases()) list.push_back(std::move(one));
    for (Case& one : flashqla_cases(false)) list.push_back(std::move(one));
    return list;
  }();
  return all;
}

std::vector<Case> full_size_cases() {
  std::vector<Case> all = flashqla_cases(true);
  for (Case& one : long_gated_delta_cases()) all.push_back(std::move(one));
  return all;
}

}  // namespace flashdelta
