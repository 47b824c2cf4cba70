// bf16 and fp16 as bits, converted one number at a time, round to nearest even. The vector forms are in src/cpu.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "flashdelta/flashdelta.h"

namespace flashdelta {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t float_to_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);  // NaN stays NaN, made quiet
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent from fp16's bias to fp32's, and makes subnormals right without a branch.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline uint16_t float_to_fp16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up round to infinity
  if (magnitude < 0x38800000u) {  // under 2^-14: adding 0.5 rounds at fp16's smallest subnormal, 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// Bytes of one element; 0 for NONE and unknown numbers.
constexpr int64_t dtype_size(flashdelta_dtype dtype) {
  switch (dtype) {
    case FLASHDELTA_BF16:
    case FLASHDELTA_FP16: return 2;
    case FLASHDELTA_FP32:
    case FLASHDELTA_INT32: return 4;
    case FLASHDELTA_INT64: return 8;
    default: return 0;
  }
}

constexpr const char* dtype_name(flashdelta_dtype dtype) {
  switch (dtype) {
    case FLASHDELTA_NONE: return "none";
    case FLASHDELTA_BF16: return "bf16";
    case FLASHDELTA_FP16: return "fp16";
    case FLASHDELTA_FP32: return "fp32";
    case FLASHDELTA_INT32: return "int32";
    case FLASHDELTA_INT64: return "int64";
    default: return "unknown";
  }
}

// Element `index` of a float tensor, and of an integer tensor.
inline float load_float(const void* data, flashdelta_dtype dtype, int64_t index) {
  switch (dtype) {
    case FLASHDELTA_BF16: return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case FLASHDELTA_FP16: return fp16_to_float(static_cast<const uint16_t*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

inline void store_float(void* data, flashdelta_dtype dtype, int64_t index, float x) {
  switch (dtype) {
    case FLASHDELTA_BF16: static_cast<uint16_t*>(data)[index] = float_to_bf16(x); break;
    case FLASHDELTA_FP16: static_cast<uint16_t*>(data)[index] = float_to_fp16(x); break;
    default: static_cast<float*>(data)[index] = x;
  }
}

inline int64_t load_int(const void* data, flashdelta_dtype dtype, int64_t index) {
  return dtype == FLASHDELTA_INT64 ? static_cast<const int64_t*>(data)[index]
                                   : static_cast<const int32_t*>(data)[index];
}

}  // namespace flashdelta
