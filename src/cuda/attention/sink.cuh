// The logit that a head adds to the denominator alone.
#pragma once

#include "cuda/ptx/math.cuh"

namespace flashdelta::attention {

// In base 2; null: none, -inf. sinks [query heads] in fp32, else of type E.
template <Element E>
__device__ __forceinline__ float sink_log2(const void* sinks, bool is_fp32, int head) {
  constexpr float log2e = 1.4426950408889634f;
  if (sinks == nullptr) return -INFINITY;
  if (is_fp32) return static_cast<const float*>(sinks)[head] * log2e;
  return ptx::to_float<E>(static_cast<const uint16_t*>(sinks)[head]) * log2e;
}

}  // namespace flashdelta::attention
