// The shared memory of a block, by buffer. This is the one formula: the planner prints it, and a kernel asserts that
// the sizeof of its storage struct equals it. No more than <cstdint>, so that CUDA code can include it.
#pragma once

#include <cstdint>

namespace flashdelta {

// Attention forward: Q [block_q, head_dim], K [block_kv, head_dim] and V [block_kv, block_v] a stage.
struct AttentionTile {
  int64_t block_q, block_kv, block_v, head_dim, stages, element_bytes;
  bool q_in_registers;
};

struct AttentionSharedBytes {
  int64_t q, k, v;  // each buffer, all stages
  bool q_before_v;  // Q has left for registers before V arrives, and lies where V will
  constexpr int64_t q_or_v() const { return q > v ? q : v; }
  constexpr int64_t total() const { return k + (q_before_v ? q_or_v() : q + v); }
};

constexpr AttentionSharedBytes attention_shared_bytes(const AttentionTile& tile) {
  return {.q = tile.block_q * tile.head_dim * tile.element_bytes,
          .k = tile.stages * tile.block_kv * tile.head_dim * tile.element_bytes,
          .v = tile.stages * tile.block_kv * tile.block_v * tile.element_bytes,
          .q_before_v = tile.q_in_registers};
}

// Gated delta forward, the sequential kernel. A stage holds what a chunk brings from memory: K and Q [chunk, dim_k],
// V [chunk, block_v], T and P [chunk, chunk], and (e^G, e^(G_last - G)) in fp32 a token. The state has no place here:
// it stays in registers.
struct GatedDeltaTile {
  int64_t chunk, block_v, dim_k, stages, element_bytes;
};

struct GatedDeltaSharedBytes {
  int64_t k, q, v, t, p, gate;
  int64_t barriers;  // a full and an empty mbarrier a stage, in whole lines of 128 bytes
  int64_t o;         // O [chunk, block_v] on its way out: it leaves the accumulators transposed
  constexpr int64_t total() const { return k + q + v + t + p + gate + barriers + o; }
};

constexpr GatedDeltaSharedBytes gated_delta_shared_bytes(const GatedDeltaTile& tile) {
  const int64_t qk = tile.chunk * tile.dim_k * tile.element_bytes;
  const int64_t vo = tile.chunk * tile.block_v * tile.element_bytes;
  const int64_t square = tile.chunk * tile.chunk * tile.element_bytes;
  return {.k = tile.stages * qk,
          .q = tile.stages * qk,
          .v = tile.stages * vo,
          .t = tile.stages * square,
          .p = tile.stages * square,
          .gate = tile.stages * tile.chunk * int64_t{8},
          .barriers = (tile.stages * 16 + 127) / 128 * 128,
          .o = vo};
}

// Warps own groups of 16 value columns; the fp32 state of `columns` of them is this many registers a thread.
constexpr int64_t gated_delta_state_registers(int64_t columns, int64_t dim_k) { return (columns * dim_k + 31) / 32; }

}  // namespace flashdelta
