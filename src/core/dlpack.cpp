// Views of DLPack tensors.
#include <dlpack/dlpack.h>

#include "core/api_guard.hpp"
#include "core/tensor_check.hpp"

namespace flashdelta {
namespace {

flashdelta_dtype dtype_of(const DLDataType& type) {
  if (type.lanes != 1) return FLASHDELTA_NONE;
  if (type.code == kDLBfloat && type.bits == 16) return FLASHDELTA_BF16;
  if (type.code == kDLFloat && type.bits == 16) return FLASHDELTA_FP16;
  if (type.code == kDLFloat && type.bits == 32) return FLASHDELTA_FP32;
  if (type.code == kDLInt && type.bits == 32) return FLASHDELTA_INT32;
  if (type.code == kDLInt && type.bits == 64) return FLASHDELTA_INT64;
  return FLASHDELTA_NONE;
}

// As frameworks write it: "float64", "uint8".
std::string dtype_text(const DLDataType& type) {
  static constexpr std::pair<int, const char*> names[] = {
      {kDLInt, "int"}, {kDLUInt, "uint"}, {kDLFloat, "float"}, {kDLBfloat, "bfloat"}, {kDLComplex, "complex"}};
  std::string text = fmt::format("DLPack type {} of bits ", type.code);
  for (const auto& [code, name] : names) {
    if (type.code == code) text = name;
  }
  text += std::to_string(type.bits);
  return type.lanes == 1 ? text : fmt::format("{} in {} lanes", text, type.lanes);
}

Status view(const DLTensor& from, flashdelta_tensor* out) {
  flashdelta_tensor t{};
  t.dtype = dtype_of(from.dtype);
  if (t.dtype == FLASHDELTA_NONE) {
    return invalid("dl_tensor.dtype", "bfloat16, float16, float32, int32 or int64", dtype_text(from.dtype));
  }
  if (from.ndim < 0 || from.ndim > FLASHDELTA_MAX_NDIM) {
    return invalid("dl_tensor.ndim", "0 to 5", std::to_string(from.ndim));
  }
  if (from.ndim > 0) {
    FLASHDELTA_RETURN_IF_ERROR(require("dl_tensor.shape", from.shape));
    if (from.strides == nullptr) {
      const flashdelta_status status = flashdelta_tensor_contiguous(nullptr, t.dtype, from.ndim, from.shape, &t);
      if (status != FLASHDELTA_OK) return {status, flashdelta_last_error()};
    } else {
      t.ndim = from.ndim;
      std::copy_n(from.shape, from.ndim, t.shape);
      std::copy_n(from.strides, from.ndim, t.strides);
    }
  }
  if (from.data != nullptr) t.data = static_cast<char*>(from.data) + from.byte_offset;
  *out = t;
  return {};
}

}  // namespace
}  // namespace flashdelta

using namespace flashdelta;

extern "C" flashdelta_status flashdelta_tensor_from_dlpack(const void* dl_tensor, flashdelta_tensor* out,
                                                           int32_t* device_type, int32_t* device_id) {
  return guarded([&]() -> Status {
    FLASHDELTA_RETURN_IF_ERROR(require("dl_tensor", dl_tensor));
    FLASHDELTA_RETURN_IF_ERROR(require("out", out));
    const auto& from = *static_cast<const DLTensor*>(dl_tensor);
    FLASHDELTA_RETURN_IF_ERROR(view(from, out));
    if (device_type != nullptr) *device_type = static_cast<int32_t>(from.device.device_type);
    if (device_id != nullptr) *device_id = from.device.device_id;
    return {};
  });
}
