#include "plan/kernel_rows.hpp"

#include <algorithm>

#include "plan/plan.hpp"

namespace flashdelta {

std::vector<const ForwardRow*> forward_rows_for(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
                                                bool general) {
  std::vector<const ForwardRow*> tightest;
  const auto area = [](const ForwardRow* row) { return row->config.head_dim + row->config.head_dim_v; };
  for (const ForwardRow& row : forward_rows) {
    if (!is_element(row.config.element, dtype)) continue;
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
  for (const ForwardRow* row : rows) {
    const ForwardConfig& config = row->config;
    if (config.shared_bytes() > arch.shared_bytes_block) continue;
    if (row->wanted_blocks > 0) {
      const int64_t blocks =
          resident_blocks(arch, config.shared_bytes(), config.threads(), int64_t{row->register_ceiling});
      const bool few_rows = work.sm_count > 0 && work.rows < 2 * config.block_q;  // larger blocks read keys less often
      if (blocks < row->wanted_blocks || few_rows || !work.fill(config.block_q, row->wanted_blocks)) continue;
      return row;
    }
    const bool larger = best != nullptr && config.block_q > best->config.block_q;
    const bool fills = work.fill(config.block_q, 1);
    if (best == nullptr ||
        (fills ? !work.fill(best->config.block_q, 1) || larger : !work.fill(best->config.block_q, 1) && !larger)) {
      best = row;
    }
  }
  return best;
}

const DecodeRow* choose_decode_row(const ArchProfile& arch, flashdelta_dtype dtype, int64_t head_dim,
                                   int64_t head_dim_v, int64_t query_rows, int64_t page_size) {
  const DecodeRow* best = nullptr;
  const auto area = [](const DecodeRow* row) { return row->config.head_dim + row->config.head_dim_v; };
  const auto holds = [&](const DecodeRow* row) { return row->config.block_q() >= query_rows; };
  for (const DecodeRow& row : decode_rows) {
    const DecodeConfig& config = row.config;
    if (!is_element(config.element, dtype)) continue;
    if (config.head_dim < head_dim || config.head_dim_v < head_dim_v) continue;
    if (page_size % config.block_kv != 0 || config.shared_bytes() > arch.shared_bytes_block) continue;
    if (best != nullptr && area(&row) > area(best)) continue;
    const bool larger = best != nullptr && config.block_q() > best->config.block_q();
    if (best == nullptr || area(&row) < area(best) || (holds(best) ? holds(&row) && !larger : larger)) best = &row;
  }
  return best;
}

const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent_row_for(flashdelta_dtype dtype, int64_t dim_k) {
  const GatedDeltaRow<GatedDeltaRecurrentConfig>* best = nullptr;
  for (const auto& row : gated_delta_recurrent_rows) {
    if (!is_element(row.config.element, dtype)) continue;
    if (row.config.dim_k >= dim_k && (best == nullptr || row.config.dim_k < best->config.dim_k)) best = &row;
  }
  return best;
}

}  // namespace flashdelta
