#include "plan/kernel_rows.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/plan.hpp"

namespace flashdelta {

namespace {

std::vector<const ForwardRow*> find_forward_rows(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
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

}  // namespace

const std::vector<const ForwardRow*>& forward_rows_for(flashdelta_dtype dtype, int64_t head_dim, int64_t head_dim_v,
                                                       bool general) {
  // A call asks many times; there are as many answers as head sizes that a thread has met.
  using Key = std::tuple<flashdelta_dtype, int64_t, int64_t, bool>;
  static thread_local std::map<Key, std::vector<const ForwardRow*>> known;
  const Key key{dtype, head_dim, head_dim_v, general};
  auto found = known.find(key);
  if (found == known.end()) {
    found = known.emplace(key, find_forward_rows(dtype, head_dim, head_dim_v, general)).first;
  }
  return found->second;
}

const ForwardRow* choose_forward_row(const ArchProfile& arch, const std::vector<const ForwardRow*>& rows,
                                     const QueryRows& work) {
  const ForwardRow* best = nullptr;
  for (const ForwardRow* row : rows) {
    const ForwardConfig& config = row->config;
    if (config.dynamic_bytes() > arch.shared_bytes_block) continue;
    if (row->wanted_blocks > 0) {
      const int64_t blocks =
          resident_blocks(arch, config.dynamic_bytes(), config.threads(), int64_t{row->register_ceiling});
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

const ForwardRow* choose_paired_row(const ArchProfile& arch, flashdelta_dtype dtype, int64_t head_dim,
                                    int64_t head_dim_v, const QueryRows& work) {
  const auto& rows = forward_rows_for(dtype, head_dim, head_dim_v);
  if (rows.empty() || work.sm_count == 0) return nullptr;
  for (const ForwardRow& row : paired_rows) {
    const ForwardConfig &config = row.config, &other = rows[0]->config;
    if (config.element != other.element || config.head_dim != other.head_dim || config.head_dim_v != other.head_dim_v) {
      continue;  // more padding
    }
    const bool suits = work.rows > 64 && work.rows <= config.block_q && work.fill(config.block_q, 1);
    if (suits && config.dynamic_bytes() <= arch.shared_bytes_block) return &row;
  }
  return nullptr;
}

TailSplit choose_tail(const ForwardConfig& config, const QueryRows& work, int64_t keys) {
  constexpr int64_t least_tiles = 2, most_parts = 32;  // a lane of the combining warp each
  constexpr int64_t most_an_sm = 4;                    // parts are workspace
  constexpr int64_t part_keys = 256;  // storing 256 rows of 128 fp32 numbers and reading them is as long as 256 keys
  const int64_t blocks = work.blocks(config), waves = work.sm_count > 0 ? blocks / work.sm_count : 0;
  const int64_t left = blocks - waves * work.sm_count;
  const TailSplit whole{blocks, 1};
  if (waves == 0 || left == 0 || config.value_parts > 1) return whole;
  const int64_t tiles = (keys + config.block_kv - 1) / config.block_kv, cost = part_keys / config.block_kv;
  const auto tail_tiles = [&](int64_t parts) {
    const int64_t longest = (tiles + parts - 1) / parts + (parts > 1 ? cost : 0);
    return (left * parts + work.sm_count - 1) / work.sm_count * longest;
  };
  int64_t best = 1;
  const int64_t most = std::min({tiles / least_tiles, most_parts, most_an_sm * work.sm_count / left});
  for (int64_t parts = 2; parts <= most; parts++) {
    if (tail_tiles(parts) < tail_tiles(best)) best = parts;
  }
  if (100 * (tail_tiles(1) - tail_tiles(best)) < 3 * (waves + 1) * tiles) return whole;
  return {blocks - left, static_cast<int>(best)};
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
