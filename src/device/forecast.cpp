#include "device/forecast.hpp"

#include <algorithm>
#include <functional>
#include <queue>

#include "device/attention_boxes.hpp"
#include "device/attention_forward.hpp"
#include "device/emulator_device.hpp"
#include "device/forecast_cycles.hpp"
#include "plan/kernel_rows.hpp"
#include "plan/plan.hpp"

namespace flashdelta {
namespace {

using emulator::Counters;

// Fitted: what a block loses each time that its warps, each at its own pace, wait for a tile, while no other block of
// its SM covers for it.
constexpr double kWaitCycles = 390;

// More blocks than this need no shares by SM: their tail is under a thousandth.
constexpr int64_t kMostBlocks = 4'000'000;

// One block of query rows on the emulator, over that many keys. All numbers are zero: after the first tile no maximum
// rises, as with all but extreme inputs.
Status count_block(const ForecastRequest& request, const ForwardRow& row, int64_t tokens, int64_t keys, bool causal,
                   Counters* counters) {
  const int64_t group = request.heads_q / request.heads_k;
  std::vector<uint16_t> q(tokens * group * request.head_dim), o(tokens * group * request.head_dim_v);
  std::vector<uint16_t> k(keys * request.head_dim), v(keys * request.head_dim_v);
  std::vector<float> lse(tokens * group);
  const auto rows = [&](std::vector<uint16_t>& x, int64_t length, int64_t heads, int64_t head_dim) {
    return Rows{reinterpret_cast<char*>(x.data()), request.dtype, length * heads * head_dim, heads * head_dim,
                head_dim};
  };
  AttentionProblem p;
  p.batch = p.rows_k = p.heads_k = 1;
  p.heads_q = group;
  p.head_dim = request.head_dim;
  p.head_dim_v = request.head_dim_v;
  p.dense_q = p.max_q = tokens;
  p.dense_k = p.max_k = keys;
  p.q = rows(q, tokens, group, p.head_dim);
  p.k = rows(k, keys, 1, p.head_dim);
  p.v = rows(v, keys, 1, p.head_dim_v);
  p.o = rows(o, tokens, group, p.head_dim_v);
  p.lse = lse.data();
  p.lse_head_stride = tokens;
  p.scale = 1;
  p.window_right = causal ? 0 : -1;
  EmulatorDevice device(*parse_arch("sm120"), 0, 0);
  const AttentionForwardParams params = forward_params(p, ForwardTile(row));
  const AttentionPairedParams with_boxes =
      paired_params(params, row.config.block_kv,
                    [&](const TensorLayout& layout, EncodedTensorMap* map) { return device.map_tensor(layout, map); });
  const std::string kernel = fmt::format("flashdelta_{}", row.name);
  const std::vector<Region> regions{{q.data(), q.size() * 2, "q"},
                                    {k.data(), k.size() * 2, "k"},
                                    {v.data(), v.size() * 2, "v"},
                                    {o.data(), o.size() * 2, "o", true, false},
                                    {lse.data(), lse.size() * 4, "lse", true, false}};
  KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = {1, static_cast<uint32_t>(row.config.value_parts), 1};
  launch.threads = static_cast<uint32_t>(row.config.threads());
  launch.dynamic_shared_bytes = static_cast<uint32_t>(row.config.dynamic_bytes());
  launch.parameters =
      row.config.paired ? std::as_bytes(std::span(&with_boxes, 1)) : std::as_bytes(std::span(&params, 1));
  launch.regions = regions;
  FLASHDELTA_RETURN_IF_ERROR(device.launch(launch, nullptr));
  *counters = device.counters();
  return {};
}

// What makes up every block: the whole of one, and what each further tile of keys adds.
struct BlockCosts {
  int64_t tiles = 0;  // in `whole`
  Cycles whole, tile, edge;
};

Status block_costs(const DeviceProfile& device, const ForecastRequest& request, const ForwardRow& row, int64_t resident,
                   BlockCosts* costs) {
  const int64_t block_kv = row.config.block_kv;
  const int64_t group = request.heads_q / request.heads_k;
  const int64_t tokens = std::min(std::max<int64_t>(row.config.block_q / group, 1), request.seqlen);
  const auto count = [&](int64_t keys, bool causal, Counters* counters) {
    return count_block(request, row, tokens, keys, causal, counters);
  };
  const double wait = row.config.own_pace() ? kWaitCycles * (row.config.stages == 1 ? 2 : 1) : 0;
  const auto cycles = [&](const Counters& c, int64_t tiles) {
    Cycles x = cycles_of(c, device, row.config.warps, resident);
    x.exposed += wait * static_cast<double>(tiles) / static_cast<double>(resident);
    return x;
  };
  Counters one, two, other;
  FLASHDELTA_RETURN_IF_ERROR(count(block_kv, false, &one));
  FLASHDELTA_RETURN_IF_ERROR(count(2 * block_kv, false, &two));
  costs->tile = cycles(difference(two, one), 1);
  if (request.causal) {  // the diagonal's tiles
    FLASHDELTA_RETURN_IF_ERROR(count(tokens, true, &other));
    costs->tiles = (tokens + block_kv - 1) / block_kv;
    costs->whole = cycles(other, costs->tiles);
    return {};
  }
  costs->tiles = 1;
  costs->whole = cycles(one, 1);
  if (request.seqlen < block_kv) {
    FLASHDELTA_RETURN_IF_ERROR(count(request.seqlen, false, &other));
    costs->whole = cycles(other, 1);
  } else if (const int64_t rest = request.seqlen % block_kv; rest != 0) {
    FLASHDELTA_RETURN_IF_ERROR(count(block_kv + rest, false, &other));
    costs->edge = cycles(difference(other, one), 1);
  }
  return {};
}

// The blocks of one (sequence, key head), those with most keys first.
std::vector<Cycles> blocks_of_a_head(const ForecastRequest& request, const ForwardRow& row, const BlockCosts& costs) {
  const int64_t group = request.heads_q / request.heads_k;
  const int64_t block_q = row.config.block_q, block_kv = row.config.block_kv;
  const int64_t count = (request.seqlen * group + block_q - 1) / block_q;
  std::vector<Cycles> blocks;
  for (int64_t b = count - 1; b >= 0; b--) {
    Cycles block = costs.whole;
    if (request.causal) {
      const int64_t keys = std::min(request.seqlen, ((b + 1) * block_q - 1) / group + 1);
      const int64_t tiles = (keys + block_kv - 1) / block_kv;
      block.add(costs.tile, static_cast<double>(std::max<int64_t>(tiles - costs.tiles, 0)));
    } else {
      block.add(costs.tile, static_cast<double>(std::max<int64_t>(request.seqlen / block_kv - 1, 0)));
      block.add(costs.edge, 1);
    }
    blocks.push_back(block);
  }
  return blocks;
}

// The parts of one of the query tiles that several blocks share.
std::vector<Cycles> parts_of_a_tile(const ForecastRequest& request, const ForwardRow& row, const BlockCosts& costs,
                                    int parts) {
  const int64_t tiles = (request.seqlen + row.config.block_kv - 1) / row.config.block_kv;
  const int64_t longest = (tiles + parts - 1) / parts;
  std::vector<Cycles> blocks;
  for (int64_t first = 0; first < parts * longest; first += longest) {
    const int64_t count = std::clamp<int64_t>(tiles - first, 0, longest);
    blocks.push_back(costs.whole);
    blocks.back().add(costs.tile, static_cast<double>(std::max<int64_t>(count - costs.tiles, 0)));
  }
  return blocks;
}

// Cycles until the last SM is done, each block going to the SM that is free first, in the kernel's order: the tiles of
// the pairs in flight in turn, then those of the next, then the late tiles of all. Of the tiles after tail.whole_blocks
// each is `parts`.
double makespan(const std::vector<Cycles>& head, int64_t pairs, bool causal, int sm_count, const TailSplit& tail,
                const std::vector<Cycles>& parts) {
  const auto count = static_cast<int64_t>(head.size());
  const int64_t early = count - late_tiles(causal, count), in_flight = heads_in_flight(causal, pairs);
  if (count * pairs > kMostBlocks) {
    double sum = 0;
    for (const Cycles& block : head) sum += block.total();
    return sum * static_cast<double>(pairs) / sm_count;
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < sm_count; i++) free_at.push(0);
  double last = 0;
  const auto run = [&](const Cycles& block) {
    const double end = free_at.top() + block.total();
    free_at.pop();
    free_at.push(end);
    last = std::max(last, end);
  };
  int64_t done = 0;
  for (int64_t first = 0; first < pairs; first += in_flight) {
    const int64_t together = std::min(in_flight, pairs - first);
    for (int64_t i = 0; i < early * together; i++) {
      if (done++ < tail.whole_blocks) {
        run(head[static_cast<size_t>(i / together)]);
      } else {
        for (const Cycles& part : parts) run(part);
      }
    }
  }
  for (int64_t i = early * pairs; i < count * pairs; i++) run(head[static_cast<size_t>(i / pairs)]);
  return last;
}

// q, k, v, o and lse each once: what one head's keys are read again for, L2 has.
double memory_bytes(const ForecastRequest& r) {
  const double features = static_cast<double>(r.heads_q + r.heads_k) * static_cast<double>(r.head_dim + r.head_dim_v);
  return static_cast<double>(r.batch * r.seqlen) *
         (features * static_cast<double>(dtype_size(r.dtype)) + 4.0 * static_cast<double>(r.heads_q));
}

double flops_of(const ForecastRequest& r) {
  const double length = static_cast<double>(r.seqlen);
  const double pairs = r.causal ? length * (length + 1) / 2 : length * length;
  return 2 * static_cast<double>(r.batch * r.heads_q) * pairs * static_cast<double>(r.head_dim + r.head_dim_v);
}

}  // namespace

Status forecast_attention(const DeviceProfile& device, const ForecastRequest& request, Forecast* forecast) {
  FLASHDELTA_RETURN_IF_ERROR(check_rates(device));
  const int64_t pairs = request.batch * request.heads_k;
  const QueryRows work{request.seqlen * request.heads_q / request.heads_k, pairs, device.sm_count};
  const ForwardRow* row = choose_paired_row(*request.arch, request.dtype, request.head_dim, request.head_dim_v, work);
  if (row == nullptr) {
    row =
        choose_forward_row(*request.arch, forward_rows_for(request.dtype, request.head_dim, request.head_dim_v), work);
  }
  if (row == nullptr) {
    return not_supported(fmt::format("attention_forward: no kernel for {} with head sizes {} and {} on {}",
                                     dtype_name(request.dtype), request.head_dim, request.head_dim_v,
                                     request.arch->name));
  }
  const int64_t blocks = work.blocks(row->config);
  const int64_t most =
      resident_blocks(*request.arch, row->config.dynamic_bytes(), row->config.threads(), row->register_ceiling);
  const int64_t resident =
      std::clamp<int64_t>((blocks + device.sm_count - 1) / device.sm_count, 1, std::max<int64_t>(most, 1));
  BlockCosts costs;
  FLASHDELTA_RETURN_IF_ERROR(block_costs(device, request, *row, resident, &costs));
  const std::vector<Cycles> head = blocks_of_a_head(request, *row, costs);

  TailSplit tail{blocks, 1};
  if (!request.causal && request.share_tail) tail = choose_tail(row->config, work, request.seqlen);
  const std::vector<Cycles> parts = parts_of_a_tile(request, *row, costs, tail.parts);

  const double hertz = *device.clock_ghz() * 1e9;
  // The parts of shared tiles are written beside the products, as o is, and read by a kernel of their own.
  const double parts_seconds =
      4.0 *
      static_cast<double>(tail.shared_tiles(blocks) * tail.parts * row->config.block_q * (request.head_dim_v + 1)) /
      memory_rate(device);
  const double memory_seconds = memory_bytes(request) / memory_rate(device) + parts_seconds;
  const double busy_seconds = makespan(head, pairs, request.causal, device.sm_count, tail, parts) / hertz;
  *forecast = {.device = std::string(device.name),
               .kernel = row->name,
               .blocks = blocks,
               .resident_blocks = most,
               .seconds = std::max(busy_seconds, memory_seconds) + parts_seconds,
               .flops = flops_of(request),
               .limits = {},
               .binding = "",
               .tail_parts = tail.parts};
  Cycles sum;
  for (const Cycles& block : head) sum.add(block, static_cast<double>(pairs) / device.sm_count);
  set_limits(sum, memory_seconds, hertz, forecast);
  return {};
}

}  // namespace flashdelta
