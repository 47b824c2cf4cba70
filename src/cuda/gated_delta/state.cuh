// A warp's columns of the state between memory and registers. The state is held transposed, S^T [16 M value columns,
// dim_k]: lane l has values l / 4 and + 8 of each block m, keys 8 n + 2 (l % 4) and + 1.
#pragma once

#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/memory_16.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// Calls f(accumulator element, element offset) for those that lie inside [dim_k, dim_v]. first_value: the warp's.
template <int M, int N, class F>
__device__ __forceinline__ void for_each_inside(tile::Accumulator<M, N>& s, const GatedDeltaForwardParams& p,
                                                const GatedDeltaStates& states, int first_value, int lane, const F& f) {
  // Values inside, so that one key's offset is in registers at a time.
  const int value0 = first_value + lane / 4, key0 = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < M; m++) {
    if (m > 0) ptx::warp_sync();  // keeps the compiler from keeping a block's offsets for the next
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int key = key0 + n * 8 + e;
        const int64_t column = key * states.key_stride;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int value = value0 + m * 16 + half * 8;
          if (value < p.dim_v && key < p.dim_k) f(s.x[m][n][2 * half + e], column + value * states.value_stride);
        }
      }
    }
  }
}

__device__ __forceinline__ int64_t state_offset(const GatedDeltaStates& states, int64_t slot, int head) {
  return slot * states.slot_stride + head * states.head_stride;
}

// Elements outside stay as they are.
template <int M, int N>
__device__ __forceinline__ void load_state(tile::Accumulator<M, N>& s, const GatedDeltaForwardParams& p,
                                           const GatedDeltaStates& states, int64_t slot, int head, int first_value,
                                           int lane) {
  const int64_t base = state_offset(states, slot, head);
  if (p.state_is_bf16) {
    const uint16_t* data = static_cast<const uint16_t*>(states.data) + base;
    for_each_inside(s, p, states, first_value, lane,
                    [&](float& x, int64_t offset) { x = __uint_as_float(static_cast<uint32_t>(data[offset]) << 16); });
  } else {
    const float* data = static_cast<const float*>(states.data) + base;
    for_each_inside(s, p, states, first_value, lane, [&](float& x, int64_t offset) { x = data[offset]; });
  }
}

template <int M, int N>
__device__ __forceinline__ void store_state(tile::Accumulator<M, N>& s, const GatedDeltaForwardParams& p,
                                            const GatedDeltaStates& states, int64_t slot, int head, int first_value,
                                            int lane) {
  const int64_t base = state_offset(states, slot, head);
  if (p.state_is_bf16) {
    uint16_t* data = static_cast<uint16_t*>(states.data) + base;
    for_each_inside(s, p, states, first_value, lane, [&](float x, int64_t offset) {
      ptx::store_global_16(data + offset, ptx::pack<Element::bf16>(x, 0));
    });
  } else {
    float* data = static_cast<float*>(states.data) + base;
    for_each_inside(s, p, states, first_value, lane,
                    [&](float x, int64_t offset) { ptx::store_global_32(data + offset, x); });
  }
}

// Columns `first` .. of the state before the part in a slot (parts.cuh), and of what the part does to it: fp32 in the
// workspace, rows of dim_k numbers.
__device__ __forceinline__ float* state_before(const GatedDeltaForwardParams& p, int64_t slot, int head, int first,
                                               int dim_k) {
  return p.starts + ((slot * (p.heads_k * p.group) + head) * p.columns + first) * dim_k;
}
__device__ __forceinline__ float* transition_of(const GatedDeltaForwardParams& p, int64_t slot, int head, int first,
                                                int dim_k) {
  return p.transitions + ((slot * (p.heads_k * p.group) + head) * dim_k + first) * dim_k;
}

// Calls f(first of two accumulator elements, column, key of the first) for each pair of keys that a lane holds.
template <int M, int N, class Accumulator, class F>
__device__ __forceinline__ void for_each_pair(Accumulator& s, int lane, const F& f) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        f(&s.x[m][n][2 * half], m * 16 + half * 8 + lane / 4, n * 8 + lane % 4 * 2);
      }
    }
  }
}

// Columns `first` .. of the identity.
template <int M, int N>
__device__ __forceinline__ void set_identity(tile::Accumulator<M, N>& s, int first, int lane) {
  for_each_pair<M, N>(s, lane, [&](float* pair, int column, int key) {
    pair[0] = first + column == key ? 1.0f : 0.0f;
    pair[1] = first + column == key + 1 ? 1.0f : 0.0f;
  });
}

// Between registers and the workspace's [columns, 8 N] fp32, from a warp's first column on.
template <int M, int N>
__device__ __forceinline__ void load_columns(tile::Accumulator<M, N>& s, const float* from, int lane) {
  for_each_pair<M, N>(s, lane, [&](float* pair, int column, int key) {
    const float2 x = *reinterpret_cast<const float2*>(from + column * (8 * N) + key);
    pair[0] = x.x, pair[1] = x.y;
  });
}

template <int M, int N>
__device__ __forceinline__ void store_columns(const tile::Accumulator<M, N>& s, float* to, int lane) {
  for_each_pair<M, N>(s, lane, [&](const float* pair, int column, int key) {
    ptx::store_global_64(to + column * (8 * N) + key, pair[0], pair[1]);
  });
}

}  // namespace flashdelta::gated_delta
