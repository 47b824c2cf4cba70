#include "plan/kernel_rows.hpp"

#include <algorithm>

namespace flashdelta {

std::vector<const ForwardRow*> forward_rows_for(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
                                                bool general) {
  std::vector<const ForwardRow*> tightest;
  const auto area = [](const ForwardRow* row) { return row->config.head_dim + row->config.head_dim_v; };
  for (const ForwardRow& row : forward_rows) {
    if (dtype != (row.config.element == Element::bf16 ? FLASHDELTA_BF16 : FLASHDELTA_FP16)) continue;
    if (general && !row.config.general) continue;
    if (row.config.head_dim < head_dim || row.config.head_dim_v < head_dim_v) continue;
    if (!tightest.empty() && area(&row) < area(tightest[0])) tightest.clear();
    if (tightest.empty() || area(&row) == area(tightest[0])) tightest.push_back(&row);
  }
  if (general) return tightest;
  std::vector<const ForwardRow*> rows;
  for (const ForwardRow* row : tightest) {
    const bool covered = row->config.general && std::any_of(tightest.begin(), tightest.end(), [&](const ForwardRow* r) {
                           return !r->config.general && r->config.block_q <= row->config.block_q;
                         });
    if (!covered) rows.push_back(row);
  }
  return rows;
}

const ForwardRow* choose_forward_row(const ArchProfile& arch, const std::vector<const ForwardRow*>& rows,
                                     const QueryRows& work) {
  const ForwardRow* best = nullptr;
  const auto fills = [&](const ForwardRow* row) { return work.blocks(row->config) >= work.sm_count; };
  for (const ForwardRow* row : rows) {
    if (row->config.shared_bytes() > arch.shared_bytes_block) continue;
    const bool larger = best != nullptr && row->config.block_q > best->config.block_q;
    const bool better = best == nullptr || (fills(row) ? !fills(best) || larger : !fills(best) && !larger);
    if (better) best = row;
  }
  return best;
}

const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent_row_for(flashdelta_dtype dtype, int64_t dim_k) {
  const GatedDeltaRow<GatedDeltaRecurrentConfig>* best = nullptr;
  for (const auto& row : gated_delta_recurrent_rows) {
    if (dtype != (row.config.element == Element::bf16 ? FLASHDELTA_BF16 : FLASHDELTA_FP16)) continue;
    if (row.config.dim_k >= dim_k && (best == nullptr || row.config.dim_k < best->config.dim_k)) best = &row;
  }
  return best;
}

}  // namespace flashdelta
