#include "device/gated_delta_regions.hpp"

namespace flashdelta {
namespace {

Region region(const char* name, const void* data, int64_t elements, int64_t size, bool written = false) {
  return {data, static_cast<size_t>(elements * size), name, written, !written};
}

// What a strided tensor reaches from its first element. features: of a row, or 1 for numbers a head.
Region rows_region(const char* name, const GatedDeltaProblem& p, const Rows& rows, int64_t heads, int64_t features,
                   bool written = false) {
  const int64_t outer = p.cu_seqlens ? 1 : p.sequences;
  const bool empty = outer == 0 || p.tokens == 0 || heads == 0;
  const int64_t reach = empty ? 0
                              : (outer - 1) * rows.outer_stride + (p.tokens - 1) * rows.token_stride +
                                    (heads - 1) * rows.head_stride + features;
  return region(name, rows.data, reach, dtype_size(rows.dtype), written);
}

Region states_region(const char* name, const GatedDeltaProblem& p, const States& states, bool written) {
  const int64_t rows = p.value_major ? p.dim_v : p.dim_k, features = p.value_major ? p.dim_k : p.dim_v;
  const int64_t reach = states.slots == 0
                            ? 0
                            : (states.slots - 1) * states.slot_stride + (p.heads_v - 1) * states.head_stride +
                                  (rows - 1) * states.row_stride + features;
  return region(name, states.data, reach, dtype_size(states.dtype), written);
}

Region ints_region(const char* name, const Ints& ints, int64_t count) {
  return region(name, ints.data, count, dtype_size(ints.dtype));
}

void add_gates(const GatedDeltaProblem& p, std::vector<Region>* regions) {
  regions->push_back(rows_region(p.g ? "g" : "a", p, p.g ? p.g : p.a, p.heads_v, 1));
  regions->push_back(rows_region(p.beta ? "beta" : "b", p, p.beta ? p.beta : p.b, p.heads_v, 1));
  if (p.A_log) regions->push_back(region("A_log", p.A_log.data, p.heads_v, dtype_size(p.A_log.dtype)));
  if (p.dt_bias) regions->push_back(region("dt_bias", p.dt_bias.data, p.heads_v, dtype_size(p.dt_bias.dtype)));
}

// Where sequences and their states lie.
void add_lengths(const GatedDeltaProblem& p, std::vector<Region>* regions) {
  if (p.cu_seqlens) regions->push_back(ints_region("cu_seqlens", p.cu_seqlens, p.sequences + 1));
  if (p.initial_indices) regions->push_back(ints_region("initial_state_indices", p.initial_indices, p.sequences));
  if (p.final_indices) regions->push_back(ints_region("final_state_indices", p.final_indices, p.sequences));
}

// What the sequential kernel reads and writes, the workspace apart.
std::vector<Region> call_regions(const GatedDeltaProblem& p) {
  std::vector<Region> regions = {
      rows_region("q", p, p.q, p.heads_k, p.dim_k),
      rows_region("k", p, p.k, p.heads_k, p.dim_k),
      rows_region("v", p, p.v, p.heads_v, p.dim_v),
      rows_region("o", p, p.o, p.heads_v, p.dim_v, true),
  };
  const bool in_place = p.initial && p.final && p.initial.data == p.final.data;
  if (p.initial) regions.push_back(states_region("initial_state", p, p.initial, false));
  if (in_place) regions.back().written = true;
  if (p.final && !in_place) regions.push_back(states_region("final_state", p, p.final, true));
  if (p.checkpoints) regions.push_back(states_region("checkpoints", p, p.checkpoints, true));
  add_lengths(p, &regions);
  return regions;
}

// States and transitions of parts, in the workspace.
Region parts_region(void* workspace, const GatedDeltaWorkspace& layout, bool defined) {
  return {static_cast<char*>(workspace) + layout.records, layout.total - layout.records, "parts", true, defined};
}

}  // namespace

std::vector<Region> gated_delta_prepare_regions(const GatedDeltaProblem& p, void* workspace,
                                                const GatedDeltaWorkspace& layout) {
  std::vector<Region> regions = {
      rows_region("q", p, p.q, p.heads_k, p.dim_k),
      rows_region("k", p, p.k, p.heads_k, p.dim_k),
      {workspace, layout.records + layout.done, "records", true, false},
  };
  add_gates(p, &regions);
  add_lengths(p, &regions);
  return regions;
}

std::vector<Region> gated_delta_summary_regions(const GatedDeltaProblem& p, void* workspace,
                                                const GatedDeltaWorkspace& layout) {
  std::vector<Region> regions = call_regions(p);
  regions.push_back({workspace, layout.records, "records", false, true});
  regions.push_back(parts_region(workspace, layout, false));
  return regions;
}

std::vector<Region> gated_delta_scan_regions(const GatedDeltaProblem& p, void* workspace,
                                             const GatedDeltaWorkspace& layout) {
  std::vector<Region> regions = {parts_region(workspace, layout, true)};
  add_lengths(p, &regions);
  return regions;
}

std::vector<Region> gated_delta_forward_regions(const GatedDeltaProblem& p, void* workspace,
                                                const GatedDeltaWorkspace& layout) {
  std::vector<Region> regions = call_regions(p);
  regions.push_back({workspace, layout.total, "workspace", false, true});
  return regions;
}

std::vector<Region> gated_delta_recurrent_regions(const GatedDeltaProblem& p) {
  std::vector<Region> regions = call_regions(p);
  add_gates(p, &regions);
  const int64_t indices = p.sequences == 0 ? 0 : (p.sequences - 1) * p.token_indices.row_stride + p.token_slots;
  if (p.token_indices) regions.push_back(ints_region("token_state_indices", p.token_indices, indices));
  if (p.accepted_tokens) regions.push_back(ints_region("num_accepted_tokens", p.accepted_tokens, p.sequences));
  return regions;
}

}  // namespace flashdelta
