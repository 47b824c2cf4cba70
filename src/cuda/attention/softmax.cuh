// Online softmax in base 2, rows of 16 a block m, a lane holding parts of rows l / 4 and l / 4 + 8 of each:
//
//   p = 2^(scale s - maximum);  sum += p;  when the maximum rises, sum and o are scaled by 2^(old - new)
//
// The maximum need not be the row's: any number near it gives the same o. So it moves only when some row of the warp
// has risen by more than `slack`, which a vote over each lane's own scores finds out without exchanging maxima. p is at
// most 2^slack, far inside bf16 and fp16.
#pragma once

#include <cuda_runtime.h>

#include "cuda/ptx/math.cuh"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/quad.cuh"

namespace flashdelta::attention {

// What o is multiplied with, and the natural logarithm of what it was divided by.
struct Denominator {
  float factor, log;
};

// Where a maximum starts: under every score, as -inf is, but a row that has seen no key yet then gives 2^-inf = 0 and
// not 2^(-inf + inf).
inline constexpr float lowest_maximum = -3.4028234663852886e38f;

// sink_log2: one more logit, -inf for none. Of a row that saw no key: 0 and the sink.
__device__ __forceinline__ Denominator denominator(float row_maximum, float row_sum, float sink_log2) {
  constexpr float ln2 = 0.693147180559945f;
  const float maximum = fmaxf(row_maximum, sink_log2), scale = ptx::ex2(row_maximum - maximum);
  const float sum = fmaf(row_sum, scale, ptx::ex2(sink_log2 - maximum));
  return sum > 0 ? Denominator{scale * ptx::rcp(sum), (maximum + ptx::lg2(sum)) * ln2} : Denominator{0, -INFINITY};
}

template <int M>
class OnlineSoftmax {
 public:
  static constexpr float slack = 8;

  // scale: the kernel's own parameter, so that it takes no register.
  __device__ __forceinline__ explicit OnlineSoftmax(const float& scale) : scale_(scale) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        maximum_[m][half] = lowest_maximum;
        sum_[m][half] = 0;
      }
    }
  }

  // Makes the maximum fit for scores s, before their weights are taken; o is rescaled where it rose.
  template <int N, int D>
  __device__ __forceinline__ void raise_maximum(const tile::Accumulator<M, N>& s, tile::Accumulator<M, D>& o) {
    float largest[M][2];
    bool risen = false;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float x = fmaxf(s.x[m][0][2 * half], s.x[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < N; n++) x = fmaxf(x, fmaxf(s.x[m][n][2 * half], s.x[m][n][2 * half + 1]));
        largest[m][half] = x * scale_;
        risen |= largest[m][half] > maximum_[m][half] + slack;
      }
    }
    if (!ptx::vote_any(risen)) return;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float old = maximum_[m][half];
        maximum_[m][half] = fmaxf(old, tile::quad_max(largest[m][half]));
        const float factor = ptx::ex2(old - maximum_[m][half]);
        sum_[m][half] *= factor;
#pragma unroll
        for (int n = 0; n < D; n++) {
          o.x[m][n][2 * half] *= factor;
          o.x[m][n][2 * half + 1] *= factor;
        }
      }
    }
  }

  // Scores of keys 16 k16 .. + 15 to weights, in place.
  template <int N>
  __device__ __forceinline__ void weigh(tile::Accumulator<M, N>& s, int k16) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 2 * k16; n < 2 * k16 + 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float p = ptx::ex2(fmaf(s.x[m][n][e], scale_, -maximum_[m][e >> 1]));
          s.x[m][n][e] = p;
          sum_[m][e >> 1] += p;
        }
      }
    }
  }

  // After the last step.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) sum_[m][half] = tile::quad_sum(sum_[m][half]);
    }
  }

  // Maxima and sums of 16 rows, to be merged by another warp that has other keys of the same rows.
  __device__ __forceinline__ void save(float (&state)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; half++) state[half] = maximum_[0][half], state[2 + half] = sum_[0][half];
  }

  // keep: what one's own o is multiplied with, take: theirs.
  __device__ __forceinline__ void merge(const float (&state)[4], float (&keep)[2], float (&take)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float maximum = fmaxf(maximum_[0][half], state[half]);
      keep[half] = ptx::ex2(maximum_[0][half] - maximum);
      take[half] = ptx::ex2(state[half] - maximum);
      maximum_[0][half] = maximum;
      sum_[0][half] = fmaf(sum_[0][half], keep[half], state[2 + half] * take[half]);
    }
  }

  __device__ __forceinline__ Denominator denominator(int m, int half, float sink_log2) const {
    return attention::denominator(maximum_[m][half], sum_[m][half], sink_log2);
  }

 private:
  const float& scale_;
  float maximum_[M][2], sum_[M][2];
};

}  // namespace flashdelta::attention
