// The special function unit's approximations (2 ulp or better) and conversions to 16-bit pairs.
#pragma once

#include "cuda/element.hpp"

namespace flashdelta::ptx {

// 2^x; subnormal results are zero, 2^-inf = 0.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <Element E>
__device__ __forceinline__ float to_float(uint16_t x) {
  float d;
  if constexpr (E == Element::bf16) {
    d = __uint_as_float(static_cast<uint32_t>(x) << 16);
  } else {
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(x));
  }
  return d;
}

// Rounds to nearest even; `low` goes to the low half, the lower address.
template <Element E>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t d;
  if constexpr (E == Element::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  }
  return d;
}

}  // namespace flashdelta::ptx
