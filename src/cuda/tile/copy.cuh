// Copies from global memory to shared tiles with cp.async, 16 bytes a thread and step, tails filled with zeros.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::tile {

// Which chunks of a tile a thread copies. As many neighbouring threads share a row as the largest power of two that
// divides its chunks (so that a quarter warp covers all banks whatever the width); wider rows take several columns.
template <class Tile, int Threads>
struct CopyMap {
  static constexpr int threads_per_row = 1 << trailing_zeros(Tile::chunks, 5);
  static constexpr int column_steps = Tile::chunks / threads_per_row;
  static constexpr int rows_per_step = Threads / threads_per_row;
  static constexpr int row_steps = (Tile::rows + rows_per_step - 1) / rows_per_step;
  static constexpr bool ragged = Tile::rows % rows_per_step != 0;

  int row, chunk;  // of step 0

  __device__ __forceinline__ explicit CopyMap(int thread)
      : row(thread / threads_per_row), chunk(thread % threads_per_row) {}

  __device__ __forceinline__ bool has_row(int row_step) const {
    return !ragged || row + row_step * rows_per_step < Tile::rows;
  }

  // Bytes from the tile's start. Steps of 8 rows leave the swizzle as it is.
  __device__ __forceinline__ uint32_t offset(int row_step, int column_step) const {
    const int column_bytes = column_step * threads_per_row * 16;
    if constexpr (rows_per_step % 8 == 0) {
      return Tile::offset(row, chunk) + row_step * rows_per_step * Tile::pitch + column_bytes;
    } else {
      return Tile::offset(row + row_step * rows_per_step, chunk) + column_bytes;
    }
  }
};

// Copies tiles of a matrix whose rows lie `stride` bytes apart, 64-bit throughout.
template <class Tile, int Threads>
class TileCopy {
 public:
  // chunks: how many chunks of 8 numbers a row has; the tile's columns beyond them become zero.
  __device__ __forceinline__ TileCopy(const char* matrix, int64_t stride, int chunks, int thread)
      : map_(thread), source_(matrix + map_.row * stride + map_.chunk * 16), stride_(stride), chunks_(chunks) {}

  // Rows first_row and up. Rows from row_count on become zero. A whole tile, the usual case, needs no predicates.
  __device__ __forceinline__ void issue(uint32_t tile_address, int first_row, int row_count) const {
    if (first_row + Tile::rows <= row_count && chunks_ == Tile::chunks) {
      issue_part<true>(tile_address, first_row, row_count);
    } else {
      issue_part<false>(tile_address, first_row, row_count);
    }
  }

 private:
  using Map = CopyMap<Tile, Threads>;

  template <bool Whole>
  __device__ __forceinline__ void issue_part(uint32_t tile_address, int first_row, int row_count) const {
    const char* source = source_ + first_row * stride_;
#pragma unroll
    for (int c = 0; c < Map::column_steps; c++) {
      const bool inside = map_.chunk + c * Map::threads_per_row < chunks_;
      const int rows_left = inside ? row_count - first_row - map_.row : 0;
#pragma unroll
      for (int r = 0; r < Map::row_steps; r++) {
        if (!map_.has_row(r)) continue;
        const uint32_t to = tile_address + map_.offset(r, c);
        const char* from = source + r * Map::rows_per_step * stride_ + c * Map::threads_per_row * 16;
        if constexpr (Whole) {
          ptx::cp_async_16(to, from);
        } else {
          ptx::cp_async_16_zero_filled(to, from, r * Map::rows_per_step < rows_left ? 16 : 0);
        }
      }
    }
  }

  Map map_;
  const char* source_;
  int64_t stride_;
  int chunks_;
};

// Where the pages of a matrix's rows lie. Entries come from the device unchecked and are held to the pages there are.
struct PageTable {
  const int32_t* entries;  // of rows 0, page_size, ...; null: the matrix is whole
  int page_size, pages;
  int64_t page_stride;  // bytes
};

// As TileCopy, of a matrix whose rows may lie in pages of any size. Entries past row_count are not read.
template <class Tile, int Threads>
class PagedCopy {
 public:
  __device__ __forceinline__ PagedCopy(const char* matrix, int64_t stride, int chunks, int thread,
                                       const PageTable& table)
      : map_(thread), matrix_(matrix + map_.chunk * 16), stride_(stride), chunks_(chunks), table_(table) {}

  __device__ __forceinline__ void issue(uint32_t tile_address, int first_row, int row_count) const {
#pragma unroll
    for (int r = 0; r < Map::row_steps; r++) {
      if (!map_.has_row(r)) continue;
      const int row = first_row + map_.row + r * Map::rows_per_step;
      const bool inside = row < row_count;
      const char* from = inside ? row_start(row) : matrix_;
#pragma unroll
      for (int c = 0; c < Map::column_steps; c++) {
        const int chunk = c * Map::threads_per_row;
        ptx::cp_async_16_zero_filled(tile_address + map_.offset(r, c), from + chunk * 16,
                                     inside && map_.chunk + chunk < chunks_ ? 16 : 0);
      }
    }
  }

 private:
  using Map = CopyMap<Tile, Threads>;

  __device__ __forceinline__ const char* row_start(int row) const {
    if (table_.entries == nullptr) return matrix_ + row * stride_;
    const int entry = row / table_.page_size;
    const int page = min(max(table_.entries[entry], 0), table_.pages - 1);
    return matrix_ + page * table_.page_stride + (row - entry * table_.page_size) * stride_;
  }

  Map map_;
  const char* matrix_;
  int64_t stride_;
  int chunks_;
  PageTable table_;
};

}  // namespace flashdelta::tile
