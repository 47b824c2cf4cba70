// A block's share of the work: which sequence, key head, query rows and key tiles; and a warp's share of those.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention/forward_params.h"

namespace flashdelta::attention {

struct Span {
  int begin, length;
};

__device__ __forceinline__ int clamped(int64_t x, int low, int high) {
  return static_cast<int>(x < low ? low : x > high ? high : x);
}

__device__ __forceinline__ int64_t int_at(const void* ints, bool is_64, int i) {
  return is_64 ? static_cast<const int64_t*>(ints)[i] : static_cast<const int32_t*>(ints)[i];
}

// Tokens of a sequence. Offsets come from the device unchecked, so they are held inside the tensor.
__device__ __forceinline__ Span tokens_of(const void* cu_seqlens, bool is_64, int sequence, int length) {
  if (cu_seqlens == nullptr) return {0, length};
  const int begin = clamped(int_at(cu_seqlens, is_64, sequence), 0, length);
  return {begin, clamped(int_at(cu_seqlens, is_64, sequence + 1), begin, length) - begin};
}

// The keys that query tokens see: position p = token + TK - TQ sees p - left to p + right. Lengths are at most 2^30 and
// bounds under that (a wider one is none), so 32 bits do.
struct Visibility {
  int shift, keys, left, right;

  __device__ __forceinline__ int first(int token) const {
    return left < 0 ? 0 : min(max(token + shift - left, 0), keys);
  }
  __device__ __forceinline__ int last(int token) const {  // one past
    return right < 0 ? keys : min(max(token + shift + right + 1, 0), keys);
  }
};

// A query row of the block's (sequence, key head).
struct QueryRow {
  int token, head;
};

struct ForwardWork {
  int sequence, head_k;
  int tile;     // of query rows
  int key_row;  // of k and v
  Span queries, keys;
  int group, rows;  // rows: query tokens times group
  Visibility visibility;

  __device__ __forceinline__ ForwardWork(const AttentionForwardParams& p, int block) {
    const int heads = p.batch * p.heads_k, early_tiles = p.q_tiles - p.late_tiles;
    const bool late = block >= heads * early_tiles;
    const int tiles = late ? p.late_tiles : early_tiles, in_flight = late ? heads : p.heads_in_flight;
    if (late) block -= heads * early_tiles;
    const int bundle = block / (in_flight * tiles);
    const int place = block - bundle * in_flight * tiles;
    const int bundle_heads = min(in_flight, heads - bundle * in_flight);
    tile = place / bundle_heads;
    const int head = bundle * in_flight + place - tile * bundle_heads;
    if (late) tile += early_tiles;
    if (p.longest_first) tile = p.q_tiles - 1 - tile;
    sequence = head / p.heads_k;
    head_k = head - sequence * p.heads_k;
    queries = tokens_of(p.cu_seqlens_q, p.cu_seqlens_q_is_64, sequence, p.length_q);
    keys = tokens_of(p.cu_seqlens_k, p.cu_seqlens_k_is_64, sequence, p.length_k);
    key_row = sequence;
    if (p.cache_batch_idx != nullptr) {
      key_row = clamped(int_at(p.cache_batch_idx, p.cache_batch_idx_is_64, sequence), 0, p.rows_k - 1);
    }
    if (p.page_table != nullptr) key_row = 0;
    if (p.seqused_k != nullptr) keys.length = clamped(int_at(p.seqused_k, p.seqused_k_is_64, sequence), 0, keys.length);
    group = p.group;
    rows = queries.length * group;
    visibility = {keys.length - queries.length, keys.length, p.window_left, p.window_right};
  }

  __device__ __forceinline__ QueryRow query_row(int row) const {
    if (group == 1) return {row, 0};
    const int token = row / group;
    return {token, row - token * group};
  }

  // Elements from a tensor's start to this sequence's first token and this key head's first head.
  __device__ __forceinline__ int64_t query_offset(bool packed, int64_t batch, int64_t token, int64_t head) const {
    return (packed ? queries.begin * token : sequence * batch) + int64_t{head_k} * group * head;
  }
  // This sequence's row of the page table; null: keys are not paged.
  __device__ __forceinline__ const int32_t* pages(const AttentionForwardParams& p) const {
    return p.page_table == nullptr ? nullptr : p.page_table + sequence * p.page_table_stride;
  }
  // Paged keys: to the first page's.
  __device__ __forceinline__ int64_t key_offset(const AttentionForwardParams& p, int64_t batch, int64_t token,
                                                int64_t head) const {
    return (p.cu_seqlens_k != nullptr ? keys.begin * token : key_row * batch) + head_k * head;
  }
};

// Key tiles [begin, end) that rows [first_row, first_row + count) see any of; those in [full_begin, full_end) they see
// whole, and need no mask.
struct KeyTiles {
  int begin, end, full_begin, full_end;

  __device__ __forceinline__ KeyTiles(const ForwardWork& work, int first_row, int count, int block_kv) {
    const int last_row = min(first_row + count, work.rows) - 1;
    const int first_token = work.query_row(first_row).token, last_token = work.query_row(last_row).token;
    const int first_key = work.visibility.first(first_token), last_key = work.visibility.last(last_token);
    begin = first_key / block_kv;
    end = first_row > last_row || first_key >= last_key ? begin : (last_key + block_kv - 1) / block_kv;
    full_begin = (work.visibility.first(last_token) + block_kv - 1) / block_kv;
    full_end = work.visibility.last(first_token) / block_kv;
  }

  __device__ __forceinline__ bool contains(int tile) const { return tile >= begin && tile < end; }
  __device__ __forceinline__ bool full(int tile) const { return tile >= full_begin && tile < full_end; }
};

// Which query tile a block of grid.x has, in the order of ForwardWork, and which part of its keys.
struct TilePart {
  int tile, part, parts;

  __device__ __forceinline__ TilePart(const AttentionForwardParams& p, int block) : tile(block), part(0), parts(1) {
    const int shared = block - p.whole_blocks;
    if (p.tail_parts <= 1 || shared < 0) return;
    parts = p.tail_parts;
    tile = p.whole_blocks + shared / parts;
    part = shared % parts;
  }
};

// A block's part of the key tiles, where several blocks share them.
__device__ __forceinline__ KeyTiles share(KeyTiles tiles, int part, int parts) {
  if (parts <= 1) return tiles;
  const int count = (tiles.end - tiles.begin + parts - 1) / parts;
  tiles.begin = min(tiles.begin + part * count, tiles.end);
  tiles.end = min(tiles.begin + count, tiles.end);
  return tiles;
}

}  // namespace flashdelta::attention
