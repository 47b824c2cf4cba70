// What every tensor argument must hold, said once: dtype, rank, sizes, strides, memory. Used by the two operations'
// validation.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/problem.hpp"
#include "core/status.hpp"

namespace flashdelta {

inline bool present(const flashdelta_tensor& t) { return t.dtype != FLASHDELTA_NONE; }

// "[2, 3, 4]"
std::string shape_text(const flashdelta_tensor& t);

enum class Access { input, output };

// A present tensor of one of the dtypes and ranks, with sane sizes, strides and memory.
Status check_tensor(std::string_view name, const flashdelta_tensor& t, std::initializer_list<flashdelta_dtype> dtypes,
                    std::initializer_list<int> ranks, Access access);

// Every dimension as told; -1 takes any size. what: the shape in words, as "[B, TQ, HQ, DV]".
Status check_shape(std::string_view name, const flashdelta_tensor& t, std::initializer_list<int64_t> shape,
                   std::string_view what);

Status check_multiple_of_8(std::string_view name, std::string_view dimension, int64_t size, int64_t limit);

// An integer tensor of one dimension with `count` entries, or absent.
Status check_ints(std::string_view name, const flashdelta_tensor& t, int64_t count, std::string_view what, Ints* out);

// A float vector with `count` entries, fp32 or `dtype`, or absent.
Status check_floats(std::string_view name, const flashdelta_tensor& t, flashdelta_dtype dtype, int64_t count,
                    std::string_view what, Floats* out);

// Offsets 0 = c[0] <= c[1] <= ... <= c[count - 1] <= total. get(i) reads entry i.
template <typename Get>
Status check_offsets(std::string_view name, int64_t count, int64_t total, Get get) {
  if (get(0) != 0) return invalid(fmt::format("{}[0]", name), "0", std::to_string(get(0)));
  for (int64_t i = 1; i < count; i++) {
    if (get(i) < get(i - 1)) {
      return invalid(fmt::format("{}[{}]", name, i), fmt::format("at least {}[{}] = {}", name, i - 1, get(i - 1)),
                     std::to_string(get(i)));
    }
  }
  if (get(count - 1) > total) {
    return invalid(fmt::format("{}[{}]", name, count - 1), fmt::format("at most the {} tokens there are", total),
                   std::to_string(get(count - 1)));
  }
  return {};
}

// Rows of a tensor [outer, token, head, feature] or, packed, [token, head, feature].
Rows rows_of(const flashdelta_tensor& t);

}  // namespace flashdelta
