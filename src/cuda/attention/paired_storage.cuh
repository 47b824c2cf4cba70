// What lies in the shared memory of a block of paired.cuh.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::attention {

// What the two warps of a pair tell each other. Two buffers, for tiles in turn.
template <ForwardConfig C>
struct PairExchange {
  // Weights of a tile, as 8x8 matrices of (key, row), so that a lane's words neighbour those of the next lane. Those of
  // 16 keys and of rows 0 to 15 are 512 bytes, and between those of both warps lie rows 16 to 23 of all keys.
  uint32_t weights[2][C.pair_rows() * C.block_kv / 2];
  float maximum[2][2][C.pair_rows()];  // of each warp, where it rose: before and after; in the end its sums
  alignas(8) int risen[2][2];          // the tile of each buffer for which a warp's maximum rose
};

template <ForwardConfig C>
struct PairedStorage {
  using Q = tile::SharedTile<C.block_q, C.head_dim>;
  using K = tile::PanelTile<C.block_kv, C.head_dim>;  // as tensor copies write them
  using V = tile::PanelTile<C.block_kv, C.head_dim_v>;
  static constexpr int k_places = 2, v_places = 3;

  union {  // Q is read once, to registers, before the first V is loaded.
    Q q;
    V v[v_places];
  };
  K k[k_places];
  PairExchange<C> exchange[C.warps / 2];
  // All copies to a place have landed; all warps have read it; both warps of a pair have told their part.
  uint64_t k_here[k_places], v_here[v_places], k_read[k_places], v_read[v_places], told[C.warps / 2];
};

}  // namespace flashdelta::attention
