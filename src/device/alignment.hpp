// What every GPU kernel asks of its tensors' memory.
#pragma once

#include "core/problem.hpp"

namespace flashdelta {

// Rows are copied 16 bytes at a time.
inline Status check_alignment(std::string_view name, const Rows& rows) {
  const int64_t size = dtype_size(rows.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.outer_stride * size % 16 == 0 &&
                       rows.token_stride * size % 16 == 0 && rows.head_stride * size % 16 == 0;
  if (aligned) return {};
  return not_supported(fmt::format(
      "{}: the GPU kernels need rows that start at multiples of 16 bytes, in memory and by every stride; the cpu "
      "backend takes any",
      name));
}

}  // namespace flashdelta
