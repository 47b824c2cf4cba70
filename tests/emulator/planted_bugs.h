// What the planted-bug kernels and their test share.
#pragma once

#include <cstdint>

#define FOR_EACH_PLANTED_BUG(x)                                                                                      \
  x(kNone) x(kMissingBarrier) x(kMissingWait) x(kPrefetchEarly) x(kSkippedBarrier) x(kTailMaskOff) x(kCausalMaskOff) \
      x(kSharedRowOut) x(kGlobalRowOut) x(kNoSwizzle) x(kUninitialised) x(kSwappedFragments) x(kMisalignedCopy)      \
          x(kMissingWarpSync) x(kWrongTranspose)

#define PLANTED_BUG_NAME(bug) bug,
enum PlantedBug { FOR_EACH_PLANTED_BUG(PLANTED_BUG_NAME) };
#undef PLANTED_BUG_NAME

#ifdef __CUDACC__
using PlantedElement = __nv_bfloat16;
#else
using PlantedElement = uint16_t;
#endif

struct PlantedParams {
  const PlantedElement *q, *k, *v;  // [seqlen][64]
  PlantedElement* o;
  float* lse;
  int seqlen_q, seqlen_k, causal;
  float scale_log2;
};
