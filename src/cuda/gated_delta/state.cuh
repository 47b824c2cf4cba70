// A warp's columns of the state between memory and registers. The state is held transposed, S^T [16 M value columns,
// dim_k]: lane l has values l / 4 and + 8 of each block m, keys 8 n + 2 (l % 4) and + 1.
#pragma once

#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/memory_16.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// Calls f(accumulator element, its place in memory) for those that lie inside [dim_k, dim_v], from the warp's first
// value on. This is code that a block runs once or twice, and most of what it waits for are the instructions
// themselves: so where all elements are inside, one address serves all that lie at constant distances from it, as one
// of the strides is 1. Else sizes, multiples of 8, decide for eight keys or values at once, by the whole warp.
template <int M, int N, class T, class F>
__device__ __forceinline__ void for_each_inside(tile::Accumulator<M, N>& s, const GatedDeltaForwardParams& p,
                                                const GatedDeltaStates& states, T* at, int first_value, int lane,
                                                const F& f) {
  const int64_t key = states.key_stride, value = states.value_stride;
  at += lane % 4 * 2 * key + (first_value + lane / 4) * value;
  const auto element = [&](int n, int e, int i) -> float& { return s.x[i / 2][n][i % 2 * 2 + e]; };
  const bool whole = p.dim_k == 8 * N && first_value + 16 * M <= p.dim_v;
  if (whole && value == 1) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int i = 0; i < 2 * M; i++) f(element(n, e, i), at + i * 8);
        at += e == 0 ? key : 7 * key;
      }
    }
    return;
  }
  if (whole) {
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) f(element(n, e, i), at + n * 8 + e);
      }
      at += 8 * value;
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
    if (n * 8 >= p.dim_k) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      T* place = at + e * key;
#pragma unroll
      for (int i = 0; i < 2 * M; i++) {
        if (first_value + i * 8 < p.dim_v) f(element(n, e, i), place);
        place += 8 * value;
      }
    }
    at += 8 * key;
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
    for_each_inside(s, p, states, static_cast<const uint16_t*>(states.data) + base, first_value, lane,
                    [](float& x, const uint16_t* at) { x = __uint_as_float(static_cast<uint32_t>(*at) << 16); });
  } else {
    for_each_inside(s, p, states, static_cast<const float*>(states.data) + base, first_value, lane,
                    [](float& x, const float* at) { x = *at; });
  }
}

template <int M, int N>
__device__ __forceinline__ void store_state(tile::Accumulator<M, N>& s, const GatedDeltaForwardParams& p,
                                            const GatedDeltaStates& states, int64_t slot, int head, int first_value,
                                            int lane) {
  const int64_t base = state_offset(states, slot, head);
  if (p.state_is_bf16) {
    for_each_inside(s, p, states, static_cast<uint16_t*>(states.data) + base, first_value, lane,
                    [](float x, uint16_t* at) { ptx::store_global_16(at, ptx::pack<Element::bf16>(x, 0)); });
  } else {
    for_each_inside(s, p, states, static_cast<float*>(states.data) + base, first_value, lane,
                    [](float x, float* at) { ptx::store_global_32(at, x); });
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
