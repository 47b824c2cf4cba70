#include "device/attention_forward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/alignment.hpp"
#include "device/attention_boxes.hpp"
#include "plan/kernel_rows.hpp"
#include "plan/plan.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr double kLog2E = 1.4426950408889634;

bool needs_general(const AttentionProblem& p) { return p.softcap > 0 || p.page_table; }

const std::vector<const ForwardRow*>& rows_for(const AttentionProblem& p) {
  return forward_rows_for(p.q.dtype, p.head_dim, p.head_dim_v, needs_general(p));
}

const ForwardRow* choose_row(const AttentionProblem& p, const ArchProfile& arch, const QueryRows& work) {
  const ForwardRow* row =
      needs_general(p) ? nullptr : choose_paired_row(arch, p.q.dtype, p.head_dim, p.head_dim_v, work);
  return row != nullptr ? row : choose_forward_row(arch, rows_for(p), work);
}

QueryRows query_rows(const AttentionProblem& p, int sm_count) {
  return {p.max_q * p.group(), p.heads_k * p.batch, sm_count};
}

int64_t outer_q(const AttentionProblem& p) { return p.cu_seqlens_q ? 1 : p.batch; }

Region region(const char* name, const void* data, int64_t elements, int64_t size, bool written = false) {
  return {data, static_cast<size_t>(elements * size), name, written, !written};
}

// What a strided tensor of `rows` reaches from its first element.
int64_t reach(const Rows& rows, int64_t outer, int64_t tokens, int64_t heads, int64_t features) {
  if (outer == 0 || tokens == 0) return 0;
  return (outer - 1) * rows.outer_stride + (tokens - 1) * rows.token_stride + (heads - 1) * rows.head_stride + features;
}

void add_ints(std::vector<Region>* regions, const char* name, const Ints& ints, int64_t count) {
  if (ints) regions->push_back(region(name, ints.data, count, dtype_size(ints.dtype)));
}

std::vector<Region> inputs_of(const AttentionProblem& p) {
  const int64_t size = dtype_size(p.q.dtype), tokens_k = p.page_table ? p.page_size : p.dense_k;
  std::vector<Region> regions = {
      region("q", p.q.data, reach(p.q, outer_q(p), p.dense_q, p.heads_q, p.head_dim), size),
      region("k", p.k.data, reach(p.k, p.rows_k, tokens_k, p.heads_k, p.head_dim), size),
      region("v", p.v.data, reach(p.v, p.rows_k, tokens_k, p.heads_k, p.head_dim_v), size),
  };
  add_ints(&regions, "cu_seqlens_q", p.cu_seqlens_q, p.batch + 1);
  add_ints(&regions, "cu_seqlens_k", p.cu_seqlens_k, p.batch + 1);
  add_ints(&regions, "seqused_k", p.seqused_k, p.batch);
  add_ints(&regions, "cache_batch_idx", p.cache_batch_idx, p.batch);
  if (p.page_table && p.batch > 0) {
    add_ints(&regions, "page_table", p.page_table, (p.batch - 1) * p.page_table.row_stride + p.dense_k / p.page_size);
  }
  if (p.sink) regions.push_back(region("sink", p.sink.data, p.heads_q, dtype_size(p.sink.dtype)));
  return regions;
}

std::vector<Region> outputs_of(const AttentionProblem& p) {
  std::vector<Region> regions = {
      region("o", p.o.data, reach(p.o, outer_q(p), p.dense_q, p.heads_q, p.head_dim_v), dtype_size(p.o.dtype), true)};
  if (p.lse != nullptr && outer_q(p) > 0 && p.dense_q > 0) {
    const int64_t count = (outer_q(p) - 1) * p.lse_outer_stride + (p.heads_q - 1) * p.lse_head_stride + p.dense_q;
    regions.push_back(region("lse", p.lse, count, 4, true));
  }
  return regions;
}

// Rows of o in all, and bytes of a part's o and lse.
int64_t rows_of_o(const AttentionProblem& p) { return outer_q(p) * p.dense_q * p.heads_q; }
int64_t part_bytes(const AttentionProblem& p) { return rows_of_o(p) * (p.head_dim_v + 1) * 4; }

// Rows that blocks store parts of, of query tiles that several share.
int64_t tail_rows(const ForwardConfig& config, const TailSplit& tail, int64_t blocks) {
  return tail.shared_tiles(blocks) * tail.parts * config.block_q;
}

// Where all blocks are known to have the same work: lengths on the device are not.
bool equal_blocks(const AttentionProblem& p) {
  return !p.cu_seqlens_q && !p.cu_seqlens_k && !p.seqused_k && p.window_left < 0 && p.window_right < 0;
}

// How many of `blocks` query tiles' keys are shared by several blocks, and by how many, so that an SM's busiest place
// has as few tiles as may be. It follows from shapes and the card alone, so the same call gives the same bits.
int splits_for(const AttentionProblem& p, int64_t block_q, int64_t block_kv, int64_t blocks, int64_t places) {
  constexpr int64_t kLeastTiles = 4, kMostSplits = 32;  // a lane of the combining warp each
  if (blocks == 0) return 1;
  int64_t keys = p.max_k;
  if (p.window_left >= 0 && p.window_right >= 0 && p.window_left < keys && p.window_right < keys) {
    keys = std::min(keys, p.window_left + p.window_right + 1 + block_q / p.group());
  }
  const int64_t tiles = ceil_div(keys, block_kv);
  // A split is worth it where it saves a tenth: parts are stored and read again.
  const auto cost = [&](int64_t splits) { return ceil_div(blocks * splits, places) * ceil_div(tiles, splits); };
  int64_t best = 1;
  for (int64_t splits = 2; splits <= std::min(tiles / kLeastTiles, kMostSplits); splits++) {
    if (10 * cost(splits) < 9 * cost(best)) best = splits;
  }
  return static_cast<int>(best);
}

}  // namespace

Status attention_forward_supported(const AttentionProblem& p) {
  if (p.q.dtype == FLASHDELTA_FP32) {
    return not_supported("q: the GPU kernels take bf16 and fp16, not fp32; the cpu backend takes all three");
  }
  if (rows_for(p).empty()) {
    int64_t most = 0;
    for (const ForwardRow& row : forward_rows) most = std::max<int64_t>(most, row.config.head_dim);
    return not_supported(
        fmt::format("q: the GPU kernels take head sizes up to {}, not {} with values of {}; the cpu "
                    "backend takes up to 512",
                    most, p.head_dim, p.head_dim_v));
  }
  for (const auto& [name, rows] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}}) {
    FLASHDELTA_RETURN_IF_ERROR(check_alignment(name, *rows));
  }
  if (p.dense_q > kMostTokens / p.group() || p.dense_k > kMostTokens || p.batch > kMostTokens / p.heads_k ||
      p.rows_k > kMostTokens) {
    return not_supported("q: the GPU kernels take up to 2^30 tokens, heads and pages; the cpu backend more");
  }
  return {};
}

Status choose_forward(const AttentionProblem& p, const ArchProfile& arch, int sm_count, ForwardChoice* choice) {
  FLASHDELTA_RETURN_IF_ERROR(attention_forward_supported(p));
  const QueryRows work = query_rows(p, sm_count);
  *choice = {choose_row(p, arch, work), nullptr, 1, {}};
  if (choice->row == nullptr) {
    return not_supported(
        fmt::format("q: no kernel for head sizes {} and {} fits {}", p.head_dim, p.head_dim_v, arch.name));
  }
  const int64_t blocks = work.blocks(choice->row->config);
  if (blocks > kMostInt32) return not_supported("q: over 2^31 blocks of query rows");
  choice->tail = {blocks, 1};
  if (equal_blocks(p)) choice->tail = choose_tail(choice->row->config, work, p.max_k);
  if (rows_of_o(p) > kMostTokens) return {};
  const DecodeRow* decode =
      choose_decode_row(arch, p.q.dtype, p.head_dim, p.head_dim_v, work.rows, p.page_table ? p.page_size : 0);
  const bool few = decode != nullptr && work.rows <= decode->config.block_q();
  if (!few && work.fill(choice->row->config.block_q, 1)) return {};
  if (decode != nullptr) {
    const int64_t block_q = decode->config.block_q(), places = int64_t{sm_count} * decode->resident_blocks;
    const int splits = splits_for(p, block_q, decode->config.round_kv(), work.blocks(block_q), places);
    if (few || splits > 1) *choice = {nullptr, decode, splits, {}};
    return {};
  }
  const ForwardRow* general =
      choose_forward_row(arch, forward_rows_for(p.q.dtype, p.head_dim, p.head_dim_v, true), work);
  if (general == nullptr) return {};
  const ForwardConfig& config = general->config;
  const int splits = splits_for(p, config.block_q, config.block_kv, work.blocks(config) * config.value_parts,
                                int64_t{sm_count} * general->resident_blocks);
  if (splits > 1) *choice = {general, nullptr, splits, {}};
  return {};
}

ForwardTile::ForwardTile(const ForwardRow& row)
    : block_q(row.config.block_q),
      block_kv(row.config.block_kv),
      head_dim(row.config.head_dim),
      head_dim_v(row.config.head_dim_v),
      threads(row.config.threads()),
      shared_bytes(row.config.dynamic_bytes()),
      value_parts(row.config.value_parts) {}

ForwardTile::ForwardTile(const DecodeRow& row)
    : block_q(row.config.block_q()),
      block_kv(row.config.block_kv),
      head_dim(row.config.head_dim),
      head_dim_v(row.config.head_dim_v),
      threads(row.config.threads()),
      shared_bytes(row.config.shared_bytes()),
      value_parts(1) {}

AttentionForwardParams forward_params(const AttentionProblem& p, const ForwardTile& tile) {
  AttentionForwardParams out{};
  out.q = p.q.data;
  out.k = p.k.data;
  out.v = p.v.data;
  out.o = p.o.data;
  out.lse = p.lse;
  const auto strides = [](const Rows& rows, int64_t* batch, int64_t* token, int64_t* head) {
    *batch = rows.outer_stride;
    *token = rows.token_stride;
    *head = rows.head_stride;
  };
  strides(p.q, &out.q_batch_stride, &out.q_token_stride, &out.q_head_stride);
  strides(p.k, &out.k_batch_stride, &out.k_token_stride, &out.k_head_stride);
  strides(p.v, &out.v_batch_stride, &out.v_token_stride, &out.v_head_stride);
  strides(p.o, &out.o_batch_stride, &out.o_token_stride, &out.o_head_stride);
  out.lse_batch_stride = p.lse_outer_stride;
  out.lse_head_stride = p.lse_head_stride;
  out.cu_seqlens_q = p.cu_seqlens_q.data;
  out.cu_seqlens_k = p.cu_seqlens_k.data;
  out.seqused_k = p.seqused_k.data;
  out.cache_batch_idx = p.cache_batch_idx.data;
  out.page_table = static_cast<const int32_t*>(p.page_table.data);
  out.page_table_stride = p.page_table.row_stride;
  out.sink = p.sink.data;
  out.seqused_k_is_64 = p.seqused_k.dtype == FLASHDELTA_INT64;
  out.cache_batch_idx_is_64 = p.cache_batch_idx.dtype == FLASHDELTA_INT64;
  out.sink_is_fp32 = p.sink.dtype == FLASHDELTA_FP32;
  out.page_size = static_cast<int32_t>(p.page_size);
  out.rows_k = static_cast<int32_t>(p.rows_k);
  out.cu_seqlens_q_is_64 = p.cu_seqlens_q.dtype == FLASHDELTA_INT64;
  out.cu_seqlens_k_is_64 = p.cu_seqlens_k.dtype == FLASHDELTA_INT64;
  out.batch = static_cast<int32_t>(p.batch);
  out.heads_k = static_cast<int32_t>(p.heads_k);
  out.group = static_cast<int32_t>(p.group());
  out.head_dim = static_cast<int32_t>(p.head_dim);
  out.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  out.length_q = static_cast<int32_t>(p.dense_q);
  out.length_k = static_cast<int32_t>(p.dense_k);
  // A bound of as many tokens as a sequence may have is none.
  out.window_left = p.window_left >= kMostTokens ? -1 : static_cast<int32_t>(p.window_left);
  out.window_right = p.window_right >= kMostTokens ? -1 : static_cast<int32_t>(p.window_right);
  out.o_is_fp32 = p.o.dtype == FLASHDELTA_FP32;
  out.scale_log2 = p.softcap > 0 ? 1.f : static_cast<float>(p.scale * kLog2E);
  out.softmax_scale = out.scale_log2 == 0 ? 1.f : std::fabs(out.scale_log2);
  if (p.softcap > 0) {
    const double cap = std::clamp(p.softcap, 1e-30, 1e30);  // fp32 holds it and its inverse
    out.softcap_in = static_cast<float>(std::clamp(p.scale / cap, -1e37, 1e37));
    out.softcap_log2 = static_cast<float>(cap * kLog2E);
  }
  out.q_tiles = static_cast<int32_t>(ceil_div(p.max_q * p.group(), tile.block_q));
  out.heads_in_flight = static_cast<int32_t>(heads_in_flight(p.window_right >= 0, p.heads_k * p.batch));
  const bool whole_rows = p.head_dim == tile.head_dim && p.head_dim_v == tile.head_dim_v;
  out.whole_tile = whole_rows ? tile.block_kv : static_cast<int32_t>(kMostInt32);
  out.longest_first = p.window_right >= 0;
  out.late_tiles = static_cast<int32_t>(late_tiles(p.window_right >= 0, out.q_tiles));
  return out;
}

uint32_t held_shared_bytes(const DeviceInfo& device, const ArchProfile& arch, int64_t bytes, int64_t threads) {
  const int64_t most = resident_blocks(arch, bytes, threads);
  if (&arch == device.arch || most == 0) return static_cast<uint32_t>(bytes);
  // One byte more than a share of an SM among most + 1 blocks leaves room for `most`.
  const int64_t share = device.shared_bytes_sm / (most + 1) - device.shared_bytes_reserved + 1;
  const int64_t rounded = ceil_div(share, 128) * 128;
  return static_cast<uint32_t>(std::clamp(rounded, bytes, device.shared_bytes_block));
}

namespace {

// The same tensors in the workspace: o [splits,rows,DV] in fp32, lse [splits,B,HQ,TQ].
AttentionForwardParams into_workspace(const AttentionProblem& p, AttentionForwardParams params, int splits,
                                      void* workspace) {
  const int64_t rows = rows_of_o(p);
  params.o = workspace;
  params.lse = static_cast<float*>(workspace) + splits * rows * p.head_dim_v;
  params.o_is_fp32 = 1;
  params.o_head_stride = p.head_dim_v;
  params.o_token_stride = p.heads_q * p.head_dim_v;
  params.o_batch_stride = p.dense_q * params.o_token_stride;
  params.lse_head_stride = p.dense_q;
  params.lse_batch_stride = p.heads_q * p.dense_q;
  params.o_split_stride = rows * p.head_dim_v;
  params.lse_split_stride = rows;
  params.splits = splits;
  params.sink = nullptr;
  return params;
}

AttentionCombineParams combine_params(const AttentionProblem& p, const AttentionForwardParams& direct,
                                      const AttentionForwardParams& parts) {
  AttentionCombineParams out{};
  out.partial_o = static_cast<const float*>(parts.o);
  out.partial_lse = parts.lse;
  out.o = direct.o;
  out.lse = direct.lse;
  out.sink = direct.sink;
  out.o_batch_stride = direct.o_batch_stride;
  out.o_token_stride = direct.o_token_stride;
  out.o_head_stride = direct.o_head_stride;
  out.lse_batch_stride = direct.lse_batch_stride;
  out.lse_head_stride = direct.lse_head_stride;
  out.cu_seqlens_q = direct.cu_seqlens_q;
  out.cu_seqlens_q_is_64 = direct.cu_seqlens_q_is_64;
  out.sink_is_fp32 = direct.sink_is_fp32;
  out.o_is_fp32 = direct.o_is_fp32;
  out.batch = direct.batch;
  out.tokens = direct.length_q;
  out.heads = static_cast<int32_t>(p.heads_q);
  out.head_dim_v = direct.head_dim_v;
  out.rows = static_cast<int32_t>(rows_of_o(p));
  out.splits = parts.splits;
  return out;
}

std::string kernel_of(const ForwardChoice& choice) {
  return kernel_entry(choice.decode != nullptr ? choice.decode->name : choice.row->name);
}

constexpr int kCombineThreads = ForwardCombineConfig{Element::bf16}.threads();

std::string combine_kernel(std::span<const ForwardCombineRow> rows, const AttentionProblem& p) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const ForwardCombineRow& r) { return is_element(r.config.element, p.q.dtype); });
  return kernel_entry(row->name);
}

size_t workspace_bytes(const AttentionProblem& p, const ForwardChoice& choice, int sm_count) {
  if (choice.splits > 1) return static_cast<size_t>(choice.splits * part_bytes(p));
  if (choice.tail.parts <= 1) return 0;
  const ForwardConfig& config = choice.row->config;
  const int64_t rows = tail_rows(config, choice.tail, query_rows(p, sm_count).blocks(config));
  return static_cast<size_t>(rows * (p.head_dim_v + 1) * 4);
}

// o of all parts lies in front of their lse.
void set_tail(const TailSplit& tail, int64_t rows, void* workspace, AttentionForwardParams* params) {
  params->whole_blocks = static_cast<int32_t>(tail.whole_blocks);
  params->tail_parts = tail.parts;
  params->tail_o = static_cast<float*>(workspace);
  params->tail_lse = params->tail_o + rows * params->head_dim_v;
}

void append(const std::vector<Region>& more, std::vector<Region>* regions) {
  regions->insert(regions->end(), more.begin(), more.end());
}

Status launch_combine(Device& device, const AttentionProblem& p, const std::string& kernel,
                      const std::array<uint32_t, 3>& grid, std::span<const std::byte> parameters, Region workspace,
                      void* stream) {
  const std::vector<Region> regions = regions_for(device, [&] {
    std::vector<Region> all = inputs_of(p);
    append(outputs_of(p), &all);
    workspace.written = false, workspace.defined = true;
    all.push_back(workspace);
    return all;
  });
  KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = grid;
  launch.threads = kCombineThreads;
  launch.parameters = parameters;
  launch.regions = regions;
  return device.launch(launch, stream);
}

}  // namespace

Status attention_forward_workspace_on(const AttentionProblem& p, const ArchProfile& arch, int sm_count, size_t* bytes) {
  ForwardChoice choice;
  FLASHDELTA_RETURN_IF_ERROR(choose_forward(p, arch, sm_count, &choice));
  *bytes = workspace_bytes(p, choice, sm_count);
  return {};
}

Status prepare_attention_forward(Device& device, const ArchProfile& arch, const AttentionProblem& p) {
  ForwardChoice choice;
  FLASHDELTA_RETURN_IF_ERROR(choose_forward(p, arch, device.info().sm_count, &choice));
  FLASHDELTA_RETURN_IF_ERROR(device.prepare(kernel_of(choice)));
  if (choice.tail.parts > 1) return device.prepare(combine_kernel(forward_tail_rows, p));
  return choice.splits > 1 ? device.prepare(combine_kernel(forward_combine_rows, p)) : Status{};
}

Status attention_forward_on(Device& device, const ArchProfile& arch, const AttentionProblem& p, void* workspace,
                            void* stream) {
  ForwardChoice choice;
  const int sm_count = device.info().sm_count;
  FLASHDELTA_RETURN_IF_ERROR(choose_forward(p, arch, sm_count, &choice));
  const ForwardTile tile = choice.decode != nullptr ? ForwardTile(*choice.decode) : ForwardTile(*choice.row);
  const int64_t count = query_rows(p, sm_count).blocks(tile.block_q);
  if (count == 0) return {};
  const bool split = choice.splits > 1, tail = choice.tail.parts > 1;
  const AttentionForwardParams direct = forward_params(p, tile);
  AttentionForwardParams params = split ? into_workspace(p, direct, choice.splits, workspace) : direct;
  if (tail) set_tail(choice.tail, tail_rows(choice.row->config, choice.tail, count), workspace, &params);
  const Region parts =
      region("workspace", workspace, static_cast<int64_t>(workspace_bytes(p, choice, sm_count)), 1, true);
  const std::vector<Region> regions = regions_for(device, [&] {
    std::vector<Region> all = inputs_of(p);
    if (split || tail) all.push_back(parts);
    if (!split) append(outputs_of(p), &all);
    return all;
  });
  const std::string kernel = kernel_of(choice);
  KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = {static_cast<uint32_t>(tail ? choice.tail.grid(count) : count), static_cast<uint32_t>(tile.value_parts),
                 static_cast<uint32_t>(choice.splits)};
  launch.threads = static_cast<uint32_t>(tile.threads);
  launch.dynamic_shared_bytes = held_shared_bytes(device.info(), arch, tile.shared_bytes, tile.threads);
  launch.parameters = std::as_bytes(std::span(&params, 1));
  AttentionPairedParams with_boxes;
  if (choice.row != nullptr && choice.row->config.paired) {
    with_boxes = paired_params(params, tile.block_kv, [&](const TensorLayout& layout, EncodedTensorMap* map) {
      return arch.features.bulk_copy && device.map_tensor(layout, map);
    });
    launch.parameters = std::as_bytes(std::span(&with_boxes, 1));
  }
  launch.regions = regions;
  FLASHDELTA_RETURN_IF_ERROR(device.launch(launch, stream));
  if (tail) {
    const std::array<uint32_t, 3> grid{static_cast<uint32_t>(tile.block_q / (kCombineThreads / 32)),
                                       static_cast<uint32_t>(choice.tail.shared_tiles(count)), 1};
    return launch_combine(device, p, combine_kernel(forward_tail_rows, p), grid, std::as_bytes(std::span(&params, 1)),
                          parts, stream);
  }
  if (!split) return {};
  const AttentionCombineParams combine = combine_params(p, direct, params);
  const std::array<uint32_t, 3> grid{static_cast<uint32_t>(ceil_div(combine.rows, kCombineThreads / 32)), 1, 1};
  return launch_combine(device, p, combine_kernel(forward_combine_rows, p), grid, std::as_bytes(std::span(&combine, 1)),
                        parts, stream);
}

}  // namespace flashdelta
