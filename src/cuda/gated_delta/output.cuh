// O^T [16 M value columns, 32 tokens] from a warp's accumulators to rows of o. 16-bit output turns in shared memory, in
// columns of the warp's own, for 16 bytes a lane, and leaves with the next chunk, when it has long been there; fp32
// output leaves at once and as it is, a sector a row and block.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/memory_16.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// One warp's window on o.
template <GatedDeltaForwardConfig C>
class Output {
 public:
  using Values = tile::SharedTile<chunk, C.block_v>;
  static constexpr int M = C.warp_columns() / 16;

  // first_value: the warp's, in the head; first_column: the same in the block; address: the block's buffer.
  __device__ __forceinline__ Output(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                    int first_value, int first_column, int first_token, uint32_t address, int lane)
      : params_(p),
        first_value_(first_value),
        lane_(lane),
        left_(sequence.length - first_token),
        stride_(p.o.token_stride * size()),
        to_(static_cast<char*>(const_cast<void*>(p.o.data)) +
            (sequence.offset(p.o, first_token, head) + first_value) * size() + own_offset()),
        address_(address),
        first_chunk_(first_column / 8) {
    if (size() == 2) left_ = lane % pieces * 8 < values() ? left_ - row_of(lane) : 0;
    if constexpr (C.keep_addresses) {  // a shuffle is not repeated: they would be computed anew for every chunk
      kept_turn_to_ = ptx::shfl_idx(static_cast<int>(turn_to()), lane);
      kept_store_from_ = ptx::shfl_idx(static_cast<int>(store_from()), lane);
    }
  }

  // Turns a chunk's 16-bit output, for store_rows() if it is to be emitted. store_rows() has stored the one before.
  __device__ __forceinline__ void turn(const tile::Accumulator<M, 4>& o, bool emits) {
    if constexpr (ptx::has_stmatrix) {
#pragma unroll
      for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const uint32_t words[4] = {packed(o, m, n, 0), packed(o, m, n, 1), packed(o, m, n + 1, 0),
                                     packed(o, m, n + 1, 1)};
          ptx::stmatrix_x4_trans((turn_address() ^ (2 * m << 4)) + n * 8 * Values::pitch, words);
        }
      }
    } else {
      // An even row's neighbour differs in the swizzle's lowest bit, where that takes rows one by one.
      static_assert(Values::swizzle_bits == 3);
      const uint32_t even = turn_address(), odd = (even ^ 16) + Values::pitch;
#pragma unroll
      for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint32_t column = (2 * m + half) << 4;
#pragma unroll
          for (int n = 0; n < 4; n++) {
            ptx::store_shared_16x2((even ^ column) + n * 8 * Values::pitch, (odd ^ column) + n * 8 * Values::pitch,
                                   packed(o, m, n, half));
          }
        }
      }
    }
    ptx::warp_sync();
    turned_ = emits;
  }

  // Stores what turn() turned last, if that was not stored yet.
  __device__ __forceinline__ void store_rows() {
    constexpr int rows_per_step = 32 / pieces;
    const int rows = turned_ ? left_ : 0;
#pragma unroll
    for (int step = 0; step < chunk / rows_per_step; step++) {
      uint32_t words[4];
      ptx::load_shared_128(words, store_address() + step * rows_per_step * Values::pitch);
      ptx::store_global_128_if(step * rows_per_step < rows, to_ + step * rows_per_step * stride_, words);
    }
    if (turned_) next_chunk();
    turned_ = false;
    ptx::warp_sync();  // every lane has read: turn() may write
  }

  // A chunk's output in fp32, at once.
  __device__ __forceinline__ void store_32(const tile::Accumulator<M, 4>& o) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int value = m * 16 + (e >> 1) * 8 + lane_ / 4, token = n * 8 + lane_ % 4 * 2 + (e & 1);
          if (value < values() && token < left_) ptx::store_global_32(to_ + token * stride_ + value * 4, o.x[m][n][e]);
        }
      }
    }
    next_chunk();
  }

  // o = 0 in so many tokens, of a sequence that is skipped.
  __device__ __forceinline__ void clear(int tokens) const {
    char* to = to_ - own_offset();
    const int row_pieces = max(values(), 0) * size() / 16;  // of 16 bytes, a row
    const uint32_t zeros[4] = {};
    for (int64_t i = lane_; i < int64_t{tokens} * row_pieces; i += 32) {
      ptx::store_global_128(to + i / row_pieces * stride_ + i % row_pieces * 16, zeros);
    }
  }

 private:
  static_assert(M == 1 || M == 2);
  static constexpr int pieces = 2 * M;  // of 16 bytes, a row

  // Rows that a quarter of the warp reads together lie on different banks: with 2 pieces a row every other row, with 4
  // rows 4 apart.
  static __device__ __forceinline__ int row_of(int lane) {
    return M == 1 ? lane / 2 % 4 * 2 + lane / 8 % 2 + lane / 16 * 8 : lane / 4 % 2 * 4 + lane / 8;
  }

  // Read from the parameters when they are needed: few registers are left.
  __device__ __forceinline__ int size() const { return params_.o.is_fp32 ? 4 : 2; }
  __device__ __forceinline__ int values() const { return min(params_.dim_v - first_value_, C.warp_columns()); }

  // Where a lane turns 16-bit output, and where it reads it back.
  __device__ __forceinline__ uint32_t turn_to() const {
    return address_ + (ptx::has_stmatrix ? Values::offset(lane_ % 8 + lane_ / 16 * 8, first_chunk_ + lane_ / 8 % 2)
                                         : Values::offset(lane_ % 4 * 2, first_chunk_) + lane_ / 4 * 2);
  }
  __device__ __forceinline__ uint32_t store_from() const {
    return address_ + Values::offset(row_of(lane_), first_chunk_ + lane_ % pieces);
  }
  __device__ __forceinline__ uint32_t turn_address() const { return C.keep_addresses ? kept_turn_to_ : turn_to(); }
  __device__ __forceinline__ uint32_t store_address() const {
    return C.keep_addresses ? kept_store_from_ : store_from();
  }

  // Where a lane's 16-bit output of a chunk begins; fp32 output goes by other ways.
  __device__ __forceinline__ int64_t own_offset() const {
    return size() == 2 ? row_of(lane_) * stride_ + lane_ % pieces * 16 : 0;
  }

  // Values 8 half + lane / 4 of tokens 8 n + 2 (lane % 4) and + 1.
  static __device__ __forceinline__ uint32_t packed(const tile::Accumulator<M, 4>& o, int m, int n, int half) {
    return ptx::pack<C.element>(o.x[m][n][2 * half], o.x[m][n][2 * half + 1]);
  }

  __device__ __forceinline__ void next_chunk() {
    to_ += chunk * stride_;
    left_ -= chunk;
  }

  const GatedDeltaForwardParams& params_;
  const int first_value_, lane_;
  int left_;  // tokens from this lane's first of the next chunk on; 0 or less: it stores nothing
  const int64_t stride_;
  char* to_;  // that token
  const uint32_t address_;
  const int first_chunk_;
  uint32_t kept_turn_to_, kept_store_from_;
  bool turned_ = false;
};

}  // namespace flashdelta::gated_delta
