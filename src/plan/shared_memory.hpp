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
// V [chunk, block_v], the 16x16 blocks of T and P at and below the diagonal, and three fp32 factors a token. The state
// has no place here: it stays in registers. O [chunk, block_v] turns in a buffer of its own. Stages begin at multiples
// of 1024 bytes, as tensor copies want.
struct GatedDeltaTile {
  int64_t chunk, block_v, dim_k, stages, element_bytes;
};

struct GatedDeltaSharedBytes {
  int64_t k, q, v, t, p;  // V's tile takes the output
  int64_t gate;           // the factors and 16 bytes of the chunk's own; with T and P a whole number of 128-byte lines
  int64_t barriers;       // two of 8 bytes a stage, in a kilobyte
  int64_t padding;        // of the stages
  constexpr int64_t total() const { return k + q + v + t + p + gate + barriers + padding; }
};

constexpr GatedDeltaSharedBytes gated_delta_shared_bytes(const GatedDeltaTile& tile) {
  const int64_t qk = tile.chunk * tile.dim_k * tile.element_bytes;
  const int64_t blocks = tile.chunk / 16 * (tile.chunk / 16 + 1) / 2;
  const int64_t lower = blocks * 256 * tile.element_bytes;
  const int64_t gate = (2 * lower + tile.chunk * 12 + 16 + 127) / 128 * 128 - 2 * lower;
  const int64_t v = tile.chunk * tile.block_v * tile.element_bytes;
  const int64_t stage = 2 * qk + v + 2 * lower + gate;
  return {.k = tile.stages * qk,
          .q = tile.stages * qk,
          .v = tile.stages * v,
          .t = tile.stages * lower,
          .p = tile.stages * lower,
          .gate = tile.stages * gate,
          .barriers = (tile.stages * 16 + 1023) / 1024 * 1024,
          .padding = tile.stages * ((stage + 1023) / 1024 * 1024 - stage)};
}

// Gated delta forward, chunk preparation. K and Q are read once; then K K^T and Q K^T and each warp's scratch for the
// inverse take their place: lower squares of three 16x16 blocks in fp32, 264 numbers apart, and in the scratch two
// numbers a token.
struct GatedDeltaPrepareTile {
  int64_t chunk, dim_k, warps, element_bytes;
};

struct GatedDeltaPrepareSharedBytes {
  int64_t kq;               // shares its place with
  int64_t products, heads;  // these
  int64_t norms;            // and an mbarrier
  constexpr int64_t total() const {
    return ((kq > products + heads ? kq : products + heads) + norms + 1023) / 1024 * 1024;
  }
};

constexpr GatedDeltaPrepareSharedBytes gated_delta_prepare_shared_bytes(const GatedDeltaPrepareTile& tile) {
  constexpr int64_t square = (2 * 264 + 256) * 4;
  return {.kq = 2 * tile.chunk * tile.dim_k * tile.element_bytes,
          .products = 2 * square,
          .heads = tile.warps * (square + tile.chunk * 8),
          .norms = tile.chunk * 8 + 8};
}

// Warps own groups of 16 value columns; the fp32 state of `columns` of them is this many registers a thread.
constexpr int64_t gated_delta_state_registers(int64_t columns, int64_t dim_k) { return (columns * dim_k + 31) / 32; }

}  // namespace flashdelta
