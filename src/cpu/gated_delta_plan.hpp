// How a gated delta call is cut into tasks, and where a task's working memory lies.
//
// A task is one sequence, up to `heads` value heads of one key head, and block_v columns of V: the recurrence mixes
// neither heads nor columns of V. Heads of one task share K K^T and Q K^T; columns are split where there are too few
// heads for the threads. No cut changes a bit of the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace flashdelta::cpu {

// The working memory of one thread, as offsets in floats into its part of the workspace. n <= chunk tokens, heads value
// heads. ld_k, ld_v and ld_chunk are leading dimensions.
struct GatedDeltaScratch {
  int64_t chunk = 0, heads = 0;
  int64_t ld_k = 0, ld_v = 0, ld_chunk = 0;
  int64_t keys_queries = 0;  // [2n, K]: keys, then queries times scale
  int64_t keys_t = 0;        // [K, n]
  int64_t products = 0;      // [2n, n]: K K^T, then scale Q K^T
  int64_t decayed = 0;       // [2n, n]: L, then P
  int64_t work = 0;          // [2n, V]: K S, which becomes U, then scale Q S, which becomes O
  int64_t states = 0;        // [heads, K, V]
  int64_t rows = 0;          // row conversions and state transposes
  int64_t gates = 0;         // see ChunkGates
  int64_t floats = 0;        // in all; a multiple of 64
};

// What a run shares between its threads: sequences_at_once sequences in order of work, then the threads' scratch.
struct GatedDeltaPlan {
  GatedDeltaScratch scratch;
  int threads = 1;
  int64_t sequences_at_once = 0;
  size_t scratch_offset = 0;  // bytes
  size_t workspace_bytes = 0;
};

// One sequence of a run.
struct SequenceWork {
  int64_t length = 0;
  int64_t sequence = 0;
  int64_t checkpoint_row = 0;
};

// Depends on shapes and threads alone, never on lengths.
GatedDeltaPlan plan_gated_delta(const GatedDeltaProblem& problem, int threads);

struct GatedDeltaCut {
  int64_t heads = 1;    // value heads a task, at most the scratch's
  int64_t block_v = 8;  // columns of V a task

  int64_t head_blocks(const GatedDeltaProblem& p) const { return (p.group() + heads - 1) / heads; }
  int64_t v_blocks(const GatedDeltaProblem& p) const { return (p.dim_v + block_v - 1) / block_v; }
  int64_t tasks_a_sequence(const GatedDeltaProblem& p) const { return p.heads_k * head_blocks(p) * v_blocks(p); }
};

// The cut that the model says ends first: total_tokens in `sequences` sequences that are not empty, the longest with
// longest_tokens.
GatedDeltaCut cut_gated_delta(const GatedDeltaProblem& problem, const GatedDeltaPlan& plan, int64_t sequences,
                              int64_t total_tokens, int64_t longest_tokens);

}  // namespace flashdelta::cpu
