// Copies from global memory to shared tiles with cp.async, 16 bytes a thread and step, tails filled with zeros.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::tile {

// Which chunks of a tile a thread copies. As many neighbouring threads share a row as the largest power of two that
// divides its chunks (so that a quarter warp covers all banks whatever the width); wider rows take several columns.
template <class Tile, int Threads>
struct CopyMap {
  static constexpr int threads_per_row = 1 << trailing_zeros(Tile::chunks, Tile::neighbour_bits);
  static constexpr int column_steps = Tile::chunks / threads_per_row;
  static constexpr int rows_per_step = Threads / threads_per_row;
  static constexpr int row_steps = (Tile::rows + rows_per_step - 1) / rows_per_step;
  static constexpr bool ragged = Tile::rows % rows_per_step != 0;

  static_assert((rows_per_step & (rows_per_step - 1)) == 0, "the threads are a power of two");

  int row, chunk;  // of step 0

  __device__ __forceinline__ explicit CopyMap(int thread)
      : row(thread / threads_per_row), chunk(thread % threads_per_row) {}

  __device__ __forceinline__ bool has_row(int row_step) const {
    return !ragged || row + row_step * rows_per_step < Tile::rows;
  }

  // Bytes from the tile's start. Steps are powers of two beyond `row`, so their bits of the swizzle are XORed onto its
  // own, and all of a thread's chunks lie at constants from the first.
  __device__ __forceinline__ uint32_t offset(int row_step, int column_step) const {
    return step(Tile::offset(row, chunk), row_step, column_step);
  }

  // The same from the address of the thread's first chunk, in a tile that is aligned to 128 bytes.
  __device__ static __forceinline__ uint32_t step(uint32_t first, int row_step, int column_step) {
    const int rows = row_step * rows_per_step;
    const uint32_t swizzle = ((rows >> (3 - Tile::swizzle_bits)) & Tile::swizzle_mask) << 4;
    return (first ^ swizzle) + rows * Tile::pitch + Tile::beyond_swizzle(column_step * threads_per_row);
  }
};

// Copies a matrix tile after tile by Threads threads, whose numbers start at a multiple of that; rows `stride` bytes
// apart, 64-bit throughout. What a thread keeps between tiles is its address in the matrix alone; for a tile that is
// not whole it works out the rest anew.
template <class Tile, int Threads>
class TileCopy {
 public:
  // features: of a row; the tile's columns beyond them become zero.
  __device__ __forceinline__ TileCopy(const char* matrix, int64_t stride, int features, int first_row, int thread)
      : stride_(stride), features_(features) {
    const CopyMap<Tile, Threads> map(thread);
    from_ = matrix + (int64_t{first_row} + map.row) * stride + map.chunk * 16;
  }

  // The next tile, its first chunk of this thread going to `to`: all of it, as most are, or with predicates. Rows from
  // rows_left on become zero.
  __device__ __forceinline__ void issue_whole(uint32_t to) { issue<true>(to, Tile::rows); }
  __device__ __forceinline__ void issue_part(uint32_t to, int rows_left) { issue<false>(to, rows_left); }
  __device__ __forceinline__ void skip() { from_ += Tile::rows * stride_; }  // another has copied this one

 private:
  template <bool Whole>
  __device__ __forceinline__ void issue(uint32_t to, int rows_left) {
    using Map = CopyMap<Tile, Threads>;
    const Map map(Whole && !Map::ragged ? 0 : ptx::thread_index() % Threads);
#pragma unroll
    for (int c = 0; c < Map::column_steps; c++) {
      const bool inside = (map.chunk + c * Map::threads_per_row) * 8 < features_;
#pragma unroll
      for (int r = 0; r < Map::row_steps; r++) {
        if (!map.has_row(r)) continue;
        const char* from = from_ + r * Map::rows_per_step * stride_ + c * Map::threads_per_row * 16;
        if constexpr (Whole) {
          ptx::cp_async_16(Map::step(to, r, c), from);
        } else {
          ptx::cp_async_16_zero_filled(Map::step(to, r, c), from,
                                       inside && map.row + r * Map::rows_per_step < rows_left ? 16 : 0);
        }
      }
    }
    skip();
  }

  const char* from_;
  int64_t stride_;
  int features_;
};

// Where the pages of a matrix's rows lie. Entries come from the device unchecked and are held to the pages there are.
struct PageTable {
  const int32_t* entries;  // of rows 0, page_size, ...; null: the matrix is whole
  int page_size, pages;
  int64_t page_stride;  // bytes
};

// As TileCopy, of a matrix whose rows may lie in pages of any size. Entries past the last row are not read.
template <class Tile, int Threads>
class PagedCopy {
 public:
  __device__ __forceinline__ PagedCopy(const char* matrix, int64_t stride, int features, const PageTable& table)
      : matrix_(matrix), stride_(stride), features_(features), table_(table) {}

  // The tile from first_row on, from where rows_left are there.
  __device__ __forceinline__ void issue(uint32_t to, int first_row, int rows_left) const {
    using Map = CopyMap<Tile, Threads>;
    const Map map(ptx::thread_index());
#pragma unroll
    for (int r = 0; r < Map::row_steps; r++) {
      if (!map.has_row(r)) continue;
      const int row = map.row + r * Map::rows_per_step;
      const char* from = row < rows_left ? row_start(first_row + row) : matrix_;
#pragma unroll
      for (int c = 0; c < Map::column_steps; c++) {
        const int chunk = map.chunk + c * Map::threads_per_row;
        ptx::cp_async_16_zero_filled(Map::step(to, r, c), from + chunk * 16,
                                     row < rows_left && chunk * 8 < features_ ? 16 : 0);
      }
    }
  }

 private:
  __device__ __forceinline__ const char* row_start(int row) const {
    if (table_.entries == nullptr) return matrix_ + row * stride_;
    const int entry = row / table_.page_size;
    const int page = min(max(table_.entries[entry], 0), table_.pages - 1);
    return matrix_ + page * table_.page_stride + (row - entry * table_.page_size) * stride_;
  }

  const char* matrix_;
  int64_t stride_;
  int features_;
  PageTable table_;
};

}  // namespace flashdelta::tile
