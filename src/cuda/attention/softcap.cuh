// s -> softcap tanh(s scale / softcap), in base 2. Its result takes the softmax's scale as 1.
#pragma once

#include "cuda/ptx/math.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::attention {

// 1 - 2 / (1 + e^2x), and near zero, where that cancels, the series: both within 4e-6 of tanh x. The hardware's
// tanh.approx is within 5e-4, too coarse for a cap of 50.
__device__ __forceinline__ float tanh_fp32(float x) {
  constexpr float two_log2e = 2.8853900817779268f;
  const float far = 1 - 2 * ptx::rcp(1 + ptx::ex2(x * two_log2e));
  const float xx = x * x;
  const float near = x * fmaf(xx, fmaf(xx, 2.f / 15, -1.f / 3), 1.f);
  return xx < 0.01f ? near : far;
}

template <int M, int N>
__device__ __forceinline__ void cap(tile::Accumulator<M, N>& s, float in, float softcap_log2) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) s.x[m][n][e] = softcap_log2 * tanh_fp32(s.x[m][n][e] * in);
    }
  }
}

}  // namespace flashdelta::attention
