// Rows of q, k and v, and a chunk to a stage of the pipeline.
#pragma once

#include "cuda/gated_delta/output.cuh"
#include "cuda/gated_delta/progress.cuh"
#include "cuda/gated_delta/segments.cuh"
#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/tile/copy.cuh"

namespace flashdelta::gated_delta {

// Where a head's features of a sequence's first token lie, from first_column on.
__device__ __forceinline__ const char* rows_at(const GatedDeltaRows& rows, const Sequence& sequence, int head,
                                               int first_column) {
  return static_cast<const char*>(rows.data) + 2 * (sequence.offset(rows, 0, head) + first_column);
}

// Whether a chunk from where so many rows are left comes by the tensor engine: a whole one, where there is an engine. A
// chunk that the sequence does not fill comes by cp.async, which writes zeros after its end.
__device__ __forceinline__ bool comes_in_boxes(const GatedDeltaForwardParams& p, int rows_left) {
  return ptx::has_tensor_copy && p.tensor_copies && rows_left >= chunk;
}

// Brings one chunk after another to the stages, by a warp of its own: the warps that multiply then issue no copies, and
// branches here cost them nothing.
template <GatedDeltaForwardConfig C>
class ChunkCopy {
 public:
  using Stage = ForwardStage<C>;
  using Keys = decltype(Stage::k);
  using Values = typename Stage::Values;

  // Begins at first_chunk.
  __device__ __forceinline__ ChunkCopy(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                       int first_value, int first_chunk, int lane)
      : params_(p),
        k_(rows_at(p.k, sequence, head / p.group, 0), p.k.token_stride * 2, p.dim_k, first_chunk * chunk, lane),
        q_(rows_at(p.q, sequence, head / p.group, 0), p.q.token_stride * 2, p.dim_k, first_chunk * chunk, lane),
        v_(rows_at(p.v, sequence, head, first_value), p.v.token_stride * 2, p.dim_v - first_value, first_chunk * chunk,
           lane),
        record_bytes_(int64_t{p.heads_k} * p.group * sizeof(ChunkRecord)),
        record_(p.records + (sequence.first_chunk + first_chunk) * record_bytes_ + head * sizeof(ChunkRecord)),
        batch_(static_cast<int>(sequence.batch)),
        token_(static_cast<int>(sequence.begin) + first_chunk * chunk),
        rows_left_(sequence.length - first_chunk * chunk),
        head_(head),
        first_value_(first_value),
        values_(p.dim_v - first_value),
        lane_(lane) {}

  // The next chunk to the stage at that address. All lanes arrive at `full`, whose phase then ends with the copy.
  __device__ __forceinline__ void issue(uint32_t stage, uint32_t full) {
    if (comes_in_boxes(params_, rows_left_)) {
      issue_boxes(stage, full);
    } else {
      issue_pieces(stage);
      ptx::mbarrier_arrive_after_copies(full);
    }
    record_ += record_bytes_;
    token_ += chunk;
    rows_left_ -= chunk;
  }

 private:
  __device__ __forceinline__ void issue_boxes(uint32_t stage, uint32_t full) {
    constexpr uint32_t bytes = sizeof(Keys) * (C.summary ? 1 : 2) + sizeof(Values) + ChunkRecord::bytes;
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expecting(full, bytes);
      const int head_k = head_ / params_.group;
#pragma unroll
      for (int i = 0; i < Keys::panels; i++) {
        ptx::tensor_copy(stage + offsetof(Stage, k) + i * Keys::panel_bytes, &params_.k_map, i * 64, head_k, token_,
                         batch_, full);
      }
      ptx::bulk_copy(stage + offsetof(Stage, record), record_, ChunkRecord::bytes, full);
      if constexpr (!C.summary) {
#pragma unroll
        for (int i = 0; i < Keys::panels; i++) {
          ptx::tensor_copy(stage + offsetof(Stage, q) + i * Keys::panel_bytes, &params_.q_map, i * 64, head_k, token_,
                           batch_, full);
        }
        ptx::tensor_store_wait_read();  // of the output that was where V comes
      }
#pragma unroll
      for (int i = 0; i < Values::panels; i++) {
        ptx::tensor_copy(stage + offsetof(Stage, v) + i * Values::panel_bytes, &params_.v_map, first_value_ + i * 64,
                         head_, token_, batch_, full);
      }
    } else {
      ptx::mbarrier_arrive(full);
    }
    k_.skip(), q_.skip(), v_.skip();
  }

  __device__ __forceinline__ void issue_pieces(uint32_t stage) {
    if constexpr (ptx::has_tensor_copy && !C.summary) {
      if (lane_ == 0) ptx::tensor_store_wait_read();
      ptx::warp_sync();
    }
    const uint32_t to = stage + offsetof(Stage, record) + lane_ * 16;
    const char* record = record_ + lane_ * 16;
    constexpr int pieces = ChunkRecord::bytes / 16;
#pragma unroll
    for (int i = 0; i < pieces / 32; i++) ptx::cp_async_16(to + i * 512, record + i * 512);
    if (lane_ < pieces % 32) ptx::cp_async_16(to + pieces / 32 * 512, record + pieces / 32 * 512);
    const uint32_t key_offset = first_offset<Keys>(), value_offset = first_offset<Values>();
    const bool whole = params_.dim_k == Keys::cols && (values_ >= C.block_v || (C.summary && values_ == 0));
    if (whole && rows_left_ >= chunk) {
      k_.issue_whole(stage + offsetof(Stage, k) + key_offset);
      if (!C.summary || values_ > 0) {
        v_.issue_whole(stage + offsetof(Stage, v) + value_offset);
      } else if (stages_to_clear_ > 0) {
        v_.issue_part(stage + offsetof(Stage, v) + value_offset, 0);
        stages_to_clear_--;
      }
      if constexpr (!C.summary) q_.issue_whole(stage + offsetof(Stage, q) + key_offset);
    } else {
      k_.issue_part(stage + offsetof(Stage, k) + key_offset, rows_left_);
      v_.issue_part(stage + offsetof(Stage, v) + value_offset, rows_left_);
      if constexpr (!C.summary) q_.issue_part(stage + offsetof(Stage, q) + key_offset, rows_left_);
    }
  }

  template <class Tile>
  __device__ __forceinline__ uint32_t first_offset() const {
    return tile::CopyMap<Tile, 32>(lane_).offset(0, 0);
  }

  const GatedDeltaForwardParams& params_;
  tile::TileCopy<Keys, 32> k_, q_;
  tile::TileCopy<Values, 32> v_;
  const int64_t record_bytes_;
  const char* record_;
  const int batch_;
  int token_, rows_left_;
  int stages_to_clear_ = C.stages;
  const int head_, first_value_;
  const int values_;  // from the block's first on; in a summary 0: a transition's, which have zeros in their place
  const int lane_;
};

// Brings the output of the chunk from `token` on from its stage to memory.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void store_output(uint32_t stage, const GatedDeltaForwardParams& p, const Sequence& sequence,
                                             int head, int first_value, int token, int lane) {
  using Values = typename ForwardStage<C>::Values;
  const uint32_t tile = stage + offsetof(ForwardStage<C>, v);
  if (!ptx::has_tensor_copy || !p.output_by_boxes || token + chunk > sequence.length) {
    store_output_rows<C>(tile, OutputRows(p, sequence, head, first_value), token, lane);
    return;
  }
  ptx::fence_for_tensor_copies();
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < Values::panels; i++) {
    ptx::tensor_store(tile + i * Values::panel_bytes, &p.o_map, first_value + i * 64, head,
                      static_cast<int>(sequence.begin) + token, static_cast<int>(sequence.batch));
  }
  ptx::tensor_store_commit();
}

// The stage that the copying warp is at, and the parity of the phase before in which its mbarrier says that it is
// empty.
struct StagePlace {
  int stage = 0;
  uint32_t parity = 1;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What a copying warp brings to the stages, one range of chunks after another. transition: no values, zeros in their
// place.
template <GatedDeltaForwardConfig C>
class RangeCopy {
 public:
  __device__ __forceinline__ RangeCopy(const ForwardStorage<C>& storage, const GatedDeltaForwardParams& params,
                                       const Sequence& sequence, const ChunkRange& range, int n, int head,
                                       int value_block, bool transition = false)
      : params_(params),
        sequence_(sequence),
        range_(range),
        n_(n),
        head_(head),
        first_value_(transition ? params.dim_v : value_block * C.block_v),
        lane_(threadIdx.x & 31),
        address_(ptx::shared_address(&storage)) {}

  // All chunks come in, and the output of those whose stages are wanted again goes out.
  __device__ __forceinline__ void fill(StagePlace& place) const {
    ChunkCopy<C> copy(params_, sequence_, head_, first_value_, range_.first, lane_);
    Progress progress(params_, n_, head_ / params_.group, range_.first, range_.end, lane_);
    for (int c = range_.first; c < range_.end; c++) {
      progress.wait_for(c);
      wait_and_store(c - C.stages, place);
      copy.issue(stage_at(place), address_ + offsetof(Storage, full) + place.stage * 8);
      place.advance(C.stages);
    }
  }

  // The output of the last chunks goes out.
  __device__ __forceinline__ void drain(StagePlace place) const {
    if (!stores()) return;
    for (int c = range_.end - C.stages; c < range_.end; c++) {
      if (c >= range_.first) wait_and_store(c, place);
      place.advance(C.stages);
    }
  }

 private:
  using Storage = ForwardStorage<C>;

  __device__ __forceinline__ bool stores() const { return !C.summary && !params_.o.is_fp32; }
  __device__ __forceinline__ uint32_t stage_at(const StagePlace& place) const {
    return address_ + place.stage * sizeof(ForwardStage<C>);
  }

  // c: the chunk that has the stage, where it is one of this range.
  __device__ __forceinline__ void wait_and_store(int c, const StagePlace& place) const {
    ptx::mbarrier_sleep(address_ + offsetof(Storage, empty) + place.stage * 8, place.parity);
    if (!stores() || c < range_.emit) return;
    store_output<C>(stage_at(place), params_, sequence_, head_, first_value_, c * chunk, lane_);
  }

  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const ChunkRange& range_;
  const int n_, head_, first_value_, lane_;
  const uint32_t address_;
};

// The last thing a copying warp does: a thread that ends has no copy under way, and what stores read is still there.
__device__ __forceinline__ void finish_copies() {
  ptx::cp_async_wait_all();
  if (ptx::has_tensor_copy && (threadIdx.x & 31) == 0) ptx::tensor_store_wait_read();
}

// The copying warp's share of a block that has one range.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void copy_chunks(const ForwardStorage<C>& storage, const GatedDeltaForwardParams& params,
                                            const Sequence& sequence, const ChunkRange& range, int n, int head,
                                            int value_block, bool transition = false) {
  if (slots_of(params, n).skipped) return;
  const RangeCopy<C> copy(storage, params, sequence, range, n, head, value_block, transition);
  StagePlace place;
  copy.fill(place);
  copy.drain(place);
  finish_copies();
}

template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void init_barriers(ForwardStorage<C>& storage) {
  if (threadIdx.x < C.stages) {
    ptx::mbarrier_init(ptx::shared_address(&storage.full[threadIdx.x]), 32);
    ptx::mbarrier_init(ptx::shared_address(&storage.empty[threadIdx.x]), C.warps);
    if (C.has_tasks() && threadIdx.x == 0) {
      ptx::mbarrier_init(ptx::shared_address(&storage.posted), 1);
      ptx::mbarrier_init(ptx::shared_address(&storage.taken), C.warps);
    }
    ptx::fence_for_tensor_copies();
  }
  ptx::barrier_sync_block();
}

}  // namespace flashdelta::gated_delta
