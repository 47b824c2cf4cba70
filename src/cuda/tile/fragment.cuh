// Fragments: what one warp holds of a matrix in registers, and how it gets there from shared tiles.
//
// An Operand is a 16x16 block: of A as mma takes it, or two 16x8 blocks of B side by side. Accumulators are rows of 16
// by columns of 8; lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and + 1 of each block.
#pragma once

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shuffle.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::tile {

struct Operand {
  uint32_t x[4];
};

// M blocks of 16 rows, N blocks of 8 columns.
template <int M, int N>
struct Accumulator {
  float x[M][N][4];
};

template <int M, int N>
__device__ __forceinline__ void zero(Accumulator<M, N>& d) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) d.x[m][n][e] = 0;
    }
  }
}

// d[m][2 n16 .. 2 n16 + 1] += a b: 16 rows by 16 columns.
template <Element E, int M, int N>
__device__ __forceinline__ void multiply_add(Accumulator<M, N>& d, int m, int n16, const Operand& a, const Operand& b) {
  ptx::mma_m16n8k16<E>(d.x[m][2 * n16], a.x, b.x[0], b.x[1]);
  ptx::mma_m16n8k16<E>(d.x[m][2 * n16 + 1], a.x, b.x[2], b.x[3]);
}

// Columns 16 k16 .. + 15 of accumulator rows m as an A operand: the layouts agree, so no lane gives anything away.
template <Element E, int M, int N>
__device__ __forceinline__ Operand to_operand(const Accumulator<M, N>& s, int m, int k16) {
  const auto& left = s.x[m][2 * k16];
  const auto& right = s.x[m][2 * k16 + 1];
  return {{ptx::pack<E>(left[0], left[1]), ptx::pack<E>(left[2], left[3]), ptx::pack<E>(right[0], right[1]),
           ptx::pack<E>(right[2], right[3])}};
}

// How the four 8x8 matrices of an Operand lie in a tile.
enum class Order {
  rows_first,  // A by rows, and B = tile^T's transpose read with .trans: matrices 0 and 1 are rows 0-7 and 8-15
  cols_first,  // B^T by rows: matrices 0 and 1 are columns 0-7 and 8-15 of rows 0-7
};

// Reads Operands at 16-aligned rows and columns of a tile. A lane keeps one address: columns move it by an XOR inside
// the swizzle and an addition beyond it, rows by an addition, all known when it compiles.
//
// Kept: an address for each way that columns go into the swizzle, from a shuffle, which the compiler does not repeat.
// In a long loop it computes addresses anew each time otherwise, to save registers.
template <class Tile, Order O, bool Kept = false>
class Reader {
 public:
  __device__ __forceinline__ Reader(uint32_t tile_address, int first_row, int lane) {
    const int row = O == Order::rows_first ? lane & 15 : (lane & 7) + ((lane >> 4) << 3);
    const int chunk = O == Order::rows_first ? lane >> 4 : (lane >> 3) & 1;
    address_[0] = tile_address + Tile::offset(first_row + row, chunk);
#pragma unroll
    for (int i = ways - 1; i >= 0; i--) {
      if (Kept) address_[i] = ptx::shfl_idx(static_cast<int>(address_[0] ^ (i << 5)), lane);
    }
  }

  // bytes: added to every address, the stage of a pipeline. Kept: columns are known when it compiles.
  __device__ __forceinline__ Operand load(int row16, int col16, uint32_t bytes = 0) const {
    Operand d;
    ptx::ldmatrix_x4(d.x, at(row16, col16, bytes));
    return d;
  }

  __device__ __forceinline__ Operand load_transposed(int row16, int col16, uint32_t bytes = 0) const {
    Operand d;
    ptx::ldmatrix_x4_trans(d.x, at(row16, col16, bytes));
    return d;
  }

  // To the tile `bytes` further. An address that moves is one that the compiler cannot work out anew for each tile.
  __device__ __forceinline__ void move(int bytes) { address_[0] += bytes; }

 private:
  static_assert(!Kept || Tile::swizzle_mask % 2 == 1, "a column of 16 is two chunks");
  static constexpr int ways = Kept ? (Tile::swizzle_mask + 1) / 2 : 1;

  __device__ __forceinline__ uint32_t at(int row16, int col16, uint32_t bytes) const {
    const int chunk = 2 * col16;
    const uint32_t near =
        Kept ? address_[col16 % ways] + bytes : (address_[0] + bytes) ^ ((chunk & Tile::swizzle_mask) << 4);
    return near + Tile::beyond_swizzle(chunk) + row16 * 16 * Tile::pitch;
  }

  uint32_t address_[ways];
};

}  // namespace flashdelta::tile
