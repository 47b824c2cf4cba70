/* What the host hands an attention forward kernel. Plain data: host C++ fills it, CUDA reads it.
 *
 * q [B,TQ,HQ,D], k [B,TK,HK,D], v [B,TK,HK,DV], o [B,TQ,HQ,DV], lse [B,HQ,TQ]. Packed sequences have cu_seqlens and no
 * batch dimension: batch strides are then not read. Paged keys are k [pages,page_size,HK,D]; length_k is then what the
 * page table has room for. Strides are in elements. Rows of q, k, v and o start at multiples
 * of 16 bytes; features are contiguous.
 *
 * A block computes block_q rows of one key head's queries. Row r is query token r / group and query head r % group of
 * the key head's group, so that heads which share keys share their loads. The grid is q_tiles * heads_k *
 * batch blocks, and more where the last tiles are shared, times the row's value parts in y.
 */
#ifndef FLASHDELTA_CUDA_ATTENTION_FORWARD_PARAMS_H
#define FLASHDELTA_CUDA_ATTENTION_FORWARD_PARAMS_H

#include <stdint.h>

#ifdef __cplusplus
namespace flashdelta {
#endif

typedef struct AttentionForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse; /* may be null */
  int64_t q_batch_stride, q_token_stride, q_head_stride;
  int64_t k_batch_stride, k_token_stride, k_head_stride;
  int64_t v_batch_stride, v_token_stride, v_head_stride;
  int64_t o_batch_stride, o_token_stride, o_head_stride;
  int64_t lse_batch_stride, lse_head_stride; /* tokens are contiguous */
  const void* cu_seqlens_q;                  /* [batch + 1] on the device, or null: dense */
  const void* cu_seqlens_k;
  const void* seqused_k;       /* [batch], or null: all keys there are */
  const void* cache_batch_idx; /* [batch], row of k and v of each sequence, or null: its own */
  const int32_t* page_table;   /* [batch, pages a sequence], or null: keys are not paged */
  int64_t page_table_stride;   /* between sequences */
  const void* sink;            /* [heads_k * group], or null */
  int32_t cu_seqlens_q_is_64, cu_seqlens_k_is_64, seqused_k_is_64, cache_batch_idx_is_64;
  int32_t page_size;                 /* keys a page; page i begins at i * k_batch_stride */
  int32_t rows_k;                    /* pages, or rows of a cache: indices are clamped to it */
  int32_t sink_is_fp32;              /* else of q's type */
  int32_t batch, heads_k, group;     /* query heads: heads_k * group */
  int32_t head_dim, head_dim_v;      /* multiples of 8, at most the row's */
  int32_t length_q, length_k;        /* of each dense sequence, or of the packed tensor: offsets are clamped to it */
  int32_t window_left, window_right; /* visible keys around i + TK - TQ, inclusive; -1: unbounded; causal: right 0 */
  int32_t o_is_fp32;
  float scale_log2;        /* scale * log2(e); any finite number; 1 with a softcap */
  float softmax_scale;     /* its magnitude; 1 for 0 */
  float softcap_in;        /* scale / softcap */
  float softcap_log2;      /* softcap * log2(e); 0: no softcap */
  int32_t q_tiles;         /* ceil(longest TQ * group / block_q) */
  int32_t heads_in_flight; /* (sequence, key head) pairs whose tiles are interleaved, so that their keys stay in L2 */
  int32_t late_tiles;      /* the last tiles in order of each pair, which start after all others of all pairs */
  int32_t whole_tile;      /* keys left from which on a tile is copied without predicates: block_kv, or, where heads are
                            * smaller than the row's, more than there are */
  int32_t longest_first;   /* 1: the last tiles, which see most keys where causal, start first */
  /* Blocks (of grid.z) that share a query tile's keys; each stores its part of o, divided by its own denominator, and
   * of lse this many elements behind the part before. 0 or 1: none share. */
  int32_t splits;
  int64_t o_split_stride, lse_split_stride;
  /* The last query tiles, which would leave most of the card idle: block b of grid.x has query tile b up to
   * whole_blocks; each tile after those is shared by tail_parts blocks, which store their parts to tail_o [query tiles
   * after, tail_parts, block_q, DV] and tail_lse, likewise without DV. tail_parts 0 or 1: there are none. */
  int32_t whole_blocks, tail_parts;
  float* tail_o;
  float* tail_lse;
} AttentionForwardParams;

/* What the host hands the kernel that puts the parts together: partial_o [splits,rows,DV] and partial_lse
 * [splits,B,HQ,TQ], rows being [B,TQ,HQ] or, packed, [total_q,HQ]. */
typedef struct AttentionCombineParams {
  const float* partial_o;
  const float* partial_lse;
  void* o;
  float* lse;       /* may be null */
  const void* sink; /* [heads], or null */
  int64_t o_batch_stride, o_token_stride, o_head_stride;
  int64_t lse_batch_stride, lse_head_stride;
  const void* cu_seqlens_q;
  int32_t cu_seqlens_q_is_64, sink_is_fp32, o_is_fp32;
  int32_t batch, tokens, heads, head_dim_v; /* tokens: of a dense sequence, or in all; heads: of queries */
  int32_t rows, splits;                     /* splits: at most 32 */
} AttentionCombineParams;

#ifdef __cplusplus
} /* namespace flashdelta */
#endif

#endif
