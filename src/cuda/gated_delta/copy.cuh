// Rows of q, k and v, and a chunk to a stage of the pipeline.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::gated_delta {

// Where a head's features of a sequence's first token lie, from first_column on.
__device__ __forceinline__ const char* rows_at(const GatedDeltaRows& rows, const Sequence& sequence, int head,
                                               int first_column) {
  return static_cast<const char*>(rows.data) + 2 * (sequence.offset(rows, 0, head) + first_column);
}

// Brings one chunk after another to the stages, by a warp of its own: the warps that multiply then issue no copies, and
// branches here cost them nothing.
template <GatedDeltaForwardConfig C>
class ChunkCopy {
 public:
  using Stage = ForwardStage<C>;
  using Keys = decltype(Stage::k);
  using Values = decltype(Stage::v);

  // Begins at first_chunk.
  __device__ __forceinline__ ChunkCopy(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                       int first_value, int first_chunk, int lane)
      : k_(rows_at(p.k, sequence, head / p.group, 0), p.k.token_stride * 2, p.dim_k, first_chunk * chunk, lane),
        q_(rows_at(p.q, sequence, head / p.group, 0), p.q.token_stride * 2, p.dim_k, first_chunk * chunk, lane),
        v_(rows_at(p.v, sequence, head, first_value), p.v.token_stride * 2, p.dim_v - first_value, first_chunk * chunk,
           lane),
        record_bytes_(int64_t{p.heads_k} * p.group * sizeof(ChunkRecord)),
        record_(p.records + (sequence.first_chunk + first_chunk) * record_bytes_ + head * sizeof(ChunkRecord) +
                lane * 16),
        rows_left_(sequence.length - first_chunk * chunk),
        values_(p.dim_v - first_value),
        whole_(p.dim_k == Keys::cols && (values_ >= C.block_v || (C.summary && values_ == 0))),
        lane_(lane) {}

  __device__ __forceinline__ void issue(uint32_t stage_address) {
    const uint32_t to = stage_address + offsetof(Stage, record) + lane_ * 16;
    constexpr int pieces = ChunkRecord::bytes / 16;
#pragma unroll
    for (int i = 0; i < pieces / 32; i++) ptx::cp_async_16(to + i * 512, record_ + i * 512);
    if (lane_ < pieces % 32) ptx::cp_async_16(to + pieces / 32 * 512, record_ + pieces / 32 * 512);
    record_ += record_bytes_;
    const uint32_t key_offset = first_offset<Keys>(), value_offset = first_offset<Values>();
    if (whole_ && rows_left_ >= chunk) {
      k_.issue_whole(stage_address + offsetof(Stage, k) + key_offset);
      if (!C.summary || values_ > 0) {
        v_.issue_whole(stage_address + offsetof(Stage, v) + value_offset);
      } else if (stages_to_clear_ > 0) {
        v_.issue_part(stage_address + offsetof(Stage, v) + value_offset, 0);
        stages_to_clear_--;
      }
      if constexpr (!C.summary) q_.issue_whole(stage_address + offsetof(Stage, q) + key_offset);
    } else {
      k_.issue_part(stage_address + offsetof(Stage, k) + key_offset, rows_left_);
      v_.issue_part(stage_address + offsetof(Stage, v) + value_offset, rows_left_);
      if constexpr (!C.summary) q_.issue_part(stage_address + offsetof(Stage, q) + key_offset, rows_left_);
    }
    rows_left_ -= chunk;
  }

 private:
  template <class Tile>
  __device__ __forceinline__ uint32_t first_offset() const {
    return tile::CopyMap<Tile, 32>(lane_).offset(0, 0);
  }

  tile::TileCopy<Keys, 32> k_, q_;
  tile::TileCopy<Values, 32> v_;
  const int64_t record_bytes_;
  const char* record_;
  int rows_left_;
  int stages_to_clear_ = C.stages;
  const int values_;  // from the block's first on; in a summary 0: a transition's, which have zeros in their place
  const bool whole_;  // rows fill the tiles
  const int lane_;
};

}  // namespace flashdelta::gated_delta
