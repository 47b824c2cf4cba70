// Tensors that own host memory, by name: what files hold, what cases make, what a run writes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "flashdelta/flashdelta.h"

namespace flashdelta {

// Contiguous; memory aligned to 64 bytes. Copies share the memory.
class HostTensor {
 public:
  HostTensor() = default;
  // Uninitialised memory. The caller has checked that the size does not overflow; std::bad_alloc when there is none.
  HostTensor(flashdelta_dtype dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    const size_t size = std::max<size_t>((bytes() + 63) / 64 * 64, 64);
    data_ = std::shared_ptr<void>(std::aligned_alloc(64, size), std::free);
    if (data_ == nullptr) throw std::bad_alloc();
  }

  flashdelta_dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : shape_) n *= s;
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(numel() * dtype_size(dtype_)); }
  void* data() const { return data_.get(); }
  explicit operator bool() const { return dtype_ != FLASHDELTA_NONE; }

  flashdelta_tensor view() const {
    flashdelta_tensor t{};
    if (!*this) return t;
    t.data = data();
    t.dtype = dtype_;
    t.ndim = static_cast<int32_t>(shape_.size());
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
      t.shape[i] = shape_[static_cast<size_t>(i)];
      t.strides[i] = stride;
      stride *= std::max<int64_t>(t.shape[i], 1);
    }
    return t;
  }

  float get(int64_t i) const { return load_float(data(), dtype_, i); }
  void set(int64_t i, float x) const { store_float(data(), dtype_, i, x); }
  int64_t get_int(int64_t i) const { return load_int(data(), dtype_, i); }
  void fill_zero() const { std::memset(data(), 0, bytes()); }

 private:
  flashdelta_dtype dtype_ = FLASHDELTA_NONE;
  std::vector<int64_t> shape_;
  std::shared_ptr<void> data_;
};

using TensorMap = std::map<std::string, HostTensor>;

}  // namespace flashdelta
