// What lies in a block's shared memory, and the record of a chunk that goes from one kernel to the next.
#pragma once

#include "cuda/gated_delta/forward_config.hpp"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::gated_delta {

inline constexpr int chunk = gated_delta_chunk;

// A lower triangular [32, 32] matrix as three 16x16 blocks: (0, 0), (1, 0), (1, 1). The fourth is zero and nowhere.
enum Block { top = 0, below = 1, bottom = 2, block_count = 3 };
inline constexpr int square_rows = block_count * 16;

// Where a token's factor lies: the four tokens that an accumulator's lane has of sixteen are neighbours.
__device__ __forceinline__ int factor_place(int token) {
  return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
}

// Of a chunk and value head: T and P as the sequential kernel's mma reads them (swizzled already), and the gates.
struct alignas(128) ChunkRecord {
  tile::SharedTile<2 * square_rows, 16> squares;  // T's blocks, then P's
  // Factors of a token's column of S^T K^T, of S^T Q^T and of U^T: e^G, scale e^G and e^(G_last - G), times the L2
  // norm's factor of k, q and k where it is asked for. In factor_place's order.
  float key[chunk], query[chunk], update[chunk];
  float decay;  // e^G_last
  // A bound on the logarithm of what is left of any state before the chunk: G_last, and where beta |k|^2 > 2 lets a
  // token make a state larger, log |1 - beta |k|^2| more.
  float log_bound;
  float unused[2];

  // What is worth copying: whole pieces of 16 bytes.
  static constexpr int bytes = sizeof(squares) + (3 * chunk + 4) * 4;
};

// Lower triangular [32, 32] in fp32: three blocks of 16x16, pieces of four numbers swizzled. Accumulators' pairs,
// pieces of eight along rows, and a row of both diagonal blocks, which are 16 banks apart, each meet no bank twice.
struct LowerSquare {
  static constexpr int pitch = 16, block_pitch = 264;
  float data[(block_count - 1) * block_pitch + 256];

  // Rows 8 further lie 8 pitches further, and so does an odd row after an even one.
  __device__ __forceinline__ float* at(int block, int row16, int column) {
    return data + block * block_pitch + row16 * pitch + (column ^ (row16 & 2) * 6);
  }
};

// Tensor copies want 1024 bytes' alignment.
template <GatedDeltaPrepareConfig C>
struct alignas(1024) PrepareStorage {
  using Keys = tile::PanelTile<chunk, C.dim_k>;
  struct Head {  // a warp's, of the value head it is at
    LowerSquare inverse;
    float log_gate[chunk], beta[chunk];  // sums of the gate, in log2
  };
  union {  // K and Q are read once, into their products, before these are written
    struct {
      Keys k, q;
    } tiles;
    struct {
      LowerSquare keys, queries;  // K K^T, Q K^T
      Head head[C.warps];
    } made;
  };
  float key_norm[chunk], query_norm[chunk];
  uint64_t full;  // mbarrier: K and Q have come
};

template <GatedDeltaForwardConfig C>
struct alignas(1024) ForwardStage {
  using Values = tile::PanelTile<chunk, C.block_v>;
  tile::PanelTile<chunk, C.dim_k> k, q;
  tile::PanelTile<chunk, C.stage_v()> v;  // a Values, and then the chunk's output
  ChunkRecord record;
};

// What the copying warp has the others do next, where blocks have one task after another (wide.cuh).
struct ForwardTask {
  enum Kind { wide, narrow, none };  // none: there are no more
  int32_t kind, number;              // of the block, from 0
  int32_t first, end;                // its chunks among all of the block
  int32_t head, value;               // from that column on
  int64_t initial, final;            // slots of the states before and after, -1: none
};

template <GatedDeltaForwardConfig C>
struct ForwardStorage {
  ForwardStage<C> stage[C.stages];
  uint64_t full[C.stages];   // mbarriers: a chunk has come,
  uint64_t empty[C.stages];  // and every warp has read it
  int32_t owner;             // the sequence, or ~ of it for a range that leaves no final state
  ForwardTask task;
  uint64_t posted, taken;  // mbarriers: a task is there, and every warp has read all of it
};

}  // namespace flashdelta::gated_delta
