// Output of the sequential kernel. In 16 bits a warp writes a chunk's O^T where the chunk's V was, in columns that only
// this warp has read; the copying warp brings the tile to memory when all have left the stage. So the warps that
// multiply store nothing and keep no pointers. In fp32 they store it themselves, a sector a row and block.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// Of a head's values in o, from `value` on; worked out when it is needed, which is seldom: few registers are left.
class OutputRows {
 public:
  __device__ __forceinline__ OutputRows(const GatedDeltaForwardParams& p, const Sequence& sequence, int head, int value)
      : params_(p), sequence_(sequence), head_(head), value_(value) {}

  __device__ __forceinline__ int size() const { return params_.o.is_fp32 ? 4 : 2; }
  __device__ __forceinline__ int64_t stride() const { return params_.o.token_stride * size(); }
  __device__ __forceinline__ int values() const { return params_.dim_v - value_; }
  __device__ __forceinline__ int tokens() const { return sequence_.length; }
  __device__ __forceinline__ char* at(int token) const {
    return static_cast<char*>(const_cast<void*>(params_.o.data)) +
           (sequence_.offset(params_.o, token, head_) + value_) * size();
  }

 private:
  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const int head_, value_;
};

// o = 0 in a warp's columns of a whole sequence, one that is skipped.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void clear_output(const OutputRows& rows, int lane) {
  char* to = rows.at(0);
  const int pieces = max(min(rows.values(), C.warp_columns()), 0) * rows.size() / 16;  // of 16 bytes, a row
  const uint32_t zeros[4] = {};
  for (int64_t i = lane; i < int64_t{rows.tokens()} * pieces; i += 32) {
    ptx::store_global_128(to + i / pieces * rows.stride() + i % pieces * 16, zeros);
  }
}

// A chunk's output in fp32, from the accumulators of a warp's columns.
template <GatedDeltaForwardConfig C, int M>
__device__ __forceinline__ void store_output_32(const tile::Accumulator<M, 4>& o, const OutputRows& rows, int token,
                                                int lane) {
  char* to = rows.at(token);
  const int64_t stride = rows.stride();
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int value = m * 16 + (e >> 1) * 8 + lane / 4, row = n * 8 + lane % 4 * 2 + (e & 1);
        if (value < min(rows.values(), C.warp_columns()) && token + row < rows.tokens()) {
          ptx::store_global_32(to + row * stride + value * 4, o.x[m][n][e]);
        }
      }
    }
  }
}

// Brings the tile of a chunk's output to o, rows that there are, 16 bytes a lane: by one warp.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void store_output_rows(uint32_t tile, const OutputRows& rows, int token, int lane) {
  using Tile = typename ForwardStage<C>::Values;
  constexpr int pieces = C.block_v / 8;
  const int row_pieces = min(rows.values(), C.block_v) / 8;
  char* to = rows.at(token);
  const int64_t stride = rows.stride();
  const int count = min(rows.tokens() - token, chunk);
  for (int i = lane; i < count * pieces; i += 32) {
    const int row = i / pieces, piece = i % pieces;
    uint32_t words[4];
    ptx::load_shared_128(words, tile + Tile::offset(row, piece));
    ptx::store_global_128_if(piece < row_pieces, to + row * stride + piece * 16, words);
  }
  ptx::warp_sync();  // every lane has read: the tile may be filled again
}

}  // namespace flashdelta::gated_delta
