// The gate and beta of a token, from whichever form the call gives:
//
//   g = -exp(A_log) softplus(a + dt_bias);  beta = beta_scale / (1 + exp(-b))
#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/work.cuh"

namespace flashdelta::gated_delta {

// Below this a gate is a reset: e^-100 is under fp32's normal range, and sums of finite numbers have no inf - inf.
inline constexpr float lowest_gate = -100;

template <Element E>
__device__ __forceinline__ float to_float(uint16_t x) {
  float y;
  if constexpr (E == Element::bf16) {
    y = __uint_as_float(static_cast<uint32_t>(x) << 16);
  } else {
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  }
  return y;
}

template <Element E>
__device__ __forceinline__ float load_number(const void* data, bool is_fp32, int64_t i) {
  return is_fp32 ? static_cast<const float*>(data)[i] : to_float<E>(static_cast<const uint16_t*>(data)[i]);
}

template <Element E>
__device__ __forceinline__ float load_number(const GatedDeltaRows& rows, const Sequence& sequence, int token,
                                             int head) {
  return load_number<E>(rows.data, rows.is_fp32, sequence.offset(rows, token, head));
}

// The gate of g or, where A_log is there, a.
template <Element E>
__device__ __forceinline__ float gate(const GatedDeltaForwardParams& p, float g, int head) {
  if (p.A_log != nullptr) {
    const float x = g + load_number<E>(p.dt_bias, p.dt_bias_is_fp32, head);
    const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    g = -expf(load_number<E>(p.A_log, p.A_log_is_fp32, head)) * softplus;
  }
  return fmaxf(g, lowest_gate);
}

template <Element E>
__device__ __forceinline__ float gate_at(const GatedDeltaForwardParams& p, const Sequence& s, int token, int head) {
  return gate<E>(p, load_number<E>(p.gate, s, token, head), head);
}

// beta of beta or, where raw_beta is set, b.
__device__ __forceinline__ float beta(const GatedDeltaForwardParams& p, float b) {
  return p.raw_beta ? p.beta_scale / (1 + expf(-b)) : b;
}

template <Element E>
__device__ __forceinline__ float beta_at(const GatedDeltaForwardParams& p, const Sequence& s, int token, int head) {
  return beta(p, load_number<E>(p.beta, s, token, head));
}

}  // namespace flashdelta::gated_delta
