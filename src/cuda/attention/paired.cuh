// Softmax attention of up to 96 query rows whose keys come from memory. As forward.cuh, but transposed: query rows are
// columns of the products, which come in eights.
//
//   s^T = k q^T;  p^T = softmax(s)^T;  o^T += v^T p^T
//
// Each of four pairs of warps owns 24 rows. Of a tile of 32 keys a warp scores 16 for the rows of its pair, gives their
// weights to the other through shared memory, and adds up half of o's columns. So all quarters of the SM have the same
// to do, nothing is computed twice, and a tile is read from shared memory four times: with 16 rows a warp it was six,
// which took longer than the products.
#pragma once

#include "cuda/attention/forward_work.cuh"
#include "cuda/attention/paired_output.cuh"
#include "cuda/attention/paired_params.h"
#include "cuda/attention/paired_softmax.cuh"
#include "cuda/attention/queries.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::attention {

template <ForwardConfig C>
class Paired {
 public:
  __device__ __forceinline__ Paired(PairedStorage<C>& storage, const AttentionPairedParams& params,
                                    const ForwardWork& work, const TilePart& mine)
      : storage_(storage),
        params_(params.call),
        paired_params_(params),
        work_(work),
        warp_(ptx::shfl_idx(threadIdx.x / 32, 0)),
        pair_row_(work.tile * C.block_q + pair() * C.pair_rows()),
        tiles_(share(KeyTiles(work, work.tile * C.block_q, C.block_q, C.block_kv), mine.part, mine.parts)),
        pair_tiles_(work, pair_row_, C.pair_rows(), C.block_kv),
        k_reader_(storage.k[0].address(), half() * 16, threadIdx.x & 31),
        v_reader_(storage.v[0].address() + V::beyond_swizzle(half() * value_steps * 2), 0, threadIdx.x & 31),
        softmax_(params.call.softmax_scale) {}

  __device__ __forceinline__ void run() {
    tile::zero(o_);
    init();
    if (tiles_.begin < tiles_.end) {
      load_queries();
      walk_keys();
    }
    const int lane = ptx::thread_index() & 31;
    softmax_.tell_sums(exchange(), half(), lane);
    arrive(told());
    hear();
    softmax_.add_sums(exchange(), half(), lane);
    store_columns(o_, softmax_, exchange(), half(), params_, ptx::block_index(), pair() * C.pair_rows());
  }

 private:
  using Storage = PairedStorage<C>;
  using Q = typename Storage::Q;
  using K = typename Storage::K;
  using V = typename Storage::V;
  static constexpr int n_blocks = C.pair_rows() / 8, k_steps = C.head_dim / 16, value_steps = C.head_dim_v / 32;
  static constexpr int before_values = 8;  // steps of the next scores before weights are awaited and values begin

  __device__ __forceinline__ int pair() const { return warp_ % 4; }  // both warps in one quarter of the SM
  __device__ __forceinline__ int half() const { return warp_ / 4; }
  __device__ __forceinline__ PairExchange<C>& exchange() const { return storage_.exchange[pair()]; }

  __device__ __forceinline__ void init() {
    const int thread = threadIdx.x;
    if (thread < Storage::k_places) {
      ptx::mbarrier_init(ptx::shared_address(&storage_.k_here[thread]), in_boxes() ? K::panels : C.threads());
      ptx::mbarrier_init(ptx::shared_address(&storage_.k_read[thread]), C.threads());
    }
    if (thread < Storage::v_places) {
      ptx::mbarrier_init(ptx::shared_address(&storage_.v_here[thread]), in_boxes() ? V::panels : C.threads());
      ptx::mbarrier_init(ptx::shared_address(&storage_.v_read[thread]), C.threads());
    }
    if (thread < C.warps / 2) ptx::mbarrier_init(ptx::shared_address(&storage_.told[thread]), 64);
    if (thread < 2 * C.warps) storage_.exchange[thread / 4].risen[thread / 2 % 2][thread % 2] = -1;
    ptx::fence_for_tensor_copies();
    ptx::barrier_sync_block();
  }

  // Q, on its way to registers, lies where V comes; the first keys come meanwhile.
  __device__ __forceinline__ void load_queries() {
    const uint32_t address = storage_.q.address();
    copy_queries<Q, C.threads()>(address, params_, work_, work_.tile * C.block_q, threadIdx.x);
    ptx::cp_async_commit();
    if (brings_keys()) {
      copy_keys(tiles_.begin, 0);
      if (tiles_.begin + 1 < tiles_.end) copy_keys(tiles_.begin + 1, 1);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    if (params_.scale_log2 <= 0) apply_sign<Q, C.threads()>(address, params_.scale_log2, threadIdx.x);
    ptx::barrier_sync_block();  // every thread's rows of Q are there
    const int lane = threadIdx.x & 31, row = pair() * C.pair_rows();
    const tile::Reader<Q, tile::Order::cols_first> upper(address, row, lane), lower(address, row + 8, lane);
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
      const tile::Operand rows_0 = upper.load(0, k), rows_8 = lower.load(0, k);
      q_[k][0][0] = rows_0.x[0], q_[k][0][1] = rows_0.x[1];
      q_[k][1][0] = rows_0.x[2], q_[k][1][1] = rows_0.x[3];
      q_[k][2][0] = rows_8.x[2], q_[k][2][1] = rows_8.x[3];
    }
    ptx::fence_for_tensor_copies();
    ptx::barrier_sync_block();  // Q is read: V may take its place
    if (brings_values()) {
      copy_values(tiles_.begin, 0);
      if (tiles_.begin + 1 < tiles_.end) copy_values(tiles_.begin + 1, 1);
    }
  }

  // Beside the products of a tile's weights and values run those of the next tile's keys and queries.
  __device__ __forceinline__ void walk_keys() {
    wait(storage_.k_here[0], 0);
    tile::zero(s_);
#pragma unroll
    for (int k = 0; k < k_steps; k++) score(k);
    arrive(storage_.k_read[0]);
    hide(tiles_.begin);
    softmax_.raise_maximum(s_, exchange(), half(), tiles_.begin, 0);
    const int lane = ptx::thread_index() & 31;
#pragma unroll
    for (int n = 0; n < n_blocks; n++) softmax_.weigh(s_, n, exchange(), half(), 0, lane);
    arrive(told());
    if (brings_keys() && tiles_.begin + 2 < tiles_.end) {
      wait(storage_.k_read[0], 0);
      copy_keys(tiles_.begin + 2, 0);
    }
    k_reader_.move(sizeof(K));
    int v_place = 0;
    uint32_t v_parity = 0;
    for (int tile = tiles_.begin; tile + 1 < tiles_.end; tile++) {
      step<true>(tile, v_place, v_parity);
      const bool last_place = v_place == Storage::v_places - 1;
      v_reader_.move((last_place ? 1 - Storage::v_places : 1) * static_cast<int>(sizeof(V)));
      v_place = last_place ? 0 : v_place + 1;
      if (last_place) v_parity ^= 1;
    }
    step<false>(tiles_.end - 1, v_place, v_parity);
    ptx::cp_async_wait_all();  // a thread that ends has no copy under way
  }

  // Values of `tile` and, unless it is the last, scores and weights of the next. Barriers are asked some products
  // before the answer is needed, since it takes as long as those even where it is yes. The next tiles are asked for as
  // soon as their places are read: memory's time is what there is least of.
  template <bool More>
  __device__ __forceinline__ void step(int tile, int v_place, uint32_t v_parity) {
    const uint32_t round = tile - tiles_.begin, buffer = round % 2, k_place = buffer ^ 1;
    const uint32_t k_parity = (round + 1) / 2 % 2;
    const int lane = ptx::thread_index() & 31;
    const bool heard = asked(told(), told_parity_);
    if constexpr (More) {
      wait(storage_.k_here[k_place], k_parity);
      tile::zero(s_);
#pragma unroll
      for (int k = 0; k < before_values; k++) score(k);
    }
    if (!heard) wait(told(), told_parity_);
    told_parity_ ^= 1;
    const bool risen = PairedSoftmax<C>::risen(exchange(), tile, buffer);
    const uint32_t weights = ptx::shared_address(exchange().weights[buffer]) + lane * 16;
    const bool v_here = asked(storage_.v_here[v_place], v_parity);
    if (risen) {
      softmax_.agree(exchange(), half(), tile, buffer, o_);
      arrive(told());
      hear();
    }
    // What came from behind the sequence's end, of any value, must not meet a weight of 0.
    [[maybe_unused]] const int keys_left = work_.keys.length - tile * C.block_kv;
    uint32_t p01[4], p2[4];
    ptx::ldmatrix_x4_trans(p01, weights);
    ptx::ldmatrix_x4_trans(p2, weights + 512);
    if (!v_here) wait(storage_.v_here[v_place], v_parity);
    const int v_before = v_place == 0 ? Storage::v_places - 1 : v_place - 1;  // where the tile before was
    const uint32_t v_before_parity = v_place == 0 ? v_parity ^ 1 : v_parity;
    const bool v_free = More && asked(storage_.v_read[v_before], v_before_parity);
#pragma unroll
    for (int m = 0; m < value_steps; m++) {
      if constexpr (More) {
#pragma unroll
        for (int k = before_values + m * 2; k < min(before_values + m * 2 + 2, k_steps); k++) score(k);
      }
      if (More && before_values + m * 2 + 2 == k_steps) {
        arrive(storage_.k_read[k_place]);
        hide(tile + 1);
      }
      add_values<!More>(m, 0, p01, p2[0], p2[1], keys_left);
      if (More && m == 0 && brings_values() && tile + 2 < tiles_.end) {
        if (!v_free) wait(storage_.v_read[v_before], v_before_parity);
        copy_values(tile + 2, v_before);
      }
    }
    ptx::ldmatrix_x4_trans(p01, weights + 1024);
    if constexpr (More) softmax_.raise_maximum(s_, exchange(), half(), tile + 1, buffer ^ 1);
    const bool k_free = More && asked(storage_.k_read[k_place], k_parity);
#pragma unroll
    for (int m = 0; m < value_steps; m++) {
      add_values<!More>(m, 1, p01, p2[2], p2[3], keys_left);
      if constexpr (More) {
        if (m % 2 == 0 && m / 2 < n_blocks) softmax_.weigh(s_, m / 2, exchange(), half(), buffer ^ 1, lane);
        if (m == 0 && brings_keys() && tile + 3 < tiles_.end) {
          if (!k_free) wait(storage_.k_read[k_place], k_parity);
          copy_keys(tile + 3, k_place);
        }
      }
    }
    if constexpr (More) {
      arrive(storage_.v_read[v_place]);
      arrive(told());
      k_reader_.move(k_place == 0 ? static_cast<int>(sizeof(K)) : -static_cast<int>(sizeof(K)));
    }
  }

  // 16 features of the scores of the warp's keys.
  __device__ __forceinline__ void score(int k) {
    const tile::Operand keys = k_reader_.load(0, k);
#pragma unroll
    for (int n = 0; n < n_blocks; n++) ptx::mma_m16n8k16<C.element>(s_.x[0][n], keys.x, q_[k][n][0], q_[k][n][1]);
  }

  // 16 of the warp's columns of o, 16 keys. Last: of the keys that are left alone.
  template <bool Last>
  __device__ __forceinline__ void add_values(int m, int keys16, const uint32_t (&p01)[4], uint32_t p2_low,
                                             uint32_t p2_high, int keys_left) {
    tile::Operand v = v_reader_.load_transposed(keys16, m);
    if constexpr (Last) {
      const int key = keys16 * 16 + (ptx::thread_index() & 3) * 2;
#pragma unroll
      for (int i = 0; i < 4; i++) v.x[i] &= kept(keys_left - key - i / 2 * 8);
    }
    ptx::mma_m16n8k16<C.element>(o_.x[m][0], v.x, p01[0], p01[1]);
    ptx::mma_m16n8k16<C.element>(o_.x[m][1], v.x, p01[2], p01[3]);
    ptx::mma_m16n8k16<C.element>(o_.x[m][2], v.x, p2_low, p2_high);
  }

  // The bits of two numbers of which the first `count` are there.
  __device__ __forceinline__ static uint32_t kept(int count) {
    return count >= 2 ? 0xffffffffu : count == 1 ? 0xffffu : 0u;
  }

  // Scores of keys that a row does not see become -inf.
  __device__ __forceinline__ void hide(int tile) {
    if (pair_tiles_.full(tile)) return;
    const int lane = ptx::thread_index() & 31, key = tile * C.block_kv + half() * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < n_blocks; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int token = work_.query_row(pair_row_ + PairedSoftmax<C>::row(n, e, lane)).token;
        const int first = work_.visibility.first(token) - key, last = work_.visibility.last(token) - key;
#pragma unroll
        for (int octet = 0; octet < 2; octet++) {
          if (octet * 8 < first || octet * 8 >= last) s_.x[0][n][octet * 2 + e] = -INFINITY;
        }
      }
    }
  }

  // A tile comes in panels of 64 features, one by each warp of half 0 (keys) or 1 (values); what lies behind the
  // sequence's end comes with it. Where there is no engine for that, all warps bring it in pieces.
  __device__ __forceinline__ bool in_boxes() const { return ptx::has_tensor_copy && paired_params_.in_boxes; }
  __device__ __forceinline__ bool brings_keys() const { return half() == 0 || !in_boxes(); }
  __device__ __forceinline__ bool brings_values() const { return half() == 1 || !in_boxes(); }

  __device__ __forceinline__ void copy_keys(int tile, int place) {
    copy<K>(tile, storage_.k[place], storage_.k_here[place], &paired_params_.k_map, params_.k, params_.k_batch_stride,
            params_.k_token_stride, params_.k_head_stride, params_.head_dim);
  }
  __device__ __forceinline__ void copy_values(int tile, int place) {
    copy<V>(tile, storage_.v[place], storage_.v_here[place], &paired_params_.v_map, params_.v, params_.v_batch_stride,
            params_.v_token_stride, params_.v_head_stride, params_.head_dim_v);
  }
  template <class Tile>
  __device__ __forceinline__ void copy(int tile, Tile& place, const uint64_t& here, const EncodedTensorMap* map,
                                       const void* tensor, int64_t batch, int64_t token, int64_t head, int features) {
    static_assert(Tile::panels == C.warps / 2);
    const uint32_t to = ptx::shared_address(place.data), barrier = ptx::shared_address(&here);
    const int thread = ptx::thread_index();
    if (in_boxes()) {
      if ((thread & 31) != 0) return;
      ptx::mbarrier_arrive_expecting(barrier, Tile::panel_bytes);
      const bool packed = params_.cu_seqlens_k != nullptr;
      ptx::tensor_copy(to + pair() * Tile::panel_bytes, map, pair() * 64, work_.head_k,
                       (packed ? work_.keys.begin : 0) + tile * C.block_kv, packed ? 0 : work_.key_row, barrier);
    } else {
      const char* matrix = static_cast<const char*>(tensor) + 2 * work_.key_offset(params_, batch, token, head);
      tile::TileCopy<Tile, C.threads()> pieces(matrix, token * 2, features, tile * C.block_kv, thread);
      pieces.issue_part(to + tile::CopyMap<Tile, C.threads()>(thread).offset(0, 0),
                        work_.keys.length - tile * C.block_kv);
      ptx::mbarrier_arrive_after_copies(barrier);
    }
  }

  __device__ __forceinline__ static bool asked(const uint64_t& barrier, uint32_t parity) {
    return ptx::mbarrier_test(ptx::shared_address(&barrier), parity);
  }
  __device__ __forceinline__ static void wait(const uint64_t& barrier, uint32_t parity) {
    ptx::mbarrier_sleep(ptx::shared_address(&barrier), parity);
  }
  __device__ __forceinline__ static void arrive(const uint64_t& barrier) {
    ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  }

  // A phase ends when both warps of the pair have told the other what it waits for.
  __device__ __forceinline__ const uint64_t& told() const { return storage_.told[pair()]; }
  __device__ __forceinline__ void hear() {
    wait(told(), told_parity_);
    told_parity_ ^= 1;
  }

  PairedStorage<C>& storage_;
  const AttentionForwardParams& params_;
  const AttentionPairedParams& paired_params_;
  const ForwardWork& work_;
  const int warp_, pair_row_;
  const KeyTiles tiles_, pair_tiles_;
  tile::Reader<K, tile::Order::rows_first> k_reader_;
  tile::Reader<V, tile::Order::cols_first> v_reader_;
  uint32_t told_parity_ = 0;
  PairedSoftmax<C> softmax_;
  uint32_t q_[k_steps][n_blocks][2];
  tile::Accumulator<1, n_blocks> s_;            // of 16 keys
  tile::Accumulator<value_steps, n_blocks> o_;  // of half of the value columns
};

template <ForwardConfig C>
__device__ __forceinline__ void paired(const AttentionPairedParams& params) {
  static_assert(C.valid() && C.paired);
  static_assert(sizeof(PairedStorage<C>) == C.dynamic_bytes(), "what a launch asks for");
  extern __shared__ __align__(1024) char shared[];
  const TilePart mine(params.call, blockIdx.x);
  const ForwardWork work(params.call, mine.tile);
  if (work.tile * C.block_q >= work.rows) return;  // a shorter sequence than the grid is made for
  Paired<C>(*reinterpret_cast<PairedStorage<C>*>(shared), params, work, mine).run();
}

}  // namespace flashdelta::attention
