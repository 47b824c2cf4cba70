// The shared memory of two public gated delta kernels, by buffer, so that docs/shared-memory.md and its tests can hold
// them against an architecture. Counted from the allocations in FlashQLA 0.1.3's sources; nothing here runs them.
#pragma once

#include <cstdint>

namespace flashdelta {

// State preparation (prepare_h): walks a segment's chunks for the state that it leaves and for its transition matrix.
struct StatePreparationTile {
  int64_t chunk, dim_k, dim_v, stages, element_bytes;
  bool transition_in_state;  // the matrix's two halves lie where the state does; else beside it
};

struct StatePreparationBytes {
  int64_t k, v, inverse;  // all stages
  int64_t state, transition;
  int64_t x, y, z;  // A^T K, the values less what is known of them, K times the matrix
  int64_t gates;    // fp32: g and beta a stage, the decay to the chunk's end
  constexpr int64_t total() const { return k + v + inverse + state + transition + x + y + z + gates; }
};

constexpr StatePreparationBytes state_preparation_bytes(const StatePreparationTile& t) {
  const int64_t keys = t.chunk * t.dim_k * t.element_bytes, values = t.chunk * t.dim_v * t.element_bytes;
  return {.k = t.stages * keys,
          .v = t.stages * values,
          .inverse = t.stages * t.chunk * t.chunk * t.element_bytes,
          .state = t.dim_k * t.dim_v * t.element_bytes,
          .transition = t.transition_in_state ? 0 : 2 * t.dim_k * (t.dim_k / 2) * t.element_bytes,
          .x = keys,
          .y = values,
          .z = 2 * t.chunk * (t.dim_k / 2) * t.element_bytes,
          .gates = (2 * t.stages + 1) * t.chunk * 4};
}

// The fused backward of Hopper, which the one for SM120 was cut from: one stage, the state of a chunk and its gradient
// whole.
struct FusedBackwardTile {
  int64_t chunk, dim_k, dim_v, element_bytes;
  bool q_shared;  // q lies in a buffer that is free when q is needed
};

struct FusedBackwardBytes {
  int64_t states;    // the state and its gradient
  int64_t products;  // three [chunk, dim_k] on their way between warps
  int64_t squares;   // three [chunk, chunk]
  int64_t inputs;    // dO, q, k, v
  int64_t gradient;  // of q, k or v, on its way out
  int64_t inverse;
  constexpr int64_t total() const { return states + products + squares + inputs + gradient + inverse; }
};

constexpr FusedBackwardBytes fused_backward_bytes(const FusedBackwardTile& t) {
  const int64_t keys = t.chunk * t.dim_k * t.element_bytes, values = t.chunk * t.dim_v * t.element_bytes;
  const int64_t square = t.chunk * t.chunk * t.element_bytes;
  return {.states = 2 * t.dim_k * t.dim_v * t.element_bytes,
          .products = 3 * keys,
          .squares = 3 * square,
          .inputs = 2 * values + (t.q_shared ? 1 : 2) * keys,
          .gradient = keys,
          .inverse = square};
}

// Its inversion couples two diagonal blocks of 16 tokens.
constexpr int64_t fused_backward_least_chunk = 32;

}  // namespace flashdelta
