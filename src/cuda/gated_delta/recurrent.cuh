// The gated delta rule token by token, for few tokens a sequence:
//
//   u = beta (v - e^g S^T k);  o = scale (e^g S^T q + (k . q) u);  S = e^g S + k u^T
//
// A block owns value columns of a sequence and value head. Its warps read them once, keep them in fp32 registers and
// write them once, or after each token that wants its state: a token of decoding costs the state's bytes and little
// else. What warps and lanes have of them (recurrent_state.cuh) follows the layout: where values are contiguous, warps
// share a column's keys, and their sums meet in shared memory; where keys are, lanes do, and sums meet by shuffles;
// both in a fixed order. In place, a warp has read all that it overwrites before it writes.
#pragma once

#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/recurrent_state.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/store_shared.cuh"

namespace flashdelta::gated_delta {

// A lane's part of what a token brings.
template <int Groups>
struct RecurrentToken {
  uint2 k[Groups], q[Groups];  // four keys each
  uint2 v;                     // four values where these are contiguous, else one, see values_of()
  float gate, beta;
};

// What warps tell one another of a token, where they share keys. A token's is read while the next one's is written.
template <GatedDeltaRecurrentConfig C>
struct RecurrentStorage {
  struct Token {
    float4 key[C.warps][C.block_v / 4], query[C.warps][C.block_v / 4];  // S^T k, S^T q
    float product[C.warps], key_length[C.warps], query_length[C.warps], unused[C.warps];
  } token[2];
};

template <GatedDeltaRecurrentConfig C, bool ValueMajor>
class Recurrent {
 public:
  using State = RecurrentState<C, ValueMajor>;

  // first_value: the block's.
  __device__ __forceinline__ Recurrent(const RecurrentStorage<C>& storage, const GatedDeltaRecurrentParams& params,
                                       int n, int head, int first_value)
      : address_(ptx::shared_address(&storage)),
        params_(params),
        call_(params.call),
        n_(n),
        head_(head),
        warp_(ptx::shfl_idx(threadIdx.x / 32, 0)),
        lane_(threadIdx.x & 31),
        first_key_(ValueMajor ? 0 : warp_ * State::keys),
        first_value_(first_value + (ValueMajor ? warp_ * State::columns : 0)),
        keys_(params.call.dim_k - first_key_),
        values_(params.call.dim_v - first_value_) {}

  __device__ __forceinline__ void run() {
    if (ValueMajor && values_ <= 0) return;
    const Slots slots = recurrent_slots();
    // First of all what takes longest to come; the lengths are not needed for it.
    load_state(state_, params_, window(call_.initial, slots.skipped ? -1 : slots.initial), keys_, values_, lane_);
    const Sequence sequence = sequence_at(call_, n_);
    length_ = sequence.length;
    const int column = ValueMajor ? min(value(lane_ / lanes % 4), values_ - 1) : min(value(0), values_ - 4);
    const int key = first_key_ + lane_ / lanes * 4, head_k = head_ / call_.group;
    k_ = row_of(call_.k, sequence, head_k, key);
    q_ = row_of(call_.q, sequence, head_k, key);
    v_ = row_of(call_.v, sequence, head_, first_value_ + column);
    gate_ = row_of(call_.gate, sequence, head_, 0);
    beta_ = row_of(call_.beta, sequence, head_, 0);
    o_ = row_of(call_.o, sequence, head_, first_value_ + column);
    if (slots.skipped) {
      for (int t = 0; t < length_ && (ValueMajor || warp_ == 0); t++) store_o({});
    } else {
      tokens();
    }
  }

 private:
  static constexpr int lanes = State::lanes, groups = State::groups;
  static constexpr float least_gathered = 0x1p-40f;
  using Token = RecurrentToken<groups>;

  __device__ __forceinline__ void tokens() {
    int checkpoint = call_.checkpoints.data != nullptr ? first_checkpoint(call_, n_, lane_) : 0;
    int done = 0;
    do {  // once for an empty sequence too: its final state is its initial one
      if (done < length_) {
        Token token;
        load(token);
        step(token, done);
        done++;
      }
      store_states(done, checkpoint);
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
    return state_window(params_, states, slot, head_, first_key_, first_value_);
  }

  __device__ __forceinline__ int value(int i) const {
    return ValueMajor ? lane_ % lanes + lanes * i : lane_ % lanes * 4 + i;
  }

  // Loads the rows at hand and goes on to the next token's.
  __device__ __forceinline__ void load(Token& token) {
    const int key = lane_ / lanes * 4;
#pragma unroll
    for (int i = 0; i < groups; i++) {
      const bool inside = key + i * State::group_keys < keys_;
      token.k[i] = inside ? *reinterpret_cast<const uint2*>(k_ + i * State::group_keys * 2) : make_uint2(0, 0);
      token.q[i] = inside ? *reinterpret_cast<const uint2*>(q_ + i * State::group_keys * 2) : make_uint2(0, 0);
    }
    token.v = ValueMajor ? make_uint2(*reinterpret_cast<const uint16_t*>(v_), 0) : *reinterpret_cast<const uint2*>(v_);
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

  // A token's v, of the lane's values.
  __device__ __forceinline__ void values_of(float (&v)[4], const Token& token) const {
    if constexpr (ValueMajor) {
      const float own = to_float<C.element>(static_cast<uint16_t>(token.v.x));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        v[i] = __int_as_float(ptx::shfl_idx(__float_as_int(own), lane_ % lanes + lanes * i));
      }
    } else {
      unpack(v, token.v);
    }
  }

  // Over keys: of the lane's, then of all.
  struct Sums {
    float key[4], query[4];                   // S^T k, S^T q
    float product, key_length, query_length;  // k . q, |k|^2, |q|^2
  };

  __device__ __forceinline__ Sums own_sums(const Token& token) const {
    Sums s{};
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float k[4], q[4];
      unpack(k, token.k[g]);
      unpack(q, token.q[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        s.product = fmaf(k[j], q[j], s.product);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          s.key[i] = fmaf(state_.x[g][j][i], k[j], s.key[i]);
          s.query[i] = fmaf(state_.x[g][j][i], q[j], s.query[i]);
        }
      }
    }
    if (call_.l2norm) {
      s.key_length = length(token.k);
      s.query_length = length(token.q);
    }
    return s;
  }

  static __device__ __forceinline__ float length(const uint2 (&row)[groups]) {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float x[4];
      unpack(x, row[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) sum = fmaf(x[j], x[j], sum);
    }
    return sum;
  }

  static __device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
    for (int mask = lanes; mask < 32; mask *= 2) x += ptx::shfl_xor(x, mask);
    return x;
  }

  __device__ __forceinline__ void add_lanes(Sums& s) const {
#pragma unroll
    for (int i = 0; i < 4; i++) s.key[i] = sum_over_lanes(s.key[i]), s.query[i] = sum_over_lanes(s.query[i]);
    s.product = sum_over_lanes(s.product);
    if (call_.l2norm) {
      s.key_length = sum_over_lanes(s.key_length);
      s.query_length = sum_over_lanes(s.query_length);
    }
  }

  // Where warps share keys: S^T k and the products of all, and what there is of S^T q to add_queries().
  __device__ __forceinline__ void add_warps(Sums& s, int token) const {
    const uint32_t column = shared_column(token), products = shared_token(token) + offsetof(Shared, product);
    constexpr uint32_t row = sizeof(Shared::key[0]), lengths = sizeof(Shared::product);
    if (lane_ < lanes) {
      store_four(column + warp_ * row, s.key);
      store_four(column + offsetof(Shared, query) + warp_ * row, s.query);
    }
    if (lane_ == 0) {
      ptx::store_shared_32(products + warp_ * 4, s.product);
      if (call_.l2norm) {
        ptx::store_shared_32(products + lengths + warp_ * 4, s.key_length);
        ptx::store_shared_32(products + 2 * lengths + warp_ * 4, s.query_length);
      }
    }
    ptx::barrier_sync_block();  // all are there; and all have read those of the token before, where the next ones go
    add_rows(s.key, column);
    s.product = add_products(products);
    if (call_.l2norm) {
      s.key_length = add_products(products + lengths);
      s.query_length = add_products(products + 2 * lengths);
    }
  }
  __device__ __forceinline__ void add_queries(Sums& s, int token) const {
    add_rows(s.query, shared_column(token) + offsetof(Shared, query));
  }

  using Shared = typename RecurrentStorage<C>::Token;
  __device__ __forceinline__ uint32_t shared_token(int token) const { return address_ + token % 2u * sizeof(Shared); }
  __device__ __forceinline__ uint32_t shared_column(int token) const {
    return shared_token(token) + lane_ % lanes * 16;
  }

  static __device__ __forceinline__ void store_four(uint32_t to, const float (&x)[4]) {
    ptx::store_shared_128(to,
                          {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])});
  }

  // Of all warps.
  static __device__ __forceinline__ void add_rows(float (&sum)[4], uint32_t from) {
#pragma unroll
    for (int w = 0; w < C.warps; w++) {
      uint32_t words[4];
      ptx::load_shared_128(words, from + w * (C.block_v * 4));
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i] = __uint_as_float(words[i]) + (w == 0 ? 0.0f : sum[i]);
    }
  }
  static __device__ __forceinline__ float add_products(uint32_t from) {
    uint32_t words[4];
    ptx::load_shared_128(words, from);
    return (__uint_as_float(words[0]) + __uint_as_float(words[1])) +
           (__uint_as_float(words[2]) + __uint_as_float(words[3]));
  }

  // The state is gathered_ times what the registers hold: tokens leave it undecayed, and their u makes up for it, until
  // too little is left of it or it is wanted.
  __device__ __forceinline__ void settle(float gathered) {
#pragma unroll
    for (int i = 0; i < groups * 16; i++) state_.x[i / 16][i / 4 % 4][i % 4] *= gathered;
    gathered_ = 1;
  }

  // Moves the state on by a token and writes its o.
  __device__ __forceinline__ void step(const Token& token, int number) {
    Sums s = own_sums(token);
    add_lanes(s);
    if constexpr (!ValueMajor) add_warps(s, number);
    const auto norm = [&](float length) { return call_.l2norm ? rsqrtf(length + 1e-6f) : 1.0f; };
    const float key_norm = norm(s.key_length), gathered = gathered_ * expf(token.gate);
    float v[4], u[4];
    values_of(v, token);
#pragma unroll
    for (int i = 0; i < 4; i++) u[i] = token.beta * (v[i] - gathered * key_norm * s.key[i]);
    if (ValueMajor || warp_ == 0) {
      if constexpr (!ValueMajor) add_queries(s, number);
      const float scale = call_.scale * norm(s.query_length), product = s.product * key_norm;
      float o[4];
#pragma unroll
      for (int i = 0; i < 4; i++) o[i] = scale * fmaf(u[i], product, gathered * s.query[i]);
      store_o(o);
    }
    gathered_ = gathered;
    if (gathered < least_gathered) settle(gathered);
    const float factor = key_norm * ptx::rcp(gathered_);
#pragma unroll
    for (int i = 0; i < 4; i++) u[i] *= factor;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      float k[4];
      unpack(k, token.k[g]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) state_.x[g][j][i] = fmaf(k[j], u[i], state_.x[g][j][i]);
      }
    }
  }

  // Of the lane's values; goes on to the next token's. In [V, K] lanes that differ in keys store one value each.
  __device__ __forceinline__ void store_o(const float (&o)[4]) {
    if constexpr (ValueMajor) {
      const int i = lane_ / lanes;
      const float one = i == 0 ? o[0] : i == 1 ? o[1] : i == 2 ? o[2] : o[3];
      if (i < 4 && value(i) < values_) {
        if (call_.o.is_fp32) {
          ptx::store_global_32(o_, one);
        } else {
          ptx::store_global_16(o_, ptx::pack<C.element>(one, 0));
        }
      }
    } else if (lane_ < lanes && value(0) < values_) {
      if (call_.o.is_fp32) {
        *reinterpret_cast<float4*>(o_) = make_float4(o[0], o[1], o[2], o[3]);
      } else {
        *reinterpret_cast<uint2*>(o_) = make_uint2(ptx::pack<C.element>(o[0], o[1]), ptx::pack<C.element>(o[2], o[3]));
      }
    }
    advance(o_, call_.o);
  }

  // What is wanted of the state after `done` tokens.
  __device__ __forceinline__ void store_states(int done, int& checkpoint) {
    StateWindow to[3] = {};
    // The slot is read again: no register holds it meanwhile.
    if (done == length_) to[0] = window(call_.final, recurrent_slots().final);
    if (params_.token_indices.data != nullptr && done > 0 && done <= params_.token_slots) {
      to[1] = window(call_.final, token_slot(call_.final, done - 1));
    }
    if (call_.checkpoints.data != nullptr && done > 0 && done % call_.checkpoint_every == 0) {
      to[2] = window(call_.checkpoints, checkpoint < call_.checkpoints.slots ? checkpoint : -1);
      checkpoint++;
    }
    if (to[0].data != nullptr || to[1].data != nullptr || to[2].data != nullptr) settle(gathered_);
#pragma unroll 1
    for (int i = 0; i < 3; i++) {  // one copy of the stores' code
      const StateWindow one = i == 0 ? to[0] : i == 1 ? to[1] : to[2];
      if (one.data != nullptr) store_state(state_, params_, one, keys_, values_, lane_);
    }
  }

  const uint32_t address_;  // of RecurrentStorage
  const GatedDeltaRecurrentParams& params_;
  const GatedDeltaForwardParams& call_;
  const int n_, head_, warp_, lane_, first_key_, first_value_, keys_, values_;
  int length_;
  char *k_, *q_, *v_, *gate_, *beta_, *o_;  // of the token to load; o of the token to store
  float gathered_ = 1;
  State state_;
};

template <GatedDeltaRecurrentConfig C>
__device__ __forceinline__ void recurrent(const GatedDeltaRecurrentParams& params) {
  static_assert(C.valid());
  static_assert(sizeof(RecurrentStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(128) char shared[];
  auto& storage = *reinterpret_cast<RecurrentStorage<C>*>(shared);
  const int heads_v = params.call.heads_k * params.call.group;
  const int value_block = blockIdx.x % params.call.value_blocks, unit = blockIdx.x / params.call.value_blocks;
  const int n = unit / heads_v, head = unit - n * heads_v;
  if (params.value_major) {
    Recurrent<C, true>(storage, params, n, head, value_block * C.block_v).run();
  } else {
    Recurrent<C, false>(storage, params, n, head, value_block * C.block_v).run();
  }
}

}  // namespace flashdelta::gated_delta
