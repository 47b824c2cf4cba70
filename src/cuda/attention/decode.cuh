// Softmax attention of few query rows against many keys: decode, short prompts. As forward.cuh, but what counts is
// bytes of K and V under way. With at most 16 rows every warp is a group of its own that takes tiles of keys in turn
// with the others, copies them itself and meets no barrier before the end, when one warp puts together what all found,
// in their order. With more rows the warps of the block share each tile, 16 rows a warp.
#pragma once

#include "cuda/attention/decode_config.hpp"
#include "cuda/attention/forward_output.cuh"
#include "cuda/attention/forward_work.cuh"
#include "cuda/attention/hand_over.cuh"
#include "cuda/attention/mask.cuh"
#include "cuda/attention/queries.cuh"
#include "cuda/attention/ring.cuh"
#include "cuda/attention/softcap.cuh"
#include "cuda/attention/softmax.cuh"

namespace flashdelta::attention {

template <DecodeConfig C>
class Decode {
 public:
  __device__ __forceinline__ Decode(uint32_t shared, const AttentionForwardParams& params, const ForwardWork& work)
      : params_(params),
        work_(work),
        shared_(shared),
        lane_(threadIdx.x & 31),
        warp_(ptx::shfl_idx(threadIdx.x / 32, 0)),
        group_(warp_ / C.row_warps),
        block_row_(work.tile * C.block_q()),
        warp_row_(block_row_ + warp_ % C.row_warps * 16),
        rounds_(share(KeyTiles(work, block_row_, C.block_q(), C.round_kv()), blockIdx.z, params.splits)),
        warp_tiles_(work, warp_row_, 16, C.block_kv),
        k_reader_(ring_address(), 0, lane_),
        v_reader_(ring_address(), 0, lane_),
        softmax_(params.softmax_scale) {}

  __device__ __forceinline__ void run() {
    tile::zero(o_);
    if (rounds_.begin < rounds_.end) {
      load_queries();
      walk_keys();
    }
    softmax_.finish();
    if constexpr (C.key_warps > 1) gather();
    if (group_ == 0) {
      store_output<C.element>(o_, softmax_, OutputPlace(params_, work_, 0), params_, work_, warp_row_, 0, lane_);
    }
  }

 private:
  using Q = tile::SharedTile<C.block_q(), C.head_dim>;
  static constexpr int k_steps = C.head_dim / 16, key_steps = C.block_kv / 16, v_steps = C.head_dim_v / 16;

  __device__ __forceinline__ uint32_t ring_address() const { return shared_ + group_ * C.slots * C.slot_bytes(); }

  __device__ __forceinline__ void load_queries() {
    copy_queries<Q, C.threads()>(shared_, params_, work_, block_row_, threadIdx.x);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    if (params_.scale_log2 <= 0) apply_sign<Q, C.threads()>(shared_, params_.scale_log2, threadIdx.x);
    ptx::barrier_sync_block();  // every thread's rows of Q are there
    const tile::Reader<Q, tile::Order::rows_first> reader(shared_, warp_row_ - block_row_, lane_);
#pragma unroll
    for (int k = 0; k < k_steps; k++) q_[k] = reader.load(0, k);
    ptx::barrier_sync_block();  // Q is read: the ring takes its place
  }

  __device__ __forceinline__ void walk_keys() {
    Ring<C> ring(params_, work_, ring_address(), tile_of(rounds_.begin), tile_of(rounds_.end),
                 threadIdx.x - group_ * C.row_warps * 32);
    ring.start();
    for (int round = rounds_.begin; round < rounds_.end; round++) {
      const int tile = tile_of(round);
      const bool visible = warp_tiles_.contains(tile);
      const uint32_t k_slot = ring.template next<true>();
      if (visible) scores(k_slot);
      const uint32_t v_slot = ring.template next<false>();
      if (visible) {
        hide_and_fit(tile);
        values(v_slot);
      }
    }
    ptx::cp_async_wait<0>();
  }

  __device__ __forceinline__ int tile_of(int round) const { return round * C.key_warps + group_; }

  // s = q k^T, not yet scaled.
  __device__ __forceinline__ void scores(uint32_t slot) {
    tile::zero(s_);
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
#pragma unroll
      for (int n = 0; n < key_steps; n++) {
        tile::multiply_add<C.element>(s_, 0, n, q_[k], k_reader_.load(n, k, slot));
      }
    }
  }

  __device__ __forceinline__ void hide_and_fit(int tile) {
    if (params_.softcap_log2 > 0) cap(s_, params_.softcap_in, params_.softcap_log2);
    if (!warp_tiles_.full(tile)) mask(s_, work_, warp_row_, tile * C.block_kv, lane_);
    softmax_.raise_maximum(s_, o_);
  }

  __device__ __forceinline__ void values(uint32_t slot) {
#pragma unroll
    for (int k = 0; k < key_steps; k++) {
      softmax_.weigh(s_, k);
      const tile::Operand weights = tile::to_operand<C.element>(s_, 0, k);
#pragma unroll
      for (int n = 0; n < v_steps; n++) {
        tile::multiply_add<C.element>(o_, 0, n, weights, v_reader_.load_transposed(k, n, slot));
      }
    }
  }

  // What the other groups found joins the first one's, in their order.
  __device__ __forceinline__ void gather() {
    constexpr int bytes = hand_over_bytes(C.head_dim_v);
    ptx::barrier_sync_block();  // every warp has read its last tile: the ring's place is free
    if (group_ > 0) hand_over(o_, softmax_, shared_ + (group_ - 1) * bytes, lane_);
    ptx::barrier_sync_block();
    if (group_ > 0) return;
    for (int group = 1; group < C.key_warps; group++) take_over(o_, softmax_, shared_ + (group - 1) * bytes, lane_);
  }

  const AttentionForwardParams& params_;
  const ForwardWork& work_;
  const uint32_t shared_;
  const int lane_, warp_, group_;
  const int block_row_, warp_row_;
  const KeyTiles rounds_, warp_tiles_;
  const tile::Reader<typename Ring<C>::K, tile::Order::cols_first> k_reader_;
  const tile::Reader<typename Ring<C>::V, tile::Order::rows_first> v_reader_;
  OnlineSoftmax<1> softmax_;
  tile::Operand q_[k_steps];
  tile::Accumulator<1, C.block_kv / 8> s_;
  tile::Accumulator<1, C.head_dim_v / 8> o_;
};

template <DecodeConfig C>
__device__ __forceinline__ void decode(const AttentionForwardParams& params) {
  static_assert(C.valid());
  extern __shared__ __align__(128) char shared[];
  const ForwardWork work(params, blockIdx.x);
  if (work.tile * C.block_q() >= work.rows) return;  // a shorter sequence than the grid is made for
  Decode<C>(ptx::shared_address(shared), params, work).run();
}

}  // namespace flashdelta::attention
