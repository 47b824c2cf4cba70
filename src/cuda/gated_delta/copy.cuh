// Rows of q, k or v to a shared tile, and a chunk to a stage of the pipeline.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/cp_async_if.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::gated_delta {

// Where a thread's first piece of a tensor lies: row map.row from token 0 on, chunk map.chunk of the head's features.
template <class Map>
__device__ __forceinline__ const char* first_piece(const GatedDeltaRows& rows, const Sequence& sequence, int head,
                                                   int first_column, const Map& map) {
  return static_cast<const char*>(rows.data) + 2 * (sequence.offset(rows, map.row, head) + first_column) +
         map.chunk * 16;
}

// The tile's pieces from `from` on: rows_left rows counted from the thread's own, and features before chunk `chunks`;
// the rest becomes zero.
template <class Tile, int Threads>
__device__ __forceinline__ void copy_tile(uint32_t tile_address, const char* from, int64_t token_bytes, int chunks,
                                          int rows_left, int thread) {
  using Map = tile::CopyMap<Tile, Threads>;
  const Map map(thread);
  const int64_t step = Map::rows_per_step * token_bytes;
#pragma unroll
  for (int r = 0; r < Map::row_steps; r++, from += step) {
    if (!map.has_row(r)) continue;
#pragma unroll
    for (int c = 0; c < Map::column_steps; c++) {
      const bool there = map.chunk + c * Map::threads_per_row < chunks && r * Map::rows_per_step < rows_left;
      ptx::cp_async_16_zero_filled(tile_address + map.offset(r, c), from + c * Map::threads_per_row * 16,
                                   there ? 16 : 0);
    }
  }
}

// A thread's share of the copies of one chunk after another. It keeps where its pieces of the next chunk lie, and has
// no branches: with one warp a scheduler every instruction delays a product, and a branch keeps the compiler from
// moving products across it. Past the last chunk it copies nothing and fills with zeros.
template <GatedDeltaForwardConfig C>
class ChunkCopy {
 public:
  using Stage = ForwardStage<C>;
  using Keys = decltype(Stage::k);
  using Values = decltype(Stage::v);
  static constexpr int parts = 4;

  __device__ __forceinline__ ChunkCopy(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                       int first_value, int first_chunk, int thread)
      : thread_(thread),
        k_bytes_(p.k.token_stride * 2),
        q_bytes_(p.q.token_stride * 2),
        v_bytes_(p.v.token_stride * 2),
        record_bytes_(int64_t{p.heads_k} * p.group * sizeof(ChunkRecord)),
        key_chunks_(p.dim_k / 8),
        value_chunks_(min(p.dim_v - first_value, C.block_v) / 8),
        rows_left_(sequence.length - first_chunk * chunk) {
    const tile::CopyMap<Keys, C.threads()> keys(thread);
    const tile::CopyMap<Values, C.threads()> values(thread);
    k_ = first_piece(p.k, sequence, head / p.group, 0, keys) + first_chunk * chunk * k_bytes_;
    q_ = first_piece(p.q, sequence, head / p.group, 0, keys) + first_chunk * chunk * q_bytes_;
    v_ = first_piece(p.v, sequence, head, first_value, values) + first_chunk * chunk * v_bytes_;
    record_ =
        p.records + (sequence.first_chunk + first_chunk) * record_bytes_ + head * sizeof(ChunkRecord) + thread * 16;
  }

  // Part 0 to 3 of the next chunk, in this order: K, Q, V, the record. The last ends the group, empty past the last
  // chunk, and moves on.
  template <int Part>
  __device__ __forceinline__ void issue(uint32_t stage_address) {
    issue_part<Part>(stage_address);
    if constexpr (Part == parts - 1) {
      ptx::cp_async_commit();
      rows_left_ -= chunk;
      k_ += chunk * k_bytes_;
      q_ += chunk * q_bytes_;
      v_ += chunk * v_bytes_;
      record_ += record_bytes_;
    }
  }

 private:
  template <int Part>
  __device__ __forceinline__ void issue_part(uint32_t stage_address) const {
    if constexpr (Part == 3) {
#pragma unroll
      for (int i = 0; i < (ChunkRecord::bytes / 16 + C.threads() - 1) / C.threads(); i++) {
        const bool there = thread_ + i * C.threads() < ChunkRecord::bytes / 16 && rows_left_ > 0;
        ptx::cp_async_16_if(there, stage_address + offsetof(Stage, record) + (thread_ + i * C.threads()) * 16,
                            record_ + i * C.threads() * 16);
      }
    } else if constexpr (Part == 2) {
      const int row = tile::CopyMap<Values, C.threads()>(thread_).row;
      copy_tile<Values, C.threads()>(stage_address + offsetof(Stage, v), v_, v_bytes_, value_chunks_, rows_left_ - row,
                                     thread_);
    } else {
      const int row = tile::CopyMap<Keys, C.threads()>(thread_).row;
      copy_tile<Keys, C.threads()>(stage_address + (Part == 0 ? offsetof(Stage, k) : offsetof(Stage, q)),
                                   Part == 0 ? k_ : q_, Part == 0 ? k_bytes_ : q_bytes_, key_chunks_, rows_left_ - row,
                                   thread_);
    }
  }

  const int thread_;
  const int64_t k_bytes_, q_bytes_, v_bytes_, record_bytes_;
  const int key_chunks_, value_chunks_;
  int rows_left_;
  const char *k_, *q_, *v_, *record_;
};

}  // namespace flashdelta::gated_delta
