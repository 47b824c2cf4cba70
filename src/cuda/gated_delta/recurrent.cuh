// The gated delta rule token by token, for few tokens a sequence:
//
//   u = beta (v - e^g S^T k);  o = scale (e^g S^T q + (k . q) u);  S = e^g S + k u^T
//
// A warp owns 16 value columns of a sequence and value head. It reads them once, keeps them in fp32 registers and
// writes them once, or after each token that wants its state: a token of decoding costs the state's bytes and little
// else. Lanes l, l + 4, .. share a value column's keys (recurrent_state.cuh); their sums meet by shuffles in a fixed
// order. Warps share nothing. In place, a warp has read all that it overwrites before it writes.
#pragma once

#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "cuda/gated_delta/recurrent_state.cuh"

namespace flashdelta::gated_delta {

// A lane's part of what a token brings.
template <int Groups>
struct RecurrentToken {
  uint2 k[Groups], q[Groups];  // four keys each
  float v;                     // of one value, see store_o()
  float gate, beta;
};

template <GatedDeltaRecurrentConfig C>
class Recurrent {
 public:
  __device__ __forceinline__ Recurrent(const GatedDeltaRecurrentParams& params, const Sequence& sequence, int n,
                                       int head, int first_value)
      : params_(params),
        call_(params.call),
        sequence_(sequence),
        n_(n),
        head_(head),
        first_value_(first_value),
        values_(params.call.dim_v - first_value),
        lane_(threadIdx.x & 31) {}

  __device__ __forceinline__ void run() {
    const Slots slots = recurrent_slots();
    if (slots.skipped) {
      for (int t = 0; t < sequence_.length; t++) store_o(t, 0);
      return;
    }
    Token token;
    if (sequence_.length > 0) load(token, 0);
    load_state(state_, params_, window(call_.initial, slots.initial), values_, lane_);
    int64_t checkpoint = call_.checkpoints.data != nullptr ? first_checkpoint(call_, n_, lane_) : 0;
    int done = 0;
    do {  // once for an empty sequence too: its final state is its initial one
      if (done < sequence_.length) {
        Token next;
        if (done + 1 < sequence_.length) load(next, done + 1);
        step(token, done);
        token = next;
        done++;
      }
      store_states(done, slots.final, checkpoint);
    } while (done < sequence_.length);
  }

 private:
  static constexpr int groups = C.dim_k / 32;
  using Token = RecurrentToken<groups>;

  // Where accepted tokens are counted, the last of them says which slot the sequence starts from.
  __device__ __forceinline__ Slots recurrent_slots() const {
    Slots slots = slots_of(call_, n_);
    if (params_.token_indices.data == nullptr) return slots;
    if (call_.final_indices.data == nullptr) slots.final = -1;  // the states after tokens are what is written
    if (params_.accepted_tokens.data == nullptr) return slots;
    const int64_t last = clamped(load_int(params_.accepted_tokens, n_), 1, params_.token_slots) - 1;
    slots.initial = token_slot(call_.initial, last);
    slots.skipped = slots.skipped || slots.initial < 0;
    return slots;
  }

  __device__ __forceinline__ int64_t token_slot(const GatedDeltaStates& states, int64_t t) const {
    return clamped(load_int(params_.token_indices, n_ * params_.token_indices.row_stride + t), -1, states.slots - 1);
  }

  __device__ __forceinline__ StateWindow window(const GatedDeltaStates& states, int64_t slot) const {
    return state_window(params_, states, slot, head_, first_value_);
  }

  __device__ __forceinline__ int value(int i) const {
    return params_.value_major ? lane_ % 4 + 4 * i : lane_ % 4 * 4 + i;
  }

  __device__ __forceinline__ void load(Token& token, int t) const {
    const int head_k = head_ / call_.group, key = lane_ / 4 * 4;
    const uint16_t* k = static_cast<const uint16_t*>(call_.k.data) + sequence_.offset(call_.k, t, head_k) + key;
    const uint16_t* q = static_cast<const uint16_t*>(call_.q.data) + sequence_.offset(call_.q, t, head_k) + key;
#pragma unroll
    for (int i = 0; i < groups; i++) {
      const bool inside = key + i * 32 < call_.dim_k;
      token.k[i] = inside ? *reinterpret_cast<const uint2*>(k + i * 32) : make_uint2(0, 0);
      token.q[i] = inside ? *reinterpret_cast<const uint2*>(q + i * 32) : make_uint2(0, 0);
    }
    const uint16_t* v = static_cast<const uint16_t*>(call_.v.data) + sequence_.offset(call_.v, t, head_) + first_value_;
    const int column = value(lane_ / 4 % 4);
    token.v = column < values_ ? to_float<C.element>(v[column]) : 0;
    token.gate = gate_at<C.element>(call_, sequence_, t, head_);
    token.beta = beta_at<C.element>(call_, sequence_, t, head_);
  }

  static __device__ __forceinline__ void unpack(float (&x)[4], const uint2& four) {
    x[0] = to_float<C.element>(static_cast<uint16_t>(four.x)), x[1] = to_float<C.element>(four.x >> 16);
    x[2] = to_float<C.element>(static_cast<uint16_t>(four.y)), x[3] = to_float<C.element>(four.y >> 16);
  }

  static __device__ __forceinline__ float sum_over_keys(float x) {
    x += ptx::shfl_xor(x, 4);
    x += ptx::shfl_xor(x, 8);
    return x + ptx::shfl_xor(x, 16);
  }

  // Token t: moves the state on and writes o.
  __device__ __forceinline__ void step(const Token& token, int t) {
    float sk[4] = {}, sq[4] = {}, kq = 0, kk = 0, qq = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float k[4], q[4];
      unpack(k, token.k[g]);
      unpack(q, token.q[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        kq = fmaf(k[j], q[j], kq), kk = fmaf(k[j], k[j], kk), qq = fmaf(q[j], q[j], qq);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          sk[i] = fmaf(state_.x[g][j][i], k[j], sk[i]);
          sq[i] = fmaf(state_.x[g][j][i], q[j], sq[i]);
        }
      }
    }
    float key_norm = 1, query_norm = 1;
    if (call_.l2norm) {
      key_norm = rsqrtf(sum_over_keys(kk) + 1e-6f);
      query_norm = rsqrtf(sum_over_keys(qq) + 1e-6f);
    }
    kq = sum_over_keys(kq) * key_norm;
    const float decay = expf(token.gate);
    float u[4], o = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float v = __int_as_float(ptx::shfl_idx(__float_as_int(token.v), lane_ % 4 + 4 * i));
      u[i] = token.beta * (v - decay * key_norm * sum_over_keys(sk[i]));
      const float oi = fmaf(u[i], kq, decay * sum_over_keys(sq[i]));
      if (lane_ / 4 == i) o = oi;
      u[i] *= key_norm;
    }
    store_o(t, call_.scale * query_norm * o);
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float k[4];
      unpack(k, token.k[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) state_.x[g][j][i] = fmaf(k[j], u[i], decay * state_.x[g][j][i]);
      }
    }
  }

  // Lanes 4 i .. 4 i + 3 have value(i)'s.
  __device__ __forceinline__ void store_o(int t, float o) const {
    const int column = value(lane_ / 4);
    if (lane_ >= 16 || column >= values_) return;
    const int64_t element = sequence_.offset(call_.o, t, head_) + first_value_ + column;
    char* data = static_cast<char*>(const_cast<void*>(call_.o.data));
    if (call_.o.is_fp32) {
      ptx::store_global_32(data + element * 4, o);
    } else {
      ptx::store_global_16(data + element * 2, ptx::pack<C.element>(o, 0));
    }
  }

  // What is wanted of the state after `done` tokens.
  __device__ __forceinline__ void store_states(int done, int64_t final_slot, int64_t& checkpoint) const {
    StateWindow to[3] = {};
    if (done == sequence_.length) to[0] = window(call_.final, final_slot);
    if (params_.token_indices.data != nullptr && done > 0 && done <= params_.token_slots) {
      to[1] = window(call_.final, token_slot(call_.final, done - 1));
    }
    if (call_.checkpoints.data != nullptr && done > 0 && done % call_.checkpoint_every == 0) {
      to[2] = window(call_.checkpoints, checkpoint < call_.checkpoints.slots ? checkpoint : -1);
      checkpoint++;
    }
#pragma unroll 1
    for (int i = 0; i < 3; i++) {  // one copy of the stores' code
      const StateWindow one = i == 0 ? to[0] : i == 1 ? to[1] : to[2];
      if (one.data != nullptr) store_state(state_, params_, one, values_, lane_);
    }
  }

  const GatedDeltaRecurrentParams& params_;
  const GatedDeltaForwardParams& call_;
  const Sequence& sequence_;
  const int n_, head_, first_value_, values_, lane_;
  RecurrentState<C.dim_k> state_;
};

template <GatedDeltaRecurrentConfig C>
__device__ __forceinline__ void recurrent(const GatedDeltaRecurrentParams& params) {
  static_assert(C.valid());
  const int heads_v = params.call.heads_k * params.call.group;
  const int value_block = blockIdx.x % params.call.value_blocks, unit = blockIdx.x / params.call.value_blocks;
  const int n = unit / heads_v, head = unit - n * heads_v;
  const int first_value = value_block * C.block_v() + ptx::shfl_idx(threadIdx.x / 32, 0) * 16;
  if (first_value >= params.call.dim_v) return;
  const Sequence sequence = sequence_at(params.call, n);
  Recurrent<C>(params, sequence, n, head, first_value).run();
}

}  // namespace flashdelta::gated_delta
