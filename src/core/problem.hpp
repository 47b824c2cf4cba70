// A call after validation: sizes, strides and pointers under the names the maths uses. Every backend and the oracle
// read the same struct; nobody but src/core looks at the C argument structs.
//
// Members that read lengths or indices (the functions below) dereference caller memory: host backends alone may call
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/numeric.hpp"
#include "core/status.hpp"

namespace flashdelta {

// A float tensor as [outer, token, head, feature]; the features of a row are contiguous. data null: absent.
struct Rows {
  char* data = nullptr;
  flashdelta_dtype dtype = FLASHDELTA_NONE;
  int64_t outer_stride = 0, token_stride = 0, head_stride = 0;  // elements

  explicit operator bool() const { return dtype != FLASHDELTA_NONE; }
  int64_t index(int64_t outer, int64_t token, int64_t head) const {
    return outer * outer_stride + token * token_stride + head * head_stride;
  }
  char* row(int64_t outer, int64_t token, int64_t head) const {
    return data + index(outer, token, head) * dtype_size(dtype);
  }
};

// An integer tensor [n] or [n, row]; absent reads are the caller's fault.
struct Ints {
  const void* data = nullptr;
  flashdelta_dtype dtype = FLASHDELTA_NONE;
  int64_t row_stride = 0;

  explicit operator bool() const { return dtype != FLASHDELTA_NONE; }
  int64_t operator[](int64_t i) const { return load_int(data, dtype, i); }
  int64_t at(int64_t row, int64_t i) const { return load_int(data, dtype, row * row_stride + i); }
};

// A float vector [n], one number a head.
struct Floats {
  const void* data = nullptr;
  flashdelta_dtype dtype = FLASHDELTA_NONE;

  explicit operator bool() const { return dtype != FLASHDELTA_NONE; }
  float operator[](int64_t i) const { return load_float(data, dtype, i); }
};

// Where a sequence's tokens lie: tokens begin .. begin + length - 1 of row `outer`.
struct Span {
  int64_t outer = 0, begin = 0, length = 0;
};

// Where one key lies.
struct TokenAt {
  int64_t outer = 0, token = 0;
};

struct AttentionProblem {
  int64_t batch = 0;
  int64_t heads_q = 0, heads_k = 0, head_dim = 0, head_dim_v = 0;
  int64_t dense_q = 0;           // TQ of dense queries, total of packed ones
  int64_t dense_k = 0;           // TK of dense keys, total of packed ones, pages_per_sequence * page_size of paged ones
  int64_t page_size = 0;         // 0: not paged
  int64_t rows_k = 0;            // outer rows of k: batch, cache rows or pages
  int64_t max_q = 0, max_k = 0;  // bounds on a sequence's length, as tight as the descriptors allow
  Rows q, k, v, o;
  float* lse = nullptr;  // null: not wanted
  int64_t lse_outer_stride = 0, lse_head_stride = 0;
  Floats sink;
  Ints cu_seqlens_q, cu_seqlens_k, seqused_k, cache_batch_idx, page_table;
  double scale = 0, softcap = 0;
  int64_t window_left = -1, window_right = -1;  // causal is folded in; -1: unbounded

  int64_t group() const { return heads_q / heads_k; }

  Span queries(int64_t b) const {
    if (!cu_seqlens_q) return {b, 0, dense_q};
    return {0, cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]};
  }

  // The keys in use. Of paged keys only the length means anything: key_at finds the rest.
  Span keys(int64_t b) const {
    Span span{cache_batch_idx ? cache_batch_idx[b] : b, 0, dense_k};
    if (cu_seqlens_k) span = {0, cu_seqlens_k[b], cu_seqlens_k[b + 1] - cu_seqlens_k[b]};
    if (seqused_k) span.length = seqused_k[b];
    return span;
  }

  TokenAt key_at(int64_t b, const Span& keys, int64_t j) const {
    if (page_size != 0) return {page_table.at(b, j / page_size), j % page_size};
    return {keys.outer, keys.begin + j};
  }

  // Of query i's row: the visible keys [first, last). position is i + TK - TQ.
  struct Visible {
    int64_t first, last;
  };
  Visible visible(int64_t position, int64_t keys) const {
    const int64_t first = window_left < 0 ? 0 : std::clamp<int64_t>(position - window_left, 0, keys);
    const int64_t last = window_right < 0 ? keys : std::clamp<int64_t>(position + window_right + 1, 0, keys);
    return {first, std::max(first, last)};
  }

  float* lse_row(int64_t outer, int64_t head) const { return lse + outer * lse_outer_stride + head * lse_head_stride; }
};

// States [slot, head, K, V] or [slot, head, V, K].
struct States {
  char* data = nullptr;
  flashdelta_dtype dtype = FLASHDELTA_NONE;
  int64_t slots = 0;
  int64_t slot_stride = 0, head_stride = 0, row_stride = 0;  // row_stride: of K in KV, of V in VK

  explicit operator bool() const { return dtype != FLASHDELTA_NONE; }
  int64_t index(int64_t slot, int64_t head) const { return slot * slot_stride + head * head_stride; }
};

struct GatedDeltaProblem {
  int64_t sequences = 0;  // N
  int64_t heads_k = 0, heads_v = 0, dim_k = 0, dim_v = 0;
  int64_t tokens = 0;      // T of dense input, the total of packed input
  int64_t max_tokens = 0;  // a bound on a sequence's length, as tight as the descriptors allow
  Rows q, k, v, o;
  Rows g, beta, a, b;  // one number a head: feature count 1, head_stride 1
  Floats A_log, dt_bias;
  States initial, final, checkpoints;
  Ints cu_seqlens, initial_indices, final_indices, token_indices, accepted_tokens;
  int64_t token_slots = 0;  // columns of token_indices
  double scale = 0, beta_scale = 1, decay_threshold = -9;
  int64_t checkpoint_every = 0;
  int chunk = 0;                             // 0: the plan's
  bool l2norm = false, value_major = false;  // value_major: states are [.., V, K]
  flashdelta_context_parallel context_parallel = FLASHDELTA_CONTEXT_PARALLEL_EXACT;

  int64_t group() const { return heads_v / heads_k; }

  Span sequence(int64_t n) const {
    if (!cu_seqlens) return {n, 0, tokens};
    return {0, cu_seqlens[n], cu_seqlens[n + 1] - cu_seqlens[n]};
  }

  // The slot a sequence starts from; -1: from zero, or skipped (see skipped()).
  int64_t initial_slot(int64_t n) const {
    if (!initial) return -1;
    if (accepted_tokens) {
      return token_indices.at(n, std::clamp<int64_t>(accepted_tokens[n], 1, token_slots) - 1);
    }
    return initial_indices ? initial_indices[n] : n;
  }

  // The slot its final state goes to; -1: nowhere.
  int64_t final_slot(int64_t n) const {
    if (!final) return -1;
    if (final_indices) return final_indices[n];
    if (token_indices) return -1;  // the states after each token are what is written
    return initial_indices ? initial_indices[n] : n;
  }

  // A negative index of the caller's: o = 0, no state touched.
  bool skipped(int64_t n) const {
    return (accepted_tokens && initial_slot(n) < 0) || (initial_indices && initial_indices[n] < 0) ||
           (final_indices && final_indices[n] < 0);
  }

  // The first row of checkpoints that belongs to sequence n, for n up to and including N (then the rows in all).
  int64_t checkpoint_row(int64_t n) const {
    if (checkpoint_every == 0) return 0;
    if (!cu_seqlens) return n * (tokens / checkpoint_every);
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) row += sequence(i).length / checkpoint_every;
    return row;
  }
};

// Descriptors to problem: shapes, dtypes, strides, options. Reads no tensor memory.
Status make_problem(const flashdelta_attention_forward_args& args, AttentionProblem* problem);
Status make_problem(const flashdelta_gated_delta_forward_args& args, GatedDeltaProblem* problem);

// What lengths and indices say, for tensors in host memory.
Status check_contents(const flashdelta_attention_forward_args& args, const AttentionProblem& problem);
Status check_contents(const flashdelta_gated_delta_forward_args& args, const GatedDeltaProblem& problem);

// Host copies of lengths, where the caller gave them; for tensors that lie on a device.
Status check_host_lengths(const flashdelta_attention_forward_args& args, const AttentionProblem& problem);
Status check_host_lengths(const flashdelta_gated_delta_forward_args& args, const GatedDeltaProblem& problem);

Status check_execution(const flashdelta_execution& execution);

}  // namespace flashdelta
