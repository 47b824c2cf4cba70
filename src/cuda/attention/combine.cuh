// Partial results of attention over parts of the keys to o and lse:
//
//   w_i = exp(lse_i - lse),  lse = ln(sum_i exp(lse_i) + exp(sink)),  o = sum_i w_i o_i
//
// A warp a (token, query head), lane i keeping part i's weight. Parts are added in their order, so that the bits of o
// depend on nothing but the inputs and the number of parts.
#pragma once

#include "cuda/attention/forward_config.hpp"
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

template <ForwardCombineConfig C>
__device__ __forceinline__ void combine(const AttentionCombineParams& p) {
  const int lane = threadIdx.x & 31;
  const int row = blockIdx.x * (C.threads() / 32) + ptx::shfl_idx(threadIdx.x / 32, 0);
  if (row >= p.rows) return;
  const int token = row / p.heads, head = row - token * p.heads;
  if (!owned(p, token)) return;
  const int outer = token / p.tokens, inner = token - outer * p.tokens;

  constexpr float log2e = 1.4426950408889634f, ln2 = 0.693147180559945f, lowest = -3.4028234663852886e38f;
  const float* partial_lse = p.partial_lse + (int64_t{outer} * p.heads + head) * p.tokens + inner;
  const float log = lane < p.splits ? partial_lse[lane * int64_t{p.rows}] * log2e : -INFINITY;
  const float sink = sink_log2<C.element>(p.sink, p.sink_is_fp32, head);
  const float maximum = fmaxf(fmaxf(warp_max(log), sink), lowest);  // finite: a row without keys or sink has weights 0
  const float weight = ptx::ex2(log - maximum);
  const float sum = warp_sum(weight) + ptx::ex2(sink - maximum);
  const float factor = sum > 0 ? ptx::rcp(sum) : 0;

  const int64_t index = outer * p.o_batch_stride + inner * p.o_token_stride + head * p.o_head_stride;
  const int64_t part = int64_t{p.rows} * p.head_dim_v;
  const float* partial_o = p.partial_o + int64_t{row} * p.head_dim_v;
  for (int first = 0; first < p.head_dim_v; first += 64) {
    const int column = first + lane * 2;
    float x = 0, y = 0;
    for (int i = 0; i < p.splits; i++) {
      const float w = __int_as_float(ptx::shfl_idx(__float_as_int(weight), i));
      if (column >= p.head_dim_v) continue;
      const float2 o = *reinterpret_cast<const float2*>(partial_o + i * part + column);
      x = fmaf(w, o.x, x);
      y = fmaf(w, o.y, y);
    }
    if (column >= p.head_dim_v) continue;
    if (p.o_is_fp32) {
      ptx::store_global_64(static_cast<float*>(p.o) + index + column, x * factor, y * factor);
    } else {
      const uint32_t pair = ptx::pack<C.element>(x * factor, y * factor);
      ptx::store_global_32(static_cast<uint16_t*>(p.o) + index + column, __uint_as_float(pair));
    }
  }
  if (p.lse != nullptr && lane == 0) {
    const float lse = sum > 0 ? (maximum + ptx::lg2(sum)) * ln2 : -INFINITY;
    ptx::store_global_32(p.lse + outer * p.lse_batch_stride + head * p.lse_head_stride + inner, lse);
  }
}

}  // namespace flashdelta::attention
