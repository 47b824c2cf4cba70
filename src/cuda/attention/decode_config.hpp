// A configuration of the kernel for few query rows against many keys. Plain C++ for host and device.
#pragma once

#include <algorithm>

#include "cuda/element.hpp"

namespace flashdelta {

struct DecodeConfig {
  Element element;
  int head_dim, head_dim_v;  // columns of the tiles, multiples of 16; smaller heads are padded with zeros
  int row_warps;             // 16 query rows each; they share their tiles of keys
  int key_warps;             // groups of row_warps warps that take tiles of keys in turn, each with tiles of its own
  int block_kv;              // keys of a tile
  int slots;                 // tiles, of K or V, that a group has room for

  constexpr int warps() const { return row_warps * key_warps; }
  constexpr int threads() const { return warps() * 32; }
  constexpr int block_q() const { return row_warps * 16; }
  constexpr int round_kv() const { return key_warps * block_kv; }  // keys of a tile of each group
  constexpr int slot_bytes() const { return block_kv * std::max(head_dim, head_dim_v) * 2; }

  // Q before the first key arrives, the ring of tiles, and at the end what all groups but one found (o, maximum and sum
  // as a warp's lanes hold them) share their place.
  constexpr int q_bytes() const { return block_q() * head_dim * 2; }
  constexpr int ring_bytes() const { return key_warps * slots * slot_bytes(); }
  constexpr int found_bytes() const { return (key_warps - 1) * row_warps * 32 * (head_dim_v / 2 + 4) * 4; }
  constexpr int shared_bytes() const { return std::max({q_bytes(), ring_bytes(), found_bytes()}); }

  constexpr bool valid() const {
    return head_dim % 16 == 0 && head_dim_v % 16 == 0 && block_kv % 16 == 0 && slots >= 2 &&
           (row_warps == 1 || key_warps == 1);
  }

  bool operator==(const DecodeConfig&) const = default;
};

}  // namespace flashdelta
