// Tiles of K and V in turn through a ring of slots in shared memory: K of the first tile, V of the first, K of the
// second, ..., as many under way as there are slots but one.
#pragma once

#include "cuda/attention/forward_work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::attention {

// One of the two tensors: where its rows lie and where a thread of the group puts its chunks of a tile.
template <class Tile, int Threads>
class RingCopy {
 public:
  __device__ __forceinline__ RingCopy(const char* matrix, int64_t stride, int64_t page_stride, int features,
                                      uint32_t address, int thread)
      : map_(thread),
        from_(matrix + map_.row * stride + map_.chunk * 16),
        stride_(stride),
        page_stride_(page_stride),
        to_(address + map_.offset(0, 0)),
        features_(features) {}

  // The tile whose first row is row `row` of page `page` (0 where there are none), to a slot. Rows from rows_left on
  // and columns that the tensor lacks become zero.
  __device__ __forceinline__ void issue(int page, int row, uint32_t slot, int rows_left) const {
    const char* from = from_ + page * page_stride_ + row * stride_;
    const bool whole = rows_left >= Tile::rows && features_ == Tile::cols;
#pragma unroll
    for (int r = 0; r < Map::row_steps; r++) {
      if (!map_.has_row(r)) continue;
#pragma unroll
      for (int c = 0; c < Map::column_steps; c++) {
        const bool inside = whole || (map_.row + r * Map::rows_per_step < rows_left &&
                                      (map_.chunk + c * Map::threads_per_row) * 8 < features_);
        ptx::cp_async_16_zero_filled(Map::step(to_ + slot, r, c),
                                     from + r * Map::rows_per_step * stride_ + c * Map::threads_per_row * 16,
                                     inside ? 16 : 0);
      }
    }
  }

 private:
  using Map = tile::CopyMap<Tile, Threads>;

  const Map map_;
  const char* from_;
  const int64_t stride_, page_stride_;
  const uint32_t to_;
  const int features_;
};

template <DecodeConfig C>
class Ring {
 public:
  using K = tile::SharedTile<C.block_kv, C.head_dim>;
  using V = tile::SharedTile<C.block_kv, C.head_dim_v>;
  static constexpr int threads = C.row_warps * 32;  // of a group

  // address: of the group's first slot. Tiles first_tile, first_tile + key_warps, ... under end_tile are copied; a page
  // holds whole tiles. thread: of the group.
  __device__ __forceinline__ Ring(const AttentionForwardParams& p, const ForwardWork& work, uint32_t address,
                                  int first_tile, int end_tile, int thread)
      : k_(matrix(p.k, work.key_offset(p, p.k_batch_stride, p.k_token_stride, p.k_head_stride)), p.k_token_stride * 2,
           p.k_batch_stride * 2, p.head_dim, address, thread),
        v_(matrix(p.v, work.key_offset(p, p.v_batch_stride, p.v_token_stride, p.v_head_stride)), p.v_token_stride * 2,
           p.v_batch_stride * 2, p.head_dim_v, address, thread),
        pages_(work.pages(p)),
        page_size_(p.page_size),
        last_page_(p.rows_k - 1),
        keys_(work.keys.length),
        tile_(first_tile),
        end_tile_(end_tile) {
    find_page();
  }

  // The first copies: all slots but one.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < C.slots - 1; i++) i % 2 == 0 ? copy_keys() : copy_values();
  }

  // Waits for the next tile, K where `keys`, and starts a copy to the slot of the one before, which every warp of the
  // group has read by then. The tile's slot, in bytes from the first.
  template <bool keys>
  __device__ __forceinline__ uint32_t next() {
    ptx::cp_async_wait<C.slots - 2>();
    if constexpr (C.key_warps == 1) {
      ptx::barrier_sync_block();
    } else {
      ptx::warp_sync();
    }
    constexpr bool copies_keys = keys == (C.slots % 2 == 1);
    copies_keys ? copy_keys() : copy_values();
    const uint32_t slot = read_;
    read_ = after(read_);
    return slot;
  }

 private:
  __device__ __forceinline__ static const char* matrix(const void* tensor, int64_t elements) {
    return static_cast<const char*>(tensor) + 2 * elements;
  }
  __device__ __forceinline__ static uint32_t after(uint32_t slot) {
    return slot == (C.slots - 1) * C.slot_bytes() ? 0 : slot + C.slot_bytes();
  }

  // K's tile and, with the next call, V's. Past the last tile the groups of copies are empty.
  __device__ __forceinline__ void copy_keys() {
    page_ = next_page_;
    row_ = pages_ == nullptr ? tile_ * C.block_kv : tile_ * C.block_kv % page_size_;
    if (tile_ < end_tile_) k_.issue(page_, row_, write_, keys_ - tile_ * C.block_kv);
    step();
  }
  __device__ __forceinline__ void copy_values() {
    if (tile_ < end_tile_) v_.issue(page_, row_, write_, keys_ - tile_ * C.block_kv);
    tile_ += C.key_warps;
    find_page();
    step();
  }
  __device__ __forceinline__ void step() {
    ptx::cp_async_commit();
    write_ = after(write_);
  }

  // Read a tile ahead: nothing waits for it. Entries past the used keys are not read, the others held to the pages
  // there are.
  __device__ __forceinline__ void find_page() {
    const int key = tile_ * C.block_kv;
    if (pages_ != nullptr && tile_ < end_tile_ && key < keys_) {
      next_page_ = min(max(pages_[key / page_size_], 0), last_page_);
    }
  }

  const RingCopy<K, threads> k_;
  const RingCopy<V, threads> v_;
  const int32_t* const pages_;
  const int page_size_, last_page_, keys_;
  int tile_;
  const int end_tile_;
  int page_ = 0, next_page_ = 0, row_ = 0;
  uint32_t read_ = 0, write_ = 0;
};

}  // namespace flashdelta::attention
