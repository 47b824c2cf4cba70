// o and lse from a warp's registers to global memory. The lanes of a quad exchange four column blocks of a row for 16
// neighbouring bytes each, so o needs no shared memory and no barrier on its way.
#pragma once

#include "cuda/attention/forward_work.cuh"
#include "cuda/attention/sink.cuh"
#include "cuda/attention/softmax.cuh"

namespace flashdelta::attention {

// One row of o: blocks of 8 columns, of which a lane holds x[n][2 half], x[n][2 half + 1].
template <Element E, int N>
__device__ __forceinline__ void store_row_16(const float (&x)[N][4], int half, float factor, char* row, int blocks,
                                             bool inside, int lane) {
#pragma unroll
  for (int n = 0; n < N; n += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      words[i] = n + i < N ? ptx::pack<E>(x[n + i < N ? n + i : 0][2 * half] * factor,
                                          x[n + i < N ? n + i : 0][2 * half + 1] * factor)
                           : 0;
    }
    tile::quad_transpose(words, lane);
    const int block = n + lane % 4;
    if (inside && block < blocks) ptx::store_global_128(row + block * 16, words);
  }
}

template <int N>
__device__ __forceinline__ void store_row_32(const float (&x)[N][4], int half, float factor, char* row, int blocks,
                                             bool inside, int lane) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    if (inside && n < blocks) {
      ptx::store_global_64(row + n * 32 + lane % 4 * 8, x[n][2 * half] * factor, x[n][2 * half + 1] * factor);
    }
  }
}

// o: the warp's rows, value columns first_value and up.
template <Element E, int M, int N>
__device__ __forceinline__ void store_output(const tile::Accumulator<M, N>& o, const OnlineSoftmax<M>& softmax,
                                             const AttentionForwardParams& p, const ForwardWork& work, int first_row,
                                             int first_value, int lane) {
  const bool packed = p.cu_seqlens_q != nullptr;
  const int64_t o_offset = work.query_offset(packed, p.o_batch_stride, p.o_token_stride, p.o_head_stride) +
                           first_value + blockIdx.z * p.o_split_stride;
  const int blocks = min((p.head_dim_v - first_value) / 8, N);
  const int64_t lse_offset =
      work.query_offset(packed, p.lse_batch_stride, 1, p.lse_head_stride) + blockIdx.z * p.lse_split_stride;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first_row + m * 16 + half * 8 + lane / 4;
      const bool inside = row < work.rows;
      const QueryRow at = work.query_row(row);
      const int64_t index = o_offset + at.token * p.o_token_stride + at.head * p.o_head_stride;
      const Denominator denominator = softmax.denominator(
          m, half, inside ? sink_log2<E>(p.sink, p.sink_is_fp32, work.head_k * work.group + at.head) : -INFINITY);
      const float factor = denominator.factor;
      if (p.o_is_fp32) {
        store_row_32(o.x[m], half, factor, static_cast<char*>(p.o) + index * 4, blocks, inside, lane);
      } else {
        store_row_16<E>(o.x[m], half, factor, static_cast<char*>(p.o) + index * 2, blocks, inside, lane);
      }
      if (p.lse != nullptr && inside && lane % 4 == 0 && first_value == 0) {
        ptx::store_global_32(p.lse + lse_offset + at.head * p.lse_head_stride + at.token, denominator.log);
      }
    }
  }
}

}  // namespace flashdelta::attention
