// The gated delta rule token by token, for few tokens a sequence:
//
//   u = beta (v - e^g S^T k);  o = scale (e^g S^T q + (k . q) u);  S = e^g S + k u^T
//
// A warp owns some value columns of a sequence and value head. It reads them once, keeps them in fp32 registers and
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
  __device__ __forceinline__ Recurrent(const GatedDeltaRecurrentParams& params, int n, int head, int first_value)
      : params_(params),
        call_(params.call),
        n_(n),
        head_(head),
        first_value_(first_value),
        values_(params.call.dim_v - first_value),
        lane_(threadIdx.x & 31) {}

  __device__ __forceinline__ void run() {
    const Slots slots = recurrent_slots();
    // First of all what takes longest to come; the lengths are not needed for it.
    load_state(state_, params_, window(call_.initial, slots.skipped ? -1 : slots.initial), values_, lane_);
    const Sequence sequence = sequence_at(call_, n_);
    length_ = sequence.length;
    const int column = min(value(lane_ / lanes % 4), values_ - 1), head_k = head_ / call_.group;
    k_ = row_of(call_.k, sequence, head_k, lane_ / lanes * 4);
    q_ = row_of(call_.q, sequence, head_k, lane_ / lanes * 4);
    v_ = row_of(call_.v, sequence, head_, first_value_ + column);
    gate_ = row_of(call_.gate, sequence, head_, 0);
    beta_ = row_of(call_.beta, sequence, head_, 0);
    o_ = row_of(call_.o, sequence, head_, first_value_ + column);
    if (slots.skipped) {
      for (int t = 0; t < length_; t++) store_o(0);
    } else {
      tokens(slots.final);
    }
  }

 private:
  static constexpr int lanes = C.columns / 4;  // side by side over value columns
  using State = RecurrentState<C.dim_k, lanes>;
  static constexpr int groups = State::groups;
  using Token = RecurrentToken<groups>;

  __device__ __forceinline__ void tokens(int64_t final_slot) {
    int64_t checkpoint = call_.checkpoints.data != nullptr ? first_checkpoint(call_, n_, lane_) : 0;
    int done = 0;
    do {  // once for an empty sequence too: its final state is its initial one
      if (done < length_) {
        Token token;
        load(token);
        step(token);
        done++;
      }
      store_states(done, final_slot, checkpoint);
    } while (done < length_);
  }

  // The first token's element of a head.
  static __device__ __forceinline__ char* row_of(const GatedDeltaRows& rows, const Sequence& sequence, int head,
                                                 int element) {
    char* data = static_cast<char*>(const_cast<void*>(rows.data));
    return data + (sequence.offset(rows, 0, head) + element) * (rows.is_fp32 ? 4 : 2);
  }
  static __device__ __forceinline__ void advance(char*& row, const GatedDeltaRows& rows) {
    row += rows.token_stride * (rows.is_fp32 ? 4 : 2);
  }

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
    return params_.value_major ? lane_ % lanes + lanes * i : lane_ % lanes * 4 + i;
  }

  // Loads the rows at hand and goes on to the next token's.
  __device__ __forceinline__ void load(Token& token) {
    const int key = lane_ / lanes * 4;
#pragma unroll
    for (int i = 0; i < groups; i++) {
      const bool inside = key + i * State::group_keys < call_.dim_k;
      token.k[i] = inside ? *reinterpret_cast<const uint2*>(k_ + i * State::group_keys * 2) : make_uint2(0, 0);
      token.q[i] = inside ? *reinterpret_cast<const uint2*>(q_ + i * State::group_keys * 2) : make_uint2(0, 0);
    }
    token.v = to_float<C.element>(*reinterpret_cast<const uint16_t*>(v_));
    token.gate = gate<C.element>(call_, load_number<C.element>(gate_, call_.gate.is_fp32, 0), head_);
    token.beta = beta(call_, load_number<C.element>(beta_, call_.beta.is_fp32, 0));
    advance(k_, call_.k);
    advance(q_, call_.q);
    advance(v_, call_.v);
    advance(gate_, call_.gate);
    advance(beta_, call_.beta);
  }

  static __device__ __forceinline__ void unpack(float (&x)[4], const uint2& four) {
    x[0] = to_float<C.element>(static_cast<uint16_t>(four.x)), x[1] = to_float<C.element>(four.x >> 16);
    x[2] = to_float<C.element>(static_cast<uint16_t>(four.y)), x[3] = to_float<C.element>(four.y >> 16);
  }

  static __device__ __forceinline__ float sum_over_keys(float x) {
#pragma unroll
    for (int mask = lanes; mask < 32; mask *= 2) x += ptx::shfl_xor(x, mask);
    return x;
  }

  // 1 / sqrt(|x|^2 + 1e-6) of a row's keys.
  static __device__ __forceinline__ float norm(const uint2 (&row)[groups]) {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float x[4];
      unpack(x, row[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) sum = fmaf(x[j], x[j], sum);
    }
    return rsqrtf(sum_over_keys(sum) + 1e-6f);
  }

  // Moves the state on by a token and writes its o.
  __device__ __forceinline__ void step(const Token& token) {
    float sk[4] = {}, sq[4] = {}, kq = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float k[4], q[4];
      unpack(k, token.k[g]);
      unpack(q, token.q[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        kq = fmaf(k[j], q[j], kq);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          sk[i] = fmaf(state_.x[g][j][i], k[j], sk[i]);
          sq[i] = fmaf(state_.x[g][j][i], q[j], sq[i]);
        }
      }
    }
    float key_norm = 1, query_norm = 1;
    if (call_.l2norm) {
      key_norm = norm(token.k);
      query_norm = norm(token.q);
    }
    kq = sum_over_keys(kq) * key_norm;
    const float decay = expf(token.gate);
    float u[4], o = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float v = __int_as_float(ptx::shfl_idx(__float_as_int(token.v), lane_ % lanes + lanes * i));
      u[i] = token.beta * (v - decay * key_norm * sum_over_keys(sk[i]));
      const float oi = fmaf(u[i], kq, decay * sum_over_keys(sq[i]));
      if (lane_ / lanes == i) o = oi;
      u[i] *= key_norm;
    }
    store_o(call_.scale * query_norm * o);
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

  // The i-th lanes side by side have value(i)'s; goes on to the next token.
  __device__ __forceinline__ void store_o(float o) {
    if (lane_ < 4 * lanes && value(lane_ / lanes) < values_) {
      if (call_.o.is_fp32) {
        ptx::store_global_32(o_, o);
      } else {
        ptx::store_global_16(o_, ptx::pack<C.element>(o, 0));
      }
    }
    advance(o_, call_.o);
  }

  // What is wanted of the state after `done` tokens.
  __device__ __forceinline__ void store_states(int done, int64_t final_slot, int64_t& checkpoint) const {
    StateWindow to[3] = {};
    if (done == length_) to[0] = window(call_.final, final_slot);
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
  const int n_, head_, first_value_, values_, lane_;
  int length_;
  char *k_, *q_, *v_, *gate_, *beta_, *o_;  // of the token to load; o of the token to store
  State state_;
};

template <GatedDeltaRecurrentConfig C>
__device__ __forceinline__ void recurrent(const GatedDeltaRecurrentParams& params) {
  static_assert(C.valid());
  const int heads_v = params.call.heads_k * params.call.group;
  const int value_block = blockIdx.x % params.call.value_blocks, unit = blockIdx.x / params.call.value_blocks;
  const int n = unit / heads_v, head = unit - n * heads_v;
  const int first_value = value_block * C.block_v() + ptx::shfl_idx(threadIdx.x / 32, 0) * C.columns;
  if (first_value >= params.call.dim_v) return;
  Recurrent<C>(params, n, head, first_value).run();
}

}  // namespace flashdelta::gated_delta
