// What lies in a block's shared memory.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::attention {

template <ForwardConfig C>
struct ForwardTiles {
  using Q = tile::SharedTile<C.block_q, C.head_dim>;
  using K = tile::SharedTile<C.block_kv, C.head_dim>;
  using V = tile::SharedTile<C.block_kv, C.block_v()>;
};

template <ForwardConfig C, bool QInRegisters = C.q_in_registers>
struct ForwardStorage {
  typename ForwardTiles<C>::Q q;
  typename ForwardTiles<C>::K k[C.stages];
  typename ForwardTiles<C>::V v[C.stages];
};

template <ForwardConfig C>
struct ForwardStorage<C, true> {
  union {  // Q is read once, to registers, before the first V is loaded.
    typename ForwardTiles<C>::Q q;
    typename ForwardTiles<C>::V v[C.stages];
  };
  typename ForwardTiles<C>::K k[C.stages];
};

}  // namespace flashdelta::attention
