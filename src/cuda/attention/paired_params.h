/* What the host hands the kernel of paired.cuh. Plain data, as forward_params.h. */
#ifndef FLASHDELTA_CUDA_ATTENTION_PAIRED_PARAMS_H
#define FLASHDELTA_CUDA_ATTENTION_PAIRED_PARAMS_H

#include "cuda/attention/forward_params.h"
#include "cuda/tensor_map.h"

#ifdef __cplusplus
namespace flashdelta {
#endif

typedef struct AttentionPairedParams {
  AttentionForwardParams call;
  int32_t in_boxes; /* whether the maps are there: k and v as [batch, token, head, feature], boxes of a tile's keys and
                     * 64 features */
  EncodedTensorMap k_map, v_map;
} AttentionPairedParams;

#ifdef __cplusplus
} /* namespace flashdelta */
#endif

#endif
