// Softmax attention forward, FlashAttention-2's schedule (Dao, arXiv 2307.08691) for mma.sync:
//
//   s = scale q k^T, -inf where not visible;  o = softmax(s) v;  lse = ln sum exp(s)
//
// A block owns block_q query rows of one key head, a warp block_q / warps of them: its scores, its running maximum and
// sum and its rows of o never leave its registers. Warps share the tiles of Q, K and V alone.
#pragma once

#include <type_traits>

#include "cuda/attention/forward_barriers.cuh"
#include "cuda/attention/forward_output.cuh"
#include "cuda/attention/forward_storage.cuh"
#include "cuda/attention/forward_work.cuh"
#include "cuda/attention/mask.cuh"
#include "cuda/attention/queries.cuh"
#include "cuda/attention/softcap.cuh"
#include "cuda/attention/softmax.cuh"

namespace flashdelta::attention {

template <ForwardConfig C>
class Forward {
 public:
  __device__ __forceinline__ Forward(ForwardStorage<C>& storage, const AttentionForwardParams& params,
                                     const ForwardWork& work, const TilePart& mine)
      : params_(params),
        work_(work),
        thread_(threadIdx.x),
        lane_(threadIdx.x & 31),
        block_row_(work.tile * C.block_q),
        warp_row_(block_row_ + ptx::shfl_idx(threadIdx.x / 32, 0) * C.warp_rows()),
        block_tiles_(part_of(KeyTiles(work, block_row_, C.block_q, C.block_kv), params, mine)),
        warp_tiles_(work, warp_row_, C.warp_rows(), C.block_kv),
        q_address_(storage.q.address()),
        q_reader_(q_address_, warp_row_ - block_row_, lane_),
        k_reader_(storage.k[0].address(), 0, lane_),
        v_reader_(storage.v[0].address(), 0, lane_),
        k_to_(storage.k[0].address() + tile::CopyMap<K, C.threads()>(thread_).offset(0, 0)),
        v_to_(storage.v[0].address() + tile::CopyMap<V, C.threads()>(thread_).offset(0, 0)),
        k_copy_(key_copy<K>(params.k, params.k_batch_stride, params.k_token_stride, params.k_head_stride, 0,
                            params.head_dim)),
        v_copy_(key_copy<V>(params.v, params.v_batch_stride, params.v_token_stride, params.v_head_stride, first_value(),
                            params.head_dim_v)),
        softmax_(params.softmax_scale) {}

  __device__ __forceinline__ void run() {
    tile::zero(o_);
    if (block_tiles_.begin < block_tiles_.end) {
      load_queries();
      if constexpr (C.stages == 1) {
        single_buffered();
      } else {
        double_buffered();
      }
    }
    softmax_.finish();
    store();
  }

 private:
  using Q = typename ForwardTiles<C>::Q;
  using K = typename ForwardTiles<C>::K;
  using V = typename ForwardTiles<C>::V;
  using Barriers = ForwardBarriers<C>;
  template <class Tile>
  using KeyCopy = std::conditional_t<C.general, tile::PagedCopy<Tile, C.threads()>, tile::TileCopy<Tile, C.threads()>>;
  static constexpr int m_tiles = C.warp_rows() / 16, k_steps = C.head_dim / 16;
  static constexpr int key_steps = C.block_kv / 16, v_steps = C.block_v() / 16;
  static constexpr int resident_steps = C.q_in_registers ? k_steps : 1;
  // The step of the scores after which copies start: late enough that the other warps have left their place, early
  // enough that they come in time.
  static constexpr int copy_step = C.general ? 0 : C.stages == 1 ? k_steps * 3 / 8 : k_steps / 2;

  __device__ __forceinline__ static KeyTiles part_of(const KeyTiles& tiles, const AttentionForwardParams& params,
                                                     const TilePart& mine) {
    if (C.general && params.splits > 1) return share(tiles, blockIdx.z, params.splits);
    return share(tiles, mine.part, mine.parts);
  }

  // Queries and the first keys arrive together. Of Q the first step's fragments, or all, go to registers.
  __device__ __forceinline__ void load_queries() {
    copy_queries<Q, C.threads()>(q_address_, params_, work_, block_row_, thread_);
    copy<true, false>(block_tiles_.begin);
    Barriers::init(thread_);
    ptx::cp_async_wait<0>();
    if (params_.scale_log2 <= 0) apply_sign<Q, C.threads()>(q_address_, params_.scale_log2, thread_);
    ptx::barrier_sync_block();  // every thread's rows of Q and K are there
    read_resident_queries();
    if constexpr (C.q_in_registers) ptx::barrier_sync_block();  // Q is read: V may take its place
  }

  // K and V have one buffer each: V arrives during the scores, the next K during the values. No warp waits for another
  // before it needs what the other copied, or the place of what the other reads; that is asked for in the midst of a
  // product, when the answer is mostly there.
  __device__ __forceinline__ void single_buffered() {
    uint32_t parity = 0;
    for (int tile = block_tiles_.begin; tile < block_tiles_.end; tile++) {
      const bool visible = warp_tiles_.contains(tile);
      const auto copy_v = [&] {
        Barriers::wait_read(Barriers::v_read, parity ^ 1);
        copy<false, true>(tile);
        Barriers::arrive_copied(Barriers::v_here);
      };
      const auto copy_k = [&] {
        if (tile + 1 >= block_tiles_.end) return;
        Barriers::wait_read(Barriers::k_read, parity);
        copy<true, false>(tile + 1);
        Barriers::arrive_copied(Barriers::k_here);
      };
      if (visible) {
        scores(copy_v);
      } else {
        copy_v();
      }
      Barriers::arrive_read(Barriers::k_read);
      if constexpr (C.own_pace()) {
        if (visible) hide_and_fit(tile);
        Barriers::wait_here(Barriers::v_here, parity);
        if (visible) {
          values(copy_k);
        } else {
          copy_k();
        }
      } else {
        Barriers::wait_here(Barriers::v_here, parity);
        copy_k();
        if (visible) {
          hide_and_fit(tile);
          values([] {});
        }
      }
      Barriers::arrive_read(Barriers::v_read);
      if constexpr (!C.q_in_registers) read_resident_queries();
      if (!C.own_pace() || tile + 1 < block_tiles_.end) Barriers::wait_here(Barriers::k_here, parity);
      parity ^= 1;
    }
  }

  // The next K and V arrive in the other buffers during a tile, from when every warp has read those.
  __device__ __forceinline__ void double_buffered() {
    copy<false, true>(block_tiles_.begin);
    ptx::cp_async_wait<0>();
    ptx::barrier_sync_block();
    int direction = 1;  // to the other buffers
    uint32_t parity = 0;
    k_to_ += sizeof(K), v_to_ += sizeof(V);
    for (int tile = block_tiles_.begin; tile < block_tiles_.end; tile++) {
      const auto copy_next = [&] {
        Barriers::wait_read(Barriers::k_read, parity ^ 1);
        copy<true, true>(tile + 1);
        Barriers::arrive_copied(Barriers::k_here);
      };
      if (warp_tiles_.contains(tile)) {
        scores(copy_next);
        hide_and_fit(tile);
        values([] {});
      } else {
        copy_next();
      }
      Barriers::arrive_read(Barriers::k_read);
      if constexpr (!C.q_in_registers) read_resident_queries();
      k_reader_.move(direction * static_cast<int>(sizeof(K)));
      v_reader_.move(direction * static_cast<int>(sizeof(V)));
      direction = -direction;
      k_to_ += direction * static_cast<int>(sizeof(K)), v_to_ += direction * static_cast<int>(sizeof(V));
      Barriers::wait_here(Barriers::k_here, parity);
      parity ^= 1;
    }
    ptx::cp_async_wait_all();  // a thread that ends has no copy under way
  }

  // s = q k^T, not yet scaled. within runs while mma are under way: the copies it issues then cost the tensor cores
  // nothing.
  template <class Hook>
  __device__ __forceinline__ void scores(const Hook& within) {
    tile::zero(s_);
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
      tile::Operand q[m_tiles];
#pragma unroll
      for (int m = 0; m < m_tiles; m++) q[m] = k < resident_steps ? q_[m][k % resident_steps] : q_reader_.load(m, k);
#pragma unroll
      for (int n = 0; n < key_steps; n++) {
        const tile::Operand keys = k_reader_.load(n, k);
#pragma unroll
        for (int m = 0; m < m_tiles; m++) tile::multiply_add<C.element>(s_, m, n, q[m], keys);
      }
      if (k == copy_step) within();
    }
  }

  // Scores of keys that a row does not see become -inf, and the running maximum fits the rest.
  __device__ __forceinline__ void hide_and_fit(int tile) {
    if constexpr (C.general) {
      if (params_.softcap_log2 > 0) cap(s_, params_.softcap_in, params_.softcap_log2);
    }
    if (!warp_tiles_.full(tile)) mask(s_, work_, warp_row_, tile * C.block_kv, ptx::thread_index() & 31);
    softmax_.raise_maximum(s_, o_);
  }

  // o += softmax weights v, 16 keys a step: the exponentials of one step run beside the products of the one before.
  template <class Hook>
  __device__ __forceinline__ void values(const Hook& within) {
#pragma unroll
    for (int k = 0; k < key_steps; k++) {
      softmax_.weigh(s_, k);
      tile::Operand weights[m_tiles];
#pragma unroll
      for (int m = 0; m < m_tiles; m++) weights[m] = tile::to_operand<C.element>(s_, m, k);
#pragma unroll
      for (int n = 0; n < v_steps; n++) {
        const tile::Operand v = v_reader_.load_transposed(k, n);
#pragma unroll
        for (int m = 0; m < m_tiles; m++) tile::multiply_add<C.element>(o_, m, n, weights[m], v);
      }
      if (k == (key_steps - 1) / 2) within();
    }
  }

  // Which rows these are is worked out again: the main loop has no registers to keep it in.
  __device__ __forceinline__ void store() {
    const int thread = ptx::thread_index(), warp = ptx::shfl_idx(thread / 32, 0);
    const TilePart mine(params_, ptx::block_index());
    const ForwardWork work(params_, mine.tile);
    const int block_row = work.tile * C.block_q;
    const OutputPlace to = mine.parts > 1 ? OutputPlace(params_, work, mine, C.block_q, block_row, first_value())
                                          : OutputPlace(params_, work, first_value());
    store_output<C.element>(o_, softmax_, to, params_, work, block_row + warp * C.warp_rows(), first_value(),
                            thread & 31);
  }

  // Without Q in registers the first step's fragments are read ahead of the barrier that opens the next tile.
  __device__ __forceinline__ void read_resident_queries() {
#pragma unroll
    for (int m = 0; m < m_tiles; m++) {
#pragma unroll
      for (int k = 0; k < resident_steps; k++) q_[m][k] = q_reader_.load(m, k);
    }
  }

  // K, V or both of the next tile, which is `tile`. One past the block's last may be copied, but none past the keys.
  template <bool Keys, bool Values>
  __device__ __forceinline__ void copy(int tile) {
    const int first_key = tile * C.block_kv, keys_left = work_.keys.length - first_key;
    if constexpr (C.general) {
      if (tile < block_tiles_.end) {
        if constexpr (Keys) k_copy_.issue(k_to_, first_key, keys_left);
        if constexpr (Values) v_copy_.issue(v_to(), first_key, keys_left);
      }
    } else if (keys_left >= params_.whole_tile) {
      if constexpr (Keys) k_copy_.issue_whole(k_to_);
      if constexpr (Values) v_copy_.issue_whole(v_to());
    } else if (tile < block_tiles_.end) {
      if constexpr (Keys) k_copy_.issue_part(k_to_, keys_left);
      if constexpr (Values) v_copy_.issue_part(v_to(), keys_left);
    }
    ptx::cp_async_commit();
  }

  // Of tiles of the same shape one address does.
  __device__ __forceinline__ uint32_t v_to() const {
    if constexpr (std::is_same_v<K, V>) {
      return k_to_ + static_cast<int>(offsetof(ForwardStorage<C>, v)) -
             static_cast<int>(offsetof(ForwardStorage<C>, k));
    } else {
      return v_to_;
    }
  }

  // The first value column of the block.
  __device__ __forceinline__ static int first_value() { return C.value_parts == 1 ? 0 : blockIdx.y * C.block_v(); }

  // From a tensor's strides the copy of this sequence's and key head's rows, features first_feature to features.
  template <class Tile>
  __device__ __forceinline__ KeyCopy<Tile> key_copy(const void* tensor, int64_t batch, int64_t token, int64_t head,
                                                    int first_feature, int features) {
    const char* matrix =
        static_cast<const char*>(tensor) + 2 * (work_.key_offset(params_, batch, token, head) + first_feature);
    if constexpr (C.general) {
      const tile::PageTable table{work_.pages(params_), params_.page_size, params_.rows_k, batch * 2};
      return {matrix, token * 2, features - first_feature, table};
    } else {
      return {matrix, token * 2, features - first_feature, block_tiles_.begin * C.block_kv, thread_};
    }
  }

  const AttentionForwardParams& params_;
  const ForwardWork& work_;
  const int thread_, lane_;
  const int block_row_, warp_row_;
  const KeyTiles block_tiles_, warp_tiles_;
  const uint32_t q_address_;
  const tile::Reader<Q, tile::Order::rows_first> q_reader_;
  tile::Reader<K, tile::Order::cols_first> k_reader_;
  tile::Reader<V, tile::Order::rows_first> v_reader_;
  uint32_t k_to_, v_to_;  // where this thread's first chunk of the next tiles goes
  KeyCopy<K> k_copy_;
  KeyCopy<V> v_copy_;
  OnlineSoftmax<m_tiles> softmax_;
  tile::Operand q_[m_tiles][resident_steps];
  tile::Accumulator<m_tiles, C.block_kv / 8> s_;
  tile::Accumulator<m_tiles, C.block_v() / 8> o_;
};

template <ForwardConfig C>
__device__ __forceinline__ void forward(const AttentionForwardParams& params) {
  static_assert(C.valid());
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(128) char shared[];
  const TilePart mine(params, blockIdx.x);
  const ForwardWork work(params, mine.tile);
  if (work.tile * C.block_q >= work.rows) return;  // a shorter sequence than the grid is made for
  Forward<C>(*reinterpret_cast<ForwardStorage<C>*>(shared), params, work, mine).run();
}

}  // namespace flashdelta::attention
