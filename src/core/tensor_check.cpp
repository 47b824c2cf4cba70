#include "core/tensor_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace flashdelta {
namespace {

// Sizes are kept so far under 2^63 that sums of offsets cannot overflow.
constexpr int64_t kMostBytes = int64_t{1} << 60;

std::string stride_text(const flashdelta_tensor& t) {
  return fmt::format("[{}]", fmt::join(t.strides, t.strides + t.ndim, ", "));
}

Status check_strides(std::string_view name, const flashdelta_tensor& t, int64_t numel, Access access) {
  const int last = t.ndim - 1;
  if (t.shape[last] > 1 && t.strides[last] != 1) {
    return invalid(name, "a contiguous last dimension (stride 1)", fmt::format("stride {}", t.strides[last]));
  }
  if (numel == 0) return {};
  int64_t reach = 1, step = 0;
  bool too_far = false;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] <= 1) continue;
    if (t.strides[i] < 0) return invalid(name, "strides that are not negative", stride_text(t));
    too_far |= __builtin_mul_overflow(t.shape[i] - 1, t.strides[i], &step);
    too_far |= __builtin_add_overflow(reach, step, &reach);
  }
  if (too_far || reach > kMostBytes / dtype_size(t.dtype)) {
    return invalid(name, "strides that reach at most 2^60 bytes",
                   fmt::format("shape {} with strides {}", shape_text(t), stride_text(t)));
  }
  if (access == Access::input) return {};
  // An output's elements must not overlap: from the smallest stride up, each dimension steps over all that lies below.
  std::array<std::pair<int64_t, int64_t>, FLASHDELTA_MAX_NDIM> sizes;
  auto end = sizes.begin();
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] > 1) *end++ = {t.strides[i], t.shape[i]};
  }
  std::sort(sizes.begin(), end);
  int64_t below = 1;
  for (auto it = sizes.begin(); it != end; ++it) {
    const auto [stride, size] = *it;
    if (stride < below) {
      return invalid(name, "an output whose elements do not overlap",
                     fmt::format("shape {} with strides {}", shape_text(t), stride_text(t)));
    }
    below += stride * (size - 1);
  }
  return {};
}

}  // namespace

std::string shape_text(const flashdelta_tensor& t) {
  const int ndim = std::clamp(t.ndim, 0, FLASHDELTA_MAX_NDIM);
  return fmt::format("[{}]", fmt::join(t.shape, t.shape + ndim, ", "));
}

Status check_tensor(std::string_view name, const flashdelta_tensor& t, std::initializer_list<flashdelta_dtype> dtypes,
                    std::initializer_list<int> ranks, Access access) {
  const auto names = [&] {
    std::string text;
    for (flashdelta_dtype dtype : dtypes) text += (text.empty() ? "" : " or ") + std::string(dtype_name(dtype));
    return text;
  };
  if (!present(t)) return invalid(name, fmt::format("a tensor of {}", names()), "none");
  if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end()) {
    return invalid(name, names(), dtype_name(t.dtype));
  }
  if (std::find(ranks.begin(), ranks.end(), t.ndim) == ranks.end()) {
    return invalid(name, fmt::format("{} dimensions", fmt::join(ranks, " or ")),
                   t.ndim >= 0 && t.ndim <= FLASHDELTA_MAX_NDIM ? fmt::format("{}, shape {}", t.ndim, shape_text(t))
                                                                : std::to_string(t.ndim));
  }
  int64_t numel = 1;
  bool empty = false, too_large = false;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] < 0) return invalid(name, "sizes that are not negative", shape_text(t));
    empty |= t.shape[i] == 0;
    too_large |= __builtin_mul_overflow(numel, std::max<int64_t>(t.shape[i], 1), &numel);
  }
  if (empty) numel = 0;
  if (!empty && (too_large || numel > kMostBytes / dtype_size(t.dtype))) {
    return invalid(name, "at most 2^60 bytes", "shape " + shape_text(t));
  }
  FLASHDELTA_RETURN_IF_ERROR(check_strides(name, t, numel, access));
  if (numel > 0 && t.data == nullptr) return invalid(name, "memory", "null for shape " + shape_text(t));
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_size(t.dtype)) != 0) {
    return invalid(name, fmt::format("memory aligned to {} bytes", dtype_size(t.dtype)), fmt::format("{}", t.data));
  }
  return {};
}

Status check_shape(std::string_view name, const flashdelta_tensor& t, std::initializer_list<int64_t> shape,
                   std::string_view what) {
  const auto fits = [](int64_t size, int64_t wanted) { return wanted < 0 || size == wanted; };
  const bool same =
      t.ndim == static_cast<int32_t>(shape.size()) && std::equal(t.shape, t.shape + t.ndim, shape.begin(), fits);
  if (same) return {};
  std::string wanted;
  for (int64_t size : shape) {
    wanted += (wanted.empty() ? "" : ", ") + (size < 0 ? std::string("any") : std::to_string(size));
  }
  return invalid(name, fmt::format("shape {} = [{}]", what, wanted), shape_text(t));
}

Status check_multiple_of_8(std::string_view name, std::string_view dimension, int64_t size, int64_t limit) {
  if (size >= 8 && size <= limit && size % 8 == 0) return {};
  return invalid(name, fmt::format("{} that is a multiple of 8 from 8 to {}", dimension, limit), std::to_string(size));
}

Status check_ints(std::string_view name, const flashdelta_tensor& t, int64_t count, std::string_view what, Ints* out) {
  if (!present(t)) return {};
  FLASHDELTA_RETURN_IF_ERROR(check_tensor(name, t, {FLASHDELTA_INT32, FLASHDELTA_INT64}, {1}, Access::input));
  FLASHDELTA_RETURN_IF_ERROR(check_shape(name, t, {count}, what));
  *out = {t.data, t.dtype, 0};
  return {};
}

Status check_floats(std::string_view name, const flashdelta_tensor& t, flashdelta_dtype dtype, int64_t count,
                    std::string_view what, Floats* out) {
  if (!present(t)) return {};
  FLASHDELTA_RETURN_IF_ERROR(check_tensor(name, t, {FLASHDELTA_FP32, dtype}, {1}, Access::input));
  FLASHDELTA_RETURN_IF_ERROR(check_shape(name, t, {count}, what));
  *out = {t.data, t.dtype};
  return {};
}

Rows rows_of(const flashdelta_tensor& t) {
  const bool packed = t.ndim == 3;
  return {static_cast<char*>(t.data), t.dtype, packed ? 0 : t.strides[0], t.strides[t.ndim - 3], t.strides[t.ndim - 2]};
}

}  // namespace flashdelta
