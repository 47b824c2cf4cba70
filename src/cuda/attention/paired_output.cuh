// o and lse of paired.cuh's registers to global memory. A lane holds two rows of o in columns apart, so 16 columns at a
// time turn in what the pair told each other in.
#pragma once

#include "cuda/attention/forward_output.cuh"
#include "cuda/attention/paired_softmax.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace flashdelta::attention {

// o: rows of the block first_row and up, value columns 16 M half and up, to where block `block` puts them.
template <ForwardConfig C, int M, int N>
__device__ __forceinline__ void store_columns(const tile::Accumulator<M, N>& o, const PairedSoftmax<C>& softmax,
                                              PairExchange<C>& exchange, int half, const AttentionForwardParams& p,
                                              int block, int first_row) {
  static_assert(sizeof(exchange.weights[0]) == sizeof(float) * N * 8 * 16);
  const int lane = ptx::thread_index() & 31;
  const TilePart mine(p, block);
  const ForwardWork work(p, mine.tile);
  const int block_row = work.tile * C.block_q;
  first_row += block_row;
  const OutputPlace to = mine.parts > 1 ? OutputPlace(p, work, mine, C.block_q, block_row, 0) : OutputPlace(p, work, 0);
  float factor[N][2];
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = first_row + PairedSoftmax<C>::row(n, e, lane);
      const bool inside = row < work.rows;
      const QueryRow at = work.query_row(row);
      const Denominator d = softmax.denominator(
          n, e,
          inside && to.has_sink ? sink_log2<C.element>(p.sink, p.sink_is_fp32, work.head_k * work.group + at.head)
                                : -INFINITY);
      factor[n][e] = d.factor;
      if (to.lse_base != nullptr && inside && lane < 4 && half == 0) {
        ptx::store_global_32(to.lse_base + to.lse + at.head * to.lse_head_stride + at.token * to.lse_token_stride,
                             d.log);
      }
    }
  }
  // [24 rows][16 columns]: rows 1 and 2 of four change places, and of every other four the halves, so that neither the
  // columns of four rows that a store has nor two rows that a load has meet in a bank.
  float* turn = reinterpret_cast<float*>(exchange.weights[half]);
  const auto turned = [](int row) { return (row & ~3) | (row >> 1 & 1) | (row & 1) << 1; };
  const auto place = [&](int row, int column) { return turned(row) * 16 + (column ^ (row & 4) << 1); };
  int64_t index[N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    const QueryRow at = work.query_row(first_row + turned(n * 8 + lane / 4));
    index[n] = to.o + at.token * to.token_stride + at.head * to.head_stride;
  }
#pragma unroll
  for (int m = 0; m < M; m++) {
    ptx::warp_sync();  // what was there is read
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = PairedSoftmax<C>::row(n, i & 1, lane);
        turn[place(row, lane / 4 + i / 2 * 8)] = o.x[m][n][i] * factor[n][i & 1];
      }
    }
    ptx::warp_sync();
    const int column = half * M * 16 + m * 16 + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int row = turned(n * 8 + lane / 4);
      const float4 x = *reinterpret_cast<const float4*>(turn + place(row, lane % 4 * 4));
      if (first_row + row >= work.rows || column >= p.head_dim_v) continue;
      const int64_t at = index[n] + column;
      if (to.is_fp32) {
        float* o_32 = static_cast<float*>(to.o_base) + at;
        ptx::store_global_64(o_32, x.x, x.y);
        ptx::store_global_64(o_32 + 2, x.z, x.w);
      } else {
        ptx::store_global_64(static_cast<char*>(to.o_base) + at * 2, __uint_as_float(ptx::pack<C.element>(x.x, x.y)),
                             __uint_as_float(ptx::pack<C.element>(x.z, x.w)));
      }
    }
  }
}

}  // namespace flashdelta::attention
