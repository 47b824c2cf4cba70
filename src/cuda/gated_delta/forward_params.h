/* What the host hands the gated delta forward kernels. Plain data: host C++ fills it, CUDA reads it.
 *
 * q, k [B,T,HK,K], v, o [B,T,HV,V], gate and beta [B,T,HV], states [slots,HV,K,V] or [slots,HV,V,K]. Packed sequences
 * have cu_seqlens and no batch dimension: batch strides are then not read. Strides are in elements. Rows of q, k, v and
 * o start at multiples of 16 bytes; features are contiguous.
 *
 * A chunk is 32 tokens of one sequence. Chunk c of sequence n is number first_chunk(n) + c, first_chunk(n) =
 * cu_seqlens[n] / 32 + n: a bound that leaves each sequence room and needs no sum over those before it. What the
 * preparation makes of chunk i and value head h lies in records at (i * HV + h) * record bytes.
 */
#ifndef FLASHDELTA_CUDA_GATED_DELTA_FORWARD_PARAMS_H
#define FLASHDELTA_CUDA_GATED_DELTA_FORWARD_PARAMS_H

#include <stdint.h>

#include "cuda/tensor_map.h"

#ifdef __cplusplus
namespace flashdelta {
#endif

/* [B,T,H,features] of 16-bit numbers (o also fp32), or [B,T,H] of them or fp32. */
typedef struct GatedDeltaRows {
  const void* data; /* null: absent */
  int64_t batch_stride, token_stride, head_stride;
  int32_t is_fp32;
  int32_t reserved;
} GatedDeltaRows;

/* State elements are fp32 or bf16; element (key, value) lies at key * key_stride + value * value_stride. */
typedef struct GatedDeltaStates {
  void* data; /* null: absent */
  int64_t slots;
  int64_t slot_stride, head_stride, key_stride, value_stride;
} GatedDeltaStates;

typedef struct GatedDeltaInts {
  const void* data; /* null: absent */
  int64_t row_stride;
  int32_t is_64;
  int32_t reserved;
} GatedDeltaInts;

typedef struct GatedDeltaForwardParams {
  GatedDeltaRows q, k, v, o;
  GatedDeltaRows gate; /* g, or a where A_log is there */
  GatedDeltaRows beta; /* beta, or b where raw_beta is set */
  const void* A_log;   /* [HV], or null */
  const void* dt_bias; /* [HV] */
  GatedDeltaStates initial, final, checkpoints;
  GatedDeltaInts cu_seqlens; /* [sequences + 1], or absent: dense */
  GatedDeltaInts initial_indices, final_indices;
  char* records;                     /* workspace */
  int64_t tokens;                    /* of each dense sequence, or of the packed tensor: offsets are clamped to it */
  int32_t sequences, heads_k, group; /* value heads: heads_k * group */
  int32_t dim_k, dim_v;              /* multiples of 8, dim_k at most the row's */
  int32_t value_blocks;              /* ceil(dim_v / block_v) */
  int32_t wide_value_blocks;         /* the same of the wide blocks, which the first wide_units have (wide.cuh): */
  int32_t wide_units;                /* value heads of a sequence */
  int32_t ranges;                    /* of all key heads' chunks, in which wide blocks walk (ranges.cuh), or 0; */
  int32_t least_piece, most_early;   /* chunks, 1 or more: of a range in a sequence, and before one that starts early */
  int32_t checkpoint_every;          /* tokens, a multiple of 64 or more than any sequence has; or 0 */
  int32_t state_is_bf16;
  int32_t A_log_is_fp32, dt_bias_is_fp32;
  int32_t raw_beta; /* beta = beta_scale * sigmoid(b) */
  int32_t l2norm;
  float beta_scale, scale;
  int32_t tensor_copies;   /* whether the maps are there: k, q and v as [batch, token, head, feature], boxes of a chunk
                              and 64 features */
  int32_t output_by_boxes; /* whether o's is: [batch, token, head, feature], boxes of a chunk and a warp's columns */
  int32_t segments;        /* most parts of a sequence that run side by side, 1 or more (segments.cuh) */
  float segment_threshold; /* log of what may be left of a state before a part that starts from nothing */
  /* Composition (parts.cuh): chunks of a part, or 0: none. Part s of sequence n is slot first_slot(n) + s of what lies
   * in the workspace: the state before it, [slot][HV][columns][row's dim_k], and its transition, [slot][HV][row's
   * dim_k][row's dim_k], the state's key first. */
  int32_t part_chunks;
  int32_t summary_blocks_v, summary_blocks; /* of the summary row's columns: of V, and with the transition's */
  int32_t columns;                          /* of V in summary blocks; padding is zero */
  float* starts;
  float* transitions;
  int32_t* done; /* [teams]: of the preparation that runs beside the forward kernel (ahead.cuh) */
  int32_t teams; /* 0: it has run before */
  int32_t reserved;
  EncodedTensorMap k_map, q_map, v_map, o_map;
} GatedDeltaForwardParams;

#ifdef __cplusplus
} /* namespace flashdelta */
#endif

#endif
