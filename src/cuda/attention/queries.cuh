// Query rows from global memory to the Q tile, and the sign of the scale.
#pragma once

#include "cuda/attention/forward_work.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::attention {

// Rows first_row and up of the work; rows past its last become zero. A row's token and head move on by a constant from
// step to step, so one division a thread does.
template <class Tile, int Threads>
__device__ __forceinline__ void copy_queries(uint32_t q_address, const AttentionForwardParams& p,
                                             const ForwardWork& work, int first_row, int thread) {
  using Map = tile::CopyMap<Tile, Threads>;
  const Map map(thread);
  const char* base = static_cast<const char*>(p.q) + 2 * work.query_offset(p.cu_seqlens_q != nullptr, p.q_batch_stride,
                                                                           p.q_token_stride, p.q_head_stride);
  QueryRow at = work.query_row(first_row + map.row);
  const QueryRow step = work.query_row(Map::rows_per_step);
  const int rows_left = work.rows - first_row - map.row, chunks = p.head_dim / 8;
#pragma unroll
  for (int r = 0; r < Map::row_steps; r++) {
    if (!map.has_row(r)) continue;
    const char* row = base + 2 * (at.token * p.q_token_stride + at.head * p.q_head_stride);
#pragma unroll
    for (int c = 0; c < Map::column_steps; c++) {
      const int chunk = map.chunk + c * Map::threads_per_row;
      const bool inside = r * Map::rows_per_step < rows_left && chunk < chunks;
      ptx::cp_async_16_zero_filled(q_address + map.offset(r, c), row + chunk * 16, inside ? 16 : 0);
    }
    at.token += step.token;
    at.head += step.head;
    if (at.head >= work.group) {
      at.head -= work.group;
      at.token++;
    }
  }
}

// q * sign(scale), so that the kernel meets positive scales alone (its maximum is of the bare scores, and a masked
// score of -inf must not meet a zero). Each thread changes what it copied, after its wait.
template <class Tile, int Threads>
__device__ __forceinline__ void apply_sign(uint32_t q_address, float scale, int thread) {
  using Map = tile::CopyMap<Tile, Threads>;
  const Map map(thread);
  const uint32_t keep = scale == 0 ? 0 : 0xffffffffu, flip = scale < 0 ? 0x80008000u : 0;
#pragma unroll 1
  for (int r = 0; r < Map::row_steps; r++) {
    if (!map.has_row(r)) continue;
#pragma unroll 1
    for (int c = 0; c < Map::column_steps; c++) {
      uint32_t x[4];
      ptx::load_shared_128(x, q_address + map.offset(r, c));
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = (x[i] & keep) ^ flip;
      ptx::store_shared_128(q_address + map.offset(r, c), x);
    }
  }
}

}  // namespace flashdelta::attention
