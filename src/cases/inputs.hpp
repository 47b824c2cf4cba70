// Parts that the makers of inputs share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cases/cases.hpp"
#include "reference/random.hpp"

namespace flashdelta {

TensorMap attention_inputs(const Case& self, uint64_t seed);
TensorMap gated_delta_inputs(const Case& self, uint64_t seed);

std::vector<Case> attention_cases();
std::vector<Case> gated_delta_cases();
std::vector<Case> flashqla_cases(bool full_size);
std::vector<Case> long_gated_delta_cases();

// A case's variant: words apart by spaces, each a flag ("packed") or a setting ("page=16").
class Variant {
 public:
  explicit Variant(std::string_view text) : text_(text) {}

  bool has(std::string_view flag) const { return !find(flag).empty(); }
  std::string text(std::string_view name, std::string_view otherwise) const;
  double number(std::string_view name, double otherwise) const;

 private:
  std::string_view find(std::string_view name) const;  // the whole word; "" where there is none

  std::string_view text_;
};

// A tensor of value(i) for each element i, over OpenMP's threads.
template <typename Value>
HostTensor make_tensor(flashdelta_dtype dtype, std::vector<int64_t> shape, Value value) {
  HostTensor tensor(dtype, std::move(shape));
  const int64_t count = tensor.numel();
#pragma omp parallel for if (count > 100000)
  for (int64_t i = 0; i < count; i++) tensor.set(i, static_cast<float>(value(i)));
  return tensor;
}

HostTensor normal_tensor(flashdelta_dtype dtype, std::vector<int64_t> shape, const Random& random, double gain = 1,
                         double offset = 0);

HostTensor int_tensor(flashdelta_dtype dtype, const std::vector<int64_t>& values);

// 0 and the sums of lengths, each with `room` more.
std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths, int64_t room = 0);

// Makes NaN of the elements of those outer rows (`size` elements each) that are not owned.
void poison_rows(const HostTensor& tensor, const std::vector<bool>& owned, int64_t size);

}  // namespace flashdelta
