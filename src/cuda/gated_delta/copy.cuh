// Rows of q, k or v to a shared tile. Nothing of a thread's own is kept between chunks: the registers hold the state.
#pragma once

#include "cuda/gated_delta/work.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::gated_delta {

// Tokens first_token and up of a sequence's `rows`, features first_column and up of `head`. Tokens from length on, and
// chunks of 8 features from `chunks` on, become zero.
template <class Tile, int Threads>
__device__ __forceinline__ void copy_rows(uint32_t tile_address, const GatedDeltaRows& rows, const Sequence& sequence,
                                          int head, int first_column, int chunks, int first_token, int thread) {
  using Map = tile::CopyMap<Tile, Threads>;
  const Map map(thread);
  const char* from = static_cast<const char*>(rows.data) +
                     2 * (sequence.offset(rows, first_token + map.row, head) + first_column) + map.chunk * 16;
  const int64_t step = 2 * Map::rows_per_step * rows.token_stride;
  const int rows_left = sequence.length - first_token - map.row;
#pragma unroll
  for (int c = 0; c < Map::column_steps; c++) {
    const bool inside = map.chunk + c * Map::threads_per_row < chunks;
#pragma unroll
    for (int r = 0; r < Map::row_steps; r++) {
      if (!map.has_row(r)) continue;
      const bool there = inside && r * Map::rows_per_step < rows_left;
      ptx::cp_async_16_zero_filled(tile_address + map.offset(r, c), from + r * step + c * Map::threads_per_row * 16,
                                   there ? 16 : 0);
    }
  }
}

}  // namespace flashdelta::gated_delta
