/* A tensor map as the device's copy engine reads it (cuTensorMapEncodeTiled), among kernels' parameters. Plain data. */
#ifndef FLASHDELTA_CUDA_TENSOR_MAP_H
#define FLASHDELTA_CUDA_TENSOR_MAP_H

#include <stdint.h>

#ifdef __cplusplus
namespace flashdelta {
#endif

typedef struct EncodedTensorMap {
  uint64_t words[16];
} __attribute__((aligned(128))) EncodedTensorMap;

#ifdef __cplusplus
} /* namespace flashdelta */
#endif

#endif
