// One block of query rows: the passes over its keys, the merge of split passes, and the way out. See attention_plan.hpp
// for what a block is.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "core/progress.hpp"
#include "cpu/attention_plan.hpp"

namespace flashdelta::cpu {

struct AttentionBlock {
  const AttentionProblem& problem;
  int64_t sequence, head_k;
  int64_t first_row, rows;  // of the sequence's length * group
  Span queries, keys;

  int64_t columns() const { return padded_columns(rows); }
  int64_t stride() const { return column_stride(columns()); }
  int64_t token(int64_t row) const { return (first_row + row) / problem.group(); }
  int64_t head_q(int64_t row) const { return head_k * problem.group() + (first_row + row) % problem.group(); }
  AttentionProblem::Visible visible(int64_t row) const {
    return problem.visible(token(row) + keys.length - queries.length, keys.length);
  }
};

// Part `part` of `parts` of the block's visible keys, into result. Returns early once progress says stop.
void attend(const AttentionBlock& block, int64_t part, int64_t parts, const Scratch& scratch, const Accumulator& result,
            Progress& progress);

// Adds a later part's result to an earlier one's.
void merge(const AttentionBlock& block, const Accumulator& into, const Accumulator& from, const Scratch& scratch);

// Divides, applies the sink, writes o and lse. Rows that fp32 cannot hold are computed again in float64.
void finish(const AttentionBlock& block, const Accumulator& result, const Scratch& scratch, Progress& progress);

// One row in float64, key by key: o[head_dim_v], and its lse. Overwrites scratch.scores.
double attend_exactly(const AttentionBlock& block, int64_t row, const Scratch& scratch, float* o, Progress& progress);

}  // namespace flashdelta::cpu
