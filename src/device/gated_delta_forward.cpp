#include "device/gated_delta_forward.hpp"

#include <limits>
#include <tuple>

#include "device/alignment.hpp"
#include "device/attention_forward.hpp"
#include "device/gated_delta_regions.hpp"
#include "plan/kernel_rows.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kMostTokens = (int64_t{1} << 30) - 64;
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t blocks(const GatedDeltaProblem& p, int64_t block_v) {
  return p.sequences * p.heads_v * ceil_div(p.dim_v, block_v);
}

// The row of another table that goes with a forward row.
template <class Row, size_t N>
const Row* with_forward(const Row (&rows)[N], const GatedDeltaForwardConfig& forward, const ArchProfile& arch) {
  for (const Row& row : rows) {
    if (row.config.shared_bytes() > arch.shared_bytes_block) continue;
    if constexpr (requires { row.config.first; }) {
      if (row.config.first == forward) return &row;
    } else if constexpr (requires { row.config.prepare; }) {
      if (row.config.prepare.element == forward.element && row.config.prepare.dim_k == forward.dim_k) return &row;
    } else if constexpr (requires { row.config.narrow; }) {
      if (row.config.narrow == forward) return &row;
    } else {
      if (row.config.dim_k == forward.dim_k) return &row;
    }
  }
  return nullptr;
}

// The row of a table that holds the key size with the least padding. Of the preparation there are several: the one
// whose warps take a key head's value heads in fewer turns, else the one with fewer warps, of which more blocks fit an
// SM.
template <class Row, size_t N>
const Row* choose(const Row (&rows)[N], const GatedDeltaProblem& p, const ArchProfile& arch) {
  const auto rank = [&](const Row& row) {
    return std::tuple(row.config.dim_k, ceil_div(p.group(), row.config.warps), row.config.warps);
  };
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (!is_element(row.config.element, p.q.dtype) || row.config.dim_k < p.dim_k) continue;
    if (row.config.shared_bytes() > arch.shared_bytes_block) continue;
    if (best == nullptr || rank(row) < rank(*best)) best = &row;
  }
  return best;
}

// A call's later kernels wait for the one before them by themselves, so that they, and their blocks where there is
// room, may be there when that ends.
constexpr bool kBesidePrevious = true;

template <class Row, class Params>
Status launch(Device& device, const ArchProfile& arch, const Row& row, int64_t count, const Params& params,
              std::span<const Region> regions, void* stream, bool beside_previous = false) {
  if (count == 0) return {};
  const std::string kernel = kernel_entry(row.name);
  KernelLaunch out;
  out.kernel = kernel;
  out.grid = {static_cast<uint32_t>(count), 1, 1};
  out.threads = static_cast<uint32_t>(row.config.threads());
  out.dynamic_shared_bytes = held_shared_bytes(device.info(), arch, row.config.shared_bytes(), row.config.threads());
  out.parameters = std::as_bytes(std::span(&params, 1));
  out.regions = regions;
  out.beside_previous = beside_previous;
  return device.launch(out, stream);
}

// Wide blocks have no registers for more than this, and no use where all values fit narrow ones.
bool gated_delta_takes_wide_blocks(const GatedDeltaProblem& p) {
  return !p.checkpoints && p.o.dtype != FLASHDELTA_FP32 && p.dim_v > 64;
}

}  // namespace

bool gated_delta_is_recurrent(const GatedDeltaProblem& p) {
  return p.token_indices || p.max_tokens <= gated_delta_recurrent_tokens;
}

Status gated_delta_forward_supported(const GatedDeltaProblem& p) {
  if (p.q.dtype == FLASHDELTA_FP32) {
    return not_supported("q: the GPU kernels take bf16 and fp16, not fp32; the cpu backend takes all three");
  }
  if (p.chunk != 0 && p.chunk != gated_delta_chunk && !gated_delta_is_recurrent(p)) {
    return not_supported(
        fmt::format("chunk: the GPU kernels have chunks of {} tokens, not {}; the cpu backend has both",
                    gated_delta_chunk, p.chunk));
  }
  for (const auto& [name, rows] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}}) {
    FLASHDELTA_RETURN_IF_ERROR(check_alignment(name, *rows));
  }
  if (p.tokens > kMostTokens || p.sequences * p.heads_v > kMostBlocks) {
    return not_supported("q: the GPU kernels count tokens and heads in 32 bits; the cpu backend in 64");
  }
  return {};
}

Status choose_gated_delta_kernels(const GatedDeltaProblem& p, const ArchProfile& arch, GatedDeltaKernels* kernels) {
  FLASHDELTA_RETURN_IF_ERROR(gated_delta_forward_supported(p));
  if (gated_delta_is_recurrent(p)) {
    kernels->recurrent = recurrent_row_for(p.q.dtype, p.dim_k);
    if (blocks(p, kernels->recurrent->config.block_v) <= kMostBlocks) return {};
    return not_supported("q: over 2^31 blocks of sequences and heads");
  }
  kernels->prepare = choose(gated_delta_prepare_rows, p, arch);
  kernels->forward = choose(gated_delta_forward_rows, p, arch);
  if (kernels->prepare == nullptr || kernels->forward == nullptr) {
    return not_supported(fmt::format("q: no kernel for head sizes {} and {} fits {}", p.dim_k, p.dim_v, arch.name));
  }
  if (blocks(p, kernels->forward->config.block_v) > kMostBlocks ||
      gated_delta_chunk_slots(p) * p.heads_k > kMostBlocks) {
    return not_supported("q: over 2^31 blocks of chunks and heads");
  }
  if (arch.features.programmatic_launch) {
    kernels->ahead = with_forward(gated_delta_ahead_rows, kernels->forward->config, arch);
  }
  if (gated_delta_takes_wide_blocks(p)) {
    kernels->wide = with_forward(gated_delta_wide_rows, kernels->forward->config, arch);
  }
  kernels->summary = with_forward(gated_delta_summary_rows, kernels->forward->config, arch);
  kernels->scan = with_forward(gated_delta_scan_rows, kernels->forward->config, arch);
  return {};
}

int64_t gated_delta_chunk_slots(const GatedDeltaProblem& p) {
  if (!p.cu_seqlens) return p.sequences * ceil_div(p.tokens, gated_delta_chunk);
  return p.sequences == 0 ? 0 : p.tokens / gated_delta_chunk + p.sequences;
}

int64_t gated_delta_line(const GatedDeltaProblem& p) {
  return (gated_delta_chunk_slots(p) + p.sequences * gated_delta_sequence_chunks) * p.heads_k;
}

Status gated_delta_forward_workspace_on(const GatedDeltaProblem& p, const ArchProfile& arch, int sm_count,
                                        size_t* bytes) {
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(p, arch, &kernels));
  *bytes = gated_delta_workspace(p, kernels, gated_delta_parts(p, kernels, sm_count)).total;
  return {};
}

Status prepare_gated_delta_forward(Device& device, const ArchProfile& arch, const GatedDeltaProblem& p) {
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(p, arch, &kernels));
  if (kernels.recurrent != nullptr) return device.prepare(kernel_entry(kernels.recurrent->name));
  const GatedDeltaParts parts = gated_delta_parts(p, kernels, device.info().sm_count);
  const bool ahead = parts.ahead_blocks > 0;
  FLASHDELTA_RETURN_IF_ERROR(device.prepare(kernel_entry(ahead ? kernels.ahead->name : kernels.prepare->name)));
  if (parts.wide()) return device.prepare(kernel_entry(kernels.wide->name));
  if (parts.composed()) {
    FLASHDELTA_RETURN_IF_ERROR(device.prepare(kernel_entry(kernels.summary->name)));
    FLASHDELTA_RETURN_IF_ERROR(device.prepare(kernel_entry(kernels.scan->name)));
  }
  return device.prepare(kernel_entry(kernels.forward->name));
}

Status gated_delta_forward_on(Device& device, const ArchProfile& arch, const GatedDeltaProblem& p, void* workspace,
                              void* stream) {
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(p, arch, &kernels));
  const GatedDeltaParts parts = gated_delta_parts(p, kernels, device.info().sm_count);
  return gated_delta_forward_in_parts(device, arch, p, kernels, parts, workspace, stream);
}

namespace {

// First parts, and the states before all others: summaries, and the scan over them.
Status compose(Device& device, const ArchProfile& arch, const GatedDeltaProblem& p, const GatedDeltaKernels& kernels,
               int64_t numbers, const GatedDeltaForwardParams& params, const GatedDeltaWorkspace& layout,
               void* stream) {
  const std::vector<Region> summary =
      regions_for(device, [&] { return gated_delta_summary_regions(p, params.records, layout); });
  const int64_t blocks = std::max(params.value_blocks, params.summary_blocks);
  FLASHDELTA_RETURN_IF_ERROR(
      launch(device, arch, *kernels.summary, numbers * p.heads_v * blocks, params, summary, stream, kBesidePrevious));
  const std::vector<Region> scan =
      regions_for(device, [&] { return gated_delta_scan_regions(p, params.records, layout); });
  const int64_t slices = p.dim_v / GatedDeltaScanConfig::columns;
  return launch(device, arch, *kernels.scan, p.sequences * p.heads_v * slices, params, scan, stream, kBesidePrevious);
}

}  // namespace

Status gated_delta_forward_in_parts(Device& device, const ArchProfile& arch, const GatedDeltaProblem& p,
                                    const GatedDeltaKernels& kernels, const GatedDeltaParts& parts, void* workspace,
                                    void* stream) {
  if (kernels.recurrent != nullptr) {
    const GatedDeltaRecurrentConfig& config = kernels.recurrent->config;
    const std::vector<Region> regions = regions_for(device, [&] { return gated_delta_recurrent_regions(p); });
    return launch(device, arch, *kernels.recurrent, blocks(p, config.block_v), gated_delta_recurrent_params(p, config),
                  regions, stream);
  }
  const GatedDeltaWorkspace layout = gated_delta_workspace(p, kernels, parts);
  GatedDeltaForwardParams params = gated_delta_forward_params(p, kernels, parts, workspace);
  map_gated_delta_tensors(device, arch, p, &params);
  const std::vector<Region> prepare =
      regions_for(device, [&] { return gated_delta_prepare_regions(p, workspace, layout); });
  if (parts.ahead_blocks > 0) {
    FLASHDELTA_RETURN_IF_ERROR(launch(device, arch, *kernels.ahead, parts.ahead_blocks, params, prepare, stream));
  } else {
    const int64_t count = gated_delta_chunk_slots(p) * p.heads_k;
    FLASHDELTA_RETURN_IF_ERROR(launch(device, arch, *kernels.prepare, count, params, prepare, stream));
  }
  int64_t count = blocks(p, kernels.forward->config.block_v) * parts.most;
  if (parts.composed()) {
    const int64_t numbers = gated_delta_part_slots(p, parts).numbers;
    FLASHDELTA_RETURN_IF_ERROR(compose(device, arch, p, kernels, numbers, params, layout, stream));
    count = numbers * p.heads_v * params.value_blocks;
  }
  const std::vector<Region> regions =
      regions_for(device, [&] { return gated_delta_forward_regions(p, workspace, layout); });
  if (parts.wide()) {
    const int64_t narrow_units = p.sequences * p.heads_v - parts.wide_units;
    count = parts.ranges > 0 ? parts.ranges * p.group() * params.wide_value_blocks
                             : parts.wide_units * params.wide_value_blocks + narrow_units * params.value_blocks;
    return launch(device, arch, *kernels.wide, count, params, regions, stream, kBesidePrevious);
  }
  return launch(device, arch, *kernels.forward, count, params, regions, stream, kBesidePrevious);
}

}  // namespace flashdelta
