// Partial results of attention over parts of the keys to o and lse:
//
//   w_i = exp(lse_i - lse),  lse = ln(sum_i exp(lse_i) + exp(sink)),  o = sum_i w_i o_i
//
// A warp a (token, query head), lane i keeping part i's weight. Parts are added in their order, so that the bits of o
// depend on nothing but the inputs and the number of parts.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/attention/forward_output.cuh"
#include "cuda/attention/forward_work.cuh"
#include "cuda/attention/sink.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/shuffle.cuh"

namespace flashdelta::attention {

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, ptx::shfl_xor(x, mask));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += ptx::shfl_xor(x, mask);
  return x;
}

// Tokens of packed queries that no sequence owns are not written.
__device__ __forceinline__ bool owned(const AttentionCombineParams& p, int token) {
  if (p.cu_seqlens_q == nullptr) return true;
  return token >= int_at(p.cu_seqlens_q, p.cu_seqlens_q_is_64, 0) &&
         token < int_at(p.cu_seqlens_q, p.cu_seqlens_q_is_64, p.batch);
}

// A row's parts: o and lse of the first, how far (in elements) the next are, where the sum goes.
struct RowParts {
  const float *o, *lse;
  int64_t o_stride, lse_stride;
  int parts, head_dim_v;
  float sink;  // in base 2
  char* to;
  bool is_fp32;
  float* lse_to;  // may be null
};

template <Element E>
__device__ __forceinline__ void add_up(const RowParts& row, int lane) {
  constexpr float log2e = 1.4426950408889634f, ln2 = 0.693147180559945f, lowest = -3.4028234663852886e38f;
  const float log = lane < row.parts ? row.lse[lane * row.lse_stride] * log2e : -INFINITY;
  // Finite: a row without keys or sink has weights 0.
  const float maximum = fmaxf(fmaxf(warp_max(log), row.sink), lowest);
  const float weight = ptx::ex2(log - maximum);
  const float sum = warp_sum(weight) + ptx::ex2(row.sink - maximum);
  const float factor = sum > 0 ? ptx::rcp(sum) : 0;
  for (int first = 0; first < row.head_dim_v; first += 64) {
    const int column = first + lane * 2;
    float x = 0, y = 0;
    for (int i = 0; i < row.parts; i++) {
      const float w = __int_as_float(ptx::shfl_idx(__float_as_int(weight), i));
      if (column >= row.head_dim_v) continue;
      const float2 o = *reinterpret_cast<const float2*>(row.o + i * row.o_stride + column);
      x = fmaf(w, o.x, x);
      y = fmaf(w, o.y, y);
    }
    if (column >= row.head_dim_v) continue;
    if (row.is_fp32) {
      ptx::store_global_64(row.to + column * 4, x * factor, y * factor);
    } else {
      ptx::store_global_32(row.to + column * 2, __uint_as_float(ptx::pack<E>(x * factor, y * factor)));
    }
  }
  if (row.lse_to != nullptr && lane == 0) {
    ptx::store_global_32(row.lse_to, sum > 0 ? (maximum + ptx::lg2(sum)) * ln2 : -INFINITY);
  }
}

template <ForwardCombineConfig C>
__device__ __forceinline__ void combine(const AttentionCombineParams& p) {
  const int lane = threadIdx.x & 31;
  const int row = blockIdx.x * (C.threads() / 32) + ptx::shfl_idx(threadIdx.x / 32, 0);
  if (row >= p.rows) return;
  const int token = row / p.heads, head = row - token * p.heads;
  if (!owned(p, token)) return;
  const int outer = token / p.tokens, inner = token - outer * p.tokens;
  const int64_t index = outer * p.o_batch_stride + inner * p.o_token_stride + head * p.o_head_stride;
  add_up<C.element>(
      {.o = p.partial_o + int64_t{row} * p.head_dim_v,
       .lse = p.partial_lse + (int64_t{outer} * p.heads + head) * p.tokens + inner,
       .o_stride = int64_t{p.rows} * p.head_dim_v,
       .lse_stride = p.rows,
       .parts = p.splits,
       .head_dim_v = p.head_dim_v,
       .sink = sink_log2<C.element>(p.sink, p.sink_is_fp32, head),
       .to = static_cast<char*>(p.o) + index * (p.o_is_fp32 ? 4 : 2),
       .is_fp32 = p.o_is_fp32 != 0,
       .lse_to = p.lse == nullptr ? nullptr : p.lse + outer * p.lse_batch_stride + head * p.lse_head_stride + inner},
      lane);
}

// The last query tiles of a forward kernel's call, of block_q rows each: grid.x times the warps of a block are the rows
// of one, grid.y the tiles.
template <ForwardCombineConfig C>
__device__ __forceinline__ void combine_tail(const AttentionForwardParams& p) {
  const int lane = threadIdx.x & 31;
  const int row = blockIdx.x * (C.threads() / 32) + ptx::shfl_idx(threadIdx.x / 32, 0);
  const int block_q = gridDim.x * (C.threads() / 32);
  const ForwardWork work(p, p.whole_blocks + blockIdx.y);
  if (work.tile * block_q + row >= work.rows) return;
  const QueryRow at = work.query_row(work.tile * block_q + row);
  const int64_t place = int64_t{blockIdx.y} * p.tail_parts * block_q + row;
  const OutputPlace to(p, work, 0);
  const int64_t index = to.o + at.token * to.token_stride + at.head * to.head_stride;
  add_up<C.element>({.o = p.tail_o + place * p.head_dim_v,
                     .lse = p.tail_lse + place,
                     .o_stride = int64_t{block_q} * p.head_dim_v,
                     .lse_stride = block_q,
                     .parts = p.tail_parts,
                     .head_dim_v = p.head_dim_v,
                     .sink = sink_log2<C.element>(p.sink, p.sink_is_fp32, work.head_k * work.group + at.head),
                     .to = static_cast<char*>(p.o) + index * (p.o_is_fp32 ? 4 : 2),
                     .is_fp32 = p.o_is_fp32 != 0,
                     .lse_to = p.lse == nullptr ? nullptr : p.lse + to.lse + at.head * to.lse_head_stride + at.token},
                    lane);
}

}  // namespace flashdelta::attention
