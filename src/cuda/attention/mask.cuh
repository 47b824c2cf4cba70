// Sets the scores of keys that a row does not see to -inf. Edge tiles alone come here.
#pragma once

#include "cuda/attention/forward_work.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::attention {

// s: rows first_row and up of the work, keys first_key and up.
template <int M, int N>
__device__ __forceinline__ void mask(tile::Accumulator<M, N>& s, const ForwardWork& work, int first_row, int first_key,
                                     int lane) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int token = work.query_row(first_row + m * 16 + half * 8 + lane / 4).token;
      const int lane_key = first_key + lane % 4 * 2;
      const int first = work.visibility.first(token) - lane_key, last = work.visibility.last(token) - lane_key;
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int key = n * 8 + e;
          if (key < first || key >= last) s.x[m][n][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace flashdelta::attention
