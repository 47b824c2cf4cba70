// A warp's part of a state between memory and registers, four contiguous elements at a time.
//
// Where values are contiguous ([K, V]) a warp has some of the block's keys and all of its columns, where keys are
// ([V, K]) some of the columns and all keys: of each row of memory as many bytes side by side as there may be. Of a
// warp's 4 L columns L lanes lie side by side and 32 / L over keys. Lane l holds keys 4 (l / L) + 0 .. 3 of each
// 128 / L, and of the values in [K, V] 4 (l % L) + 0 .. 3, in [V, K] l % L + 0, L, 2 L, 3 L: so four elements of a lane
// are one vector.
#pragma once

#include <type_traits>

#include "cuda/gated_delta/recurrent_params.h"
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/memory_16.cuh"

namespace flashdelta::gated_delta {

// fp32 in registers: [group of keys][keys 0 .. 3][values 0 .. 3].
template <GatedDeltaRecurrentConfig C, bool ValueMajor>
struct RecurrentState {
  static constexpr bool value_major = ValueMajor;
  static constexpr int columns = ValueMajor ? C.block_v / C.warps : C.block_v,
                       keys = C.dim_k * C.block_v / C.warps / columns;
  static constexpr int lanes = columns / 4, group_keys = 128 / lanes, groups = keys / group_keys;
  float x[groups][4][4];
};

// One warp's window on a state tensor: its head of one slot, from its first key and value column on.
struct StateWindow {
  char* data;          // null: nowhere
  int64_t row_stride;  // elements, of keys where values are contiguous and of values where keys are
};

__device__ __forceinline__ StateWindow state_window(const GatedDeltaRecurrentParams& p, const GatedDeltaStates& states,
                                                    int64_t slot, int head, int first_key, int first_value) {
  if (slot < 0) return {nullptr, 0};
  const int64_t row_stride = p.value_major ? states.value_stride : states.key_stride;
  const int64_t element = slot * states.slot_stride + head * states.head_stride + first_key * states.key_stride +
                          first_value * states.value_stride;
  return {static_cast<char*>(states.data) + element * (p.call.state_is_bf16 ? 2 : 4), row_stride};
}

// Calls f with true or false as a type for each of: bf16, vectors aligned.
template <class F>
__device__ __forceinline__ void with_state_format(const GatedDeltaRecurrentParams& p, const F& f) {
  const auto aligned = [&](auto bf16) {
    if (p.states_aligned) {
      f(bf16, std::true_type{});
    } else {
      f(bf16, std::false_type{});
    }
  };
  if (p.call.state_is_bf16) {
    aligned(std::true_type{});
  } else {
    aligned(std::false_type{});
  }
}

template <bool Bf16, bool Aligned>
__device__ __forceinline__ void load_four(float (&x)[4], const char* data, int64_t element) {
  if constexpr (Bf16 && Aligned) {
    const uint2 two = __ldcs(reinterpret_cast<const uint2*>(data + element * 2));
    x[0] = __uint_as_float(two.x << 16), x[1] = __uint_as_float(two.x & 0xffff0000u);
    x[2] = __uint_as_float(two.y << 16), x[3] = __uint_as_float(two.y & 0xffff0000u);
  } else if constexpr (Aligned) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(data + element * 4));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[i] = Bf16 ? ptx::to_float<Element::bf16>(reinterpret_cast<const uint16_t*>(data)[element + i])
                  : reinterpret_cast<const float*>(data)[element + i];
    }
  }
}

template <bool Bf16, bool Aligned>
__device__ __forceinline__ void store_four(char* data, int64_t element, const float (&x)[4]) {
  if constexpr (Bf16 && Aligned) {
    __stcs(reinterpret_cast<uint2*>(data + element * 2),
           make_uint2(ptx::pack<Element::bf16>(x[0], x[1]), ptx::pack<Element::bf16>(x[2], x[3])));
  } else if constexpr (Aligned) {
    __stcs(reinterpret_cast<float4*>(data + element * 4), make_float4(x[0], x[1], x[2], x[3]));
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (Bf16) {
        ptx::store_global_16(data + (element + i) * 2, ptx::pack<Element::bf16>(x[i], 0));
      } else {
        ptx::store_global_32(data + (element + i) * 4, x[i]);
      }
    }
  }
}

// Calls f(group, row, element) for the lane's vectors inside [keys, values]: row is a key of the group where values are
// contiguous, a value where keys are.
template <class State, class F>
__device__ __forceinline__ void for_each_vector(int64_t row_stride, int keys, int values, int lane, const F& f) {
  constexpr bool ValueMajor = State::value_major;
  constexpr int lanes = State::lanes, group_keys = State::group_keys;
  const int key0 = lane / lanes * 4, value0 = ValueMajor ? lane % lanes : lane % lanes * 4;
  const int64_t first = ValueMajor ? value0 * row_stride + key0 : key0 * row_stride + value0;
#pragma unroll
  for (int group = 0; group < State::groups; group++) {
    if (key0 + group * group_keys >= keys) break;
#pragma unroll
    for (int row = 0; row < 4; row++) {
      if (value0 + (ValueMajor ? lanes * row : 0) >= values) continue;
      f(group, row,
        first + (ValueMajor ? lanes * row * row_stride + group * group_keys : (group * group_keys + row) * row_stride));
    }
  }
}

// A state is read once and written once: both go past what the caches hold. Elements outside are zero, and stay so.
// keys, values: from the warp's first to the head's last.
template <class State>
__device__ __forceinline__ void load_state(State& s, const GatedDeltaRecurrentParams& p, const StateWindow& from,
                                           int keys, int values, int lane) {
#pragma unroll
  for (int i = 0; i < State::groups * 16; i++) s.x[i / 16][i / 4 % 4][i % 4] = 0;
  if (from.data == nullptr) return;
  with_state_format(p, [&](auto bf16, auto aligned) {
    for_each_vector<State>(from.row_stride, keys, values, lane, [&](int group, int row, int64_t element) {
      float four[4];
      load_four<bf16.value, aligned.value>(four, from.data, element);
#pragma unroll
      for (int i = 0; i < 4; i++) (State::value_major ? s.x[group][i][row] : s.x[group][row][i]) = four[i];
    });
  });
}

template <class State>
__device__ __forceinline__ void store_state(const State& s, const GatedDeltaRecurrentParams& p, const StateWindow& to,
                                            int keys, int values, int lane) {
  with_state_format(p, [&](auto bf16, auto aligned) {
    for_each_vector<State>(to.row_stride, keys, values, lane, [&](int group, int row, int64_t element) {
      float four[4];
#pragma unroll
      for (int i = 0; i < 4; i++) four[i] = State::value_major ? s.x[group][i][row] : s.x[group][row][i];
      store_four<bf16.value, aligned.value>(to.data, element, four);
    });
  });
}

}  // namespace flashdelta::gated_delta
