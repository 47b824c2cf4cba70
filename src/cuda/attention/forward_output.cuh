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

// Where a block's rows of o, from value column first_value on, and of lse go.
struct OutputPlace {
  int64_t o, token_stride, head_stride;  // elements
  int64_t lse, lse_token_stride, lse_head_stride;
  void* o_base;
  float* lse_base;  // may be null
  bool is_fp32, has_sink;

  // The call's tensors, or the part that grid.z gives.
  __device__ __forceinline__ OutputPlace(const AttentionForwardParams& p, const ForwardWork& work, int first_value)
      : token_stride(p.o_token_stride),
        head_stride(p.o_head_stride),
        lse_token_stride(1),
        lse_head_stride(p.lse_head_stride),
        o_base(p.o),
        lse_base(p.lse),
        is_fp32(p.o_is_fp32),
        has_sink(true) {
    const bool packed = p.cu_seqlens_q != nullptr;
    o = work.query_offset(packed, p.o_batch_stride, p.o_token_stride, p.o_head_stride) + first_value +
        blockIdx.z * p.o_split_stride;
    lse = work.query_offset(packed, p.lse_batch_stride, 1, p.lse_head_stride) + blockIdx.z * p.lse_split_stride;
  }

  // The block's part of a shared query tile, whose first row is first_row.
  __device__ __forceinline__ OutputPlace(const AttentionForwardParams& p, const ForwardWork& work, const TilePart& mine,
                                         int block_q, int first_row, int first_value)
      : token_stride(int64_t{work.group} * p.head_dim_v),
        head_stride(p.head_dim_v),
        lse_token_stride(work.group),
        lse_head_stride(1),
        o_base(p.tail_o),
        lse_base(p.tail_lse),
        is_fp32(true),
        has_sink(false) {
    lse = (int64_t{mine.tile - p.whole_blocks} * mine.parts + mine.part) * block_q - first_row;
    o = lse * p.head_dim_v + first_value;
  }
};

// o: the warp's rows, value columns first_value and up.
template <Element E, int M, int N>
__device__ __forceinline__ void store_output(const tile::Accumulator<M, N>& o, const OnlineSoftmax<M>& softmax,
                                             const OutputPlace& to, const AttentionForwardParams& p,
                                             const ForwardWork& work, int first_row, int first_value, int lane) {
  const int blocks = min((p.head_dim_v - first_value) / 8, N);
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first_row + m * 16 + half * 8 + lane / 4;
      const bool inside = row < work.rows;
      const QueryRow at = work.query_row(row);
      const int64_t index = to.o + at.token * to.token_stride + at.head * to.head_stride;
      const Denominator denominator = softmax.denominator(
          m, half,
          inside && to.has_sink ? sink_log2<E>(p.sink, p.sink_is_fp32, work.head_k * work.group + at.head) : -INFINITY);
      const float factor = denominator.factor;
      if (to.is_fp32) {
        store_row_32(o.x[m], half, factor, static_cast<char*>(to.o_base) + index * 4, blocks, inside, lane);
      } else {
        store_row_16<E>(o.x[m], half, factor, static_cast<char*>(to.o_base) + index * 2, blocks, inside, lane);
      }
      if (to.lse_base != nullptr && inside && lane % 4 == 0 && first_value == 0) {
        ptx::store_global_32(to.lse_base + to.lse + at.head * to.lse_head_stride + at.token * to.lse_token_stride,
                             denominator.log);
      }
    }
  }
}

}  // namespace flashdelta::attention
