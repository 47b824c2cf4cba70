/* What the host hands the recurrent gated delta kernel: a forward call, whose records it does not use, and the states
 * after each token. Plain data: host C++ fills it, CUDA reads it.
 */
#ifndef FLASHDELTA_CUDA_GATED_DELTA_RECURRENT_PARAMS_H
#define FLASHDELTA_CUDA_GATED_DELTA_RECURRENT_PARAMS_H

#include "cuda/gated_delta/forward_params.h"

#ifdef __cplusplus
namespace flashdelta {
#endif

typedef struct GatedDeltaRecurrentParams {
  GatedDeltaForwardParams call;   /* value_blocks is this kernel's */
  GatedDeltaInts token_indices;   /* [sequences, token_slots], or absent */
  GatedDeltaInts accepted_tokens; /* [sequences], beside token_indices, or absent */
  int64_t token_slots;
  int32_t value_major;
  int32_t states_aligned; /* any four contiguous elements of a state, from a multiple of four on, are one vector */
} GatedDeltaRecurrentParams;

#ifdef __cplusplus
} /* namespace flashdelta */
#endif

#endif
