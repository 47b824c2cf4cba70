// O^T [16 M value columns, 32 tokens] from a warp's accumulators to rows of o. 16-bit output turns in shared memory, in
// the warp's own columns of the V tile, for 16 bytes a lane; fp32 output leaves as it is, a sector a row and block.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/memory_16.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// One warp's window on o.
template <GatedDeltaForwardConfig C>
class Output {
 public:
  using Values = tile::SharedTile<chunk, C.block_v>;
  static constexpr int M = C.warp_columns() / 16;

  // first_value: the warp's, in the head; first_column: the same in the block.
  __device__ __forceinline__ Output(const GatedDeltaForwardParams& p, const Sequence& sequence, int head,
                                    int first_value, int first_column, int lane)
      : size_(p.o.is_fp32 ? 4 : 2),
        lane_(lane),
        length_(sequence.length),
        values_(min(p.dim_v - first_value, C.warp_columns())),
        stride_(p.o.token_stride * size_),
        o_(static_cast<char*>(const_cast<void*>(p.o.data)) + (sequence.offset(p.o, 0, head) + first_value) * size_),
        first_chunk_(first_column / 8) {}

  // Turns 16-bit output in the V tile, which this warp has read. (fp32 output goes past it.)
  __device__ __forceinline__ void turn(const tile::Accumulator<M, 4>& o, uint32_t v_address) const {
    const int token = lane_ % 4 * 2;
    const uint32_t even = v_address + Values::offset(token, first_chunk_) + lane_ / 4 * 2;
    const uint32_t odd = v_address + Values::offset(token + 1, first_chunk_) + lane_ / 4 * 2;
    ptx::warp_sync();  // every lane has read its V
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t column = (2 * m + half) << 4;
#pragma unroll
        for (int n = 0; n < 4; n++) {
          ptx::store_shared_16x2((even ^ column) + n * 8 * Values::pitch, (odd ^ column) + n * 8 * Values::pitch,
                                 ptx::pack<C.element>(o.x[m][n][2 * half], o.x[m][n][2 * half + 1]));
        }
      }
    }
    ptx::warp_sync();
  }

  // Tokens first_token and up, after turn().
  __device__ __forceinline__ void store(const tile::Accumulator<M, 4>& o, int first_token, uint32_t v_address) const {
    if (size_ == 4) {
      store_32(o, first_token);
    } else {
      store_rows(first_token, v_address);
    }
  }

  // o = 0, for a sequence that is skipped.
  __device__ __forceinline__ void clear() const {
    const int pieces = max(values_, 0) * size_ / 16;  // of 16 bytes, a row
    const uint32_t zeros[4] = {};
    for (int64_t i = lane_; i < int64_t{length_} * pieces; i += 32) {
      ptx::store_global_128(o_ + i / pieces * stride_ + i % pieces * 16, zeros);
    }
  }

 private:
  // Rows that a quarter of the warp reads together lie on different banks: with 2 pieces a row every other row, with 4
  // rows 4 apart.
  __device__ __forceinline__ void store_rows(int first_token, uint32_t v_address) const {
    static_assert(M == 1 || M == 2);
    const int piece = lane_ % (2 * M);
    const int row = M == 1 ? lane_ / 2 % 4 * 2 + lane_ / 8 % 2 + lane_ / 16 * 8 : lane_ / 4 % 2 * 4 + lane_ / 8;
    constexpr int rows_per_step = 16 / M;
    const uint32_t address = v_address + Values::offset(row, first_chunk_ + piece);
    char* to = o_ + (first_token + row) * stride_ + piece * 16;
#pragma unroll
    for (int step = 0; step < chunk / rows_per_step; step++) {
      uint32_t words[4];
      ptx::load_shared_128(words, address + step * rows_per_step * Values::pitch);
      if (first_token + row + step * rows_per_step < length_ && piece * 8 < values_) {
        ptx::store_global_128(to + step * rows_per_step * stride_, words);
      }
    }
  }

  __device__ __forceinline__ void store_32(const tile::Accumulator<M, 4>& o, int first_token) const {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int value = m * 16 + (e >> 1) * 8 + lane_ / 4, token = first_token + n * 8 + lane_ % 4 * 2 + (e & 1);
          if (value < values_ && token < length_) ptx::store_global_32(o_ + token * stride_ + value * 4, o.x[m][n][e]);
        }
      }
    }
  }

  const int size_, lane_, length_, values_;
  const int64_t stride_;
  char* const o_;
  const int first_chunk_;
};

}  // namespace flashdelta::gated_delta
