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

constexpr bool is_element(Element element, flashdelta_dtype dtype) {
  return dtype == (element == Element::bf16 ? FLASHDELTA_BF16 : FLASHDELTA_FP16);
}

// The rows that hold the head sizes with the least padding; empty: no kernel takes them. general: only rows with
// softcap and paged keys; else those only where no other row has blocks as small. Kept for the thread.
const std::vector<const ForwardRow*>& forward_rows_for(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
                                                       bool general = false);

// The recurrent gated delta row that holds the key size with the least padding; null: none.
const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent_row_for(flashdelta_dtype dtype, int64_t dim_k);

// How much there is to share out: query rows of each (sequence, key head), how many of those, over how many SMs.
struct QueryRows {
  int64_t rows = 0, pairs = 0;
  int64_t sm_count = 0;  // 0: a long sequence, whose blocks fill any card

  int64_t blocks(const ForwardConfig& config) const { return blocks(config.block_q); }
  int64_t blocks(int64_t block_q) const { return (rows + block_q - 1) / block_q * pairs; }
  // They give at least 7 of 8 SMs that many.
  bool fill(int64_t block_q, int64_t blocks_sm) const { return 8 * blocks(block_q) >= 7 * sm_count * blocks_sm; }
};

// Of those rows: one that wants more blocks an SM than SM120 holds, where the architecture holds and the work fills
// them; else the largest blocks that still fill the card; else the smallest. Null: none fits the architecture.
const ForwardRow* choose_forward_row(const ArchProfile& arch, const std::vector<const ForwardRow*>& rows,
                                     const QueryRows& work);

// The row for few query rows whose keys come from memory, where the work suits it and fills the card. Null: none does.
const ForwardRow* choose_paired_row(const ArchProfile& arch, flashdelta_dtype dtype, int64_t head_dim,
                                    int64_t head_dim_v, const QueryRows& work);

// How the query tiles that are left over after every SM has had as many as every other are shared out: each by `parts`
// blocks. parts 1: not shared, and whole_blocks is all there are.
struct TailSplit {
  int64_t whole_blocks = 0;
  int parts = 1;

  int64_t shared_tiles(int64_t blocks) const { return parts > 1 ? blocks - whole_blocks : 0; }
  int64_t grid(int64_t blocks) const { return whole_blocks + (parts > 1 ? shared_tiles(blocks) * parts : 0); }
};

// Of that many blocks of equal work, over that many keys. Shared only where it saves 3% of the call, a part costing the
// time of some keys more: it stores its o in fp32, and another kernel reads it.
TailSplit choose_tail(const ForwardConfig& config, const QueryRows& work, int64_t keys);

// The row for few query rows that takes these and has the smallest blocks that hold them all, else the largest blocks.
// page_size: of paged keys, else 0; a page holds whole tiles. Null: there is none.
const DecodeRow* choose_decode_row(const ArchProfile& arch, flashdelta_dtype dtype, int64_t head_dim,
                                   int64_t head_dim_v, int64_t query_rows, int64_t page_size);

}  // namespace flashdelta
