// How the CPU's attention cuts a call into pieces, and where each piece's memory lies in the workspace. Pure arithmetic
// on sizes: the pieces do not depend on the number of threads, so neither do the results.
//
// A block is up to block_rows query rows of one sequence and one key head. Its rows run over tokens and, fastest, over
// the query heads of the group, so that all of them share each converted K and V tile. A unit of work is one block over
// one of `splits` parts of its visible keys; parts are merged in order once all are done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace flashdelta::cpu {

// Four panels of the block's rows and one tile of keys stay in an L2 cache of 512 KiB up to head size 256.
constexpr int64_t kBlockRows = 96, kBlockKeys = 96;
// A call with fewer blocks than this splits its keys, down to parts of this many keys.
constexpr int64_t kUnitsWanted = 64, kSplitKeys = 1024;
constexpr size_t kWorkspaceLimit = size_t{48} << 20;

// Query rows padded to whole vectors. The stride between them is an odd number of 64-byte lines, because powers of two
// map a panel to few cache sets.
constexpr int64_t padded_columns(int64_t rows) { return rows <= 8 ? 8 : (rows + 15) / 16 * 16; }
constexpr int64_t column_stride(int64_t columns) {
  return columns <= 8 || columns / 16 % 2 == 1 ? columns : columns + 16;
}

// A block's result, not yet divided by l: o[head_dim_v][column], all [column]-strided by column_stride.
struct Accumulator {
  float *m, *l, *o;
};

// One thread's scratch.
struct Scratch {
  float* q;            // [head_dim][column], scaled
  float* tile;         // [kBlockRows][larger head size]: queries, then K, then V, then o in rows
  float* scores;       // [kBlockKeys][column]
  float* rescale;      // [column]
  float* merge;        // [column]
  double* wide_q;      // [head_dim]
  double* wide_o;      // [head_dim_v]
  Accumulator result;  // where keys are not split
};

struct AttentionPlan {
  AttentionPlan(const AttentionProblem& problem, int threads_allowed);

  int64_t slots;   // blocks of one key head, over all sequences; a few are empty
  int64_t splits;  // parts of a block's visible keys
  int64_t units;   // slots * heads_k * splits
  int threads;
  size_t bytes;

  Scratch scratch(void* workspace, int thread) const;
  Accumulator part(void* workspace, int64_t unit) const;  // where keys are split

  // Sequence b's first slot. Its blocks, at most rows / kBlockRows rounded up, fit before sequence b + 1's.
  static int64_t first_slot(const AttentionProblem& problem, int64_t b) {
    const Span queries = problem.queries(b);
    const int64_t tokens_before = problem.cu_seqlens_q ? queries.begin : b * problem.dense_q;
    return tokens_before * problem.group() / kBlockRows + b;
  }

 private:
  int64_t head_dim_, head_dim_v_, stride_;
  size_t accumulator_floats_, scratch_bytes_, parts_bytes_;
};

}  // namespace flashdelta::cpu
