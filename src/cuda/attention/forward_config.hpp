// A configuration of the attention forward kernel: the tile, and what follows from it. Plain C++ for host and device.
#pragma once

#include "cuda/element.hpp"
#include "plan/shared_memory.hpp"

namespace flashdelta {

struct ForwardConfig {
  Element element;
  int head_dim, head_dim_v;  // columns of the tiles, multiples of 16; smaller heads are padded with zeros
  int block_q, block_kv;     // rows of the tiles
  int warps;                 // each owns block_q / warps query rows, a multiple of 16
  int stages;                // 1: K and V in one buffer each, two barriers a tile; 2: two each, one barrier a tile
  bool q_in_registers;       // Q's fragments stay in registers, and V takes over its shared memory
  int value_parts = 1;       // blocks (of grid.y) that share the value columns; each works out all scores
  bool general = false;      // has softcap, paged keys and split keys as well, which cost registers

  bool paired = false;  // few query rows: the kernel of paired.cuh, whose warps share their rows in pairs

  constexpr int threads() const { return warps * 32; }
  constexpr int warp_rows() const { return block_q / warps; }
  constexpr int pair_rows() const { return 2 * block_q / warps; }
  constexpr int block_v() const { return head_dim_v / value_parts; }  // value columns a block

  // The tiles, as plans count them. Pairs have two of K and three of V, which take the place of Q.
  constexpr int shared_bytes() const {
    if (paired) return block_kv * (2 * head_dim + 3 * head_dim_v) * 2;
    return static_cast<int>(
        attention_shared_bytes({block_q, block_kv, block_v(), head_dim, stages, 2, q_in_registers}).total());
  }

  // Warps meet in mbarriers, each at its own pace; general rows, which have no register left for the phase, in the
  // block's barrier.
  constexpr bool own_pace() const { return !general; }

  // What a launch asks for: the tiles, and the mbarriers in a line of their own; of pairs, what they tell each other
  // too: weights of two tiles, maxima and 4 words.
  constexpr int dynamic_bytes() const {
    const int told = paired ? warps / 2 * (pair_rows() * (block_kv * 4 + 16) + 16) : 0;
    return shared_bytes() + (told + 127) / 128 * 128 + (own_pace() ? 128 : 0);
  }

  constexpr bool valid() const {
    return head_dim % 16 == 0 && head_dim_v % (16 * value_parts) == 0 && block_kv % 16 == 0 &&
           (paired ? block_q == 96 && block_kv == 32 && warps == 8 && head_dim == head_dim_v && head_dim % 128 == 0 &&
                         q_in_registers && value_parts == 1 && !general
                   : block_q % (16 * warps) == 0 && (stages == 1 || stages == 2));
  }

  bool operator==(const ForwardConfig&) const = default;
};

// The kernel that adds up what blocks found over parts of the keys.
struct ForwardCombineConfig {
  Element element;

  constexpr int threads() const { return 128; }
  constexpr int shared_bytes() const { return 0; }
};

}  // namespace flashdelta
