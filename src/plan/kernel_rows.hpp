// The kernel table as the planner sees it: which rows take a problem, and which of them a call gets. The device layer
// launches what choose_forward_row() says, so a plan names the kernel that runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/profiles.hpp"
#include "cuda/attention/rows.hpp"
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "flashdelta/flashdelta.h"

namespace flashdelta {

// The rows that hold the head sizes with the least padding; empty: no kernel takes them. general: only rows with
// softcap and paged keys; else those only where no other row has blocks as small.
std::vector<const ForwardRow*> forward_rows_for(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
                                                bool general = false);

// The recurrent gated delta row that holds the key size with the least padding; null: none.
const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent_row_for(flashdelta_dtype dtype, int64_t dim_k);

// How much there is to share out: query rows of each (sequence, key head), how many of those, over how many SMs.
struct QueryRows {
  int64_t rows = 0, pairs = 0;
  int64_t sm_count = 0;  // 0: a long sequence, whose blocks fill any card

  int64_t blocks(const ForwardConfig& config) const { return (rows + config.block_q - 1) / config.block_q * pairs; }
};

// Of those rows: the largest blocks that still give every SM one, else the smallest. Null: none fits the architecture.
const ForwardRow* choose_forward_row(const ArchProfile& arch, const std::vector<const ForwardRow*>& rows,
                                     const QueryRows& work);

}  // namespace flashdelta
