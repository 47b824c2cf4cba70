// Conversion to 16-bit pairs that holds what fp16 cannot show at its largest number: a factor of 0 beside it must give
// 0. bf16 has fp32's range and needs no such care.
#pragma once

#include "cuda/ptx/math.cuh"

namespace flashdelta::ptx {

template <Element E>
__device__ __forceinline__ uint32_t pack_finite(float low, float high) {
  if constexpr (E == Element::bf16) return pack<E>(low, high);
  uint32_t d;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

}  // namespace flashdelta::ptx
