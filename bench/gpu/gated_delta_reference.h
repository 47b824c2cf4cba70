/* Inputs and the float64 answer of the gated delta rule, made on the card: gated_delta_reference.cu. */
#pragma once

#include <cstdint>

namespace flashdelta::bench {

// Tensors as the benchmark lays them out: contiguous, packed, [T, heads, features]; states [N, HV, K, V].
struct ReferenceProblem {
  const void *q, *k, *v, *o;  // 16-bit
  const float *g, *beta, *initial, *final;
  const int32_t* cu_seqlens;
  int sequences, heads_k, group, dim_k, dim_v;
  float scale;
  bool fp16;
};

// What sums of squares came out as.
struct ReferenceErrors {
  double o_difference, o_norm, state_difference, state_norm;
};

enum class Gates : int { mixed, decaying, zero, resets };

// q and k normal and normalised, v normal, g = logsigmoid(normal) / 16 (0 in a quarter of the heads where mixed, -inf
// now and then for resets), beta = sigmoid(normal). All on the default stream.
void fill_inputs(const ReferenceProblem& problem, int64_t tokens, Gates gates, uint32_t seed);

// The recurrence token by token in float64, compared with o and final on its way. errors: device memory, zeroed.
void compare_with_recurrence(const ReferenceProblem& problem, ReferenceErrors* errors);

}  // namespace flashdelta::bench
