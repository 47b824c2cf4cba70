#include <cmath>

#include "device/emulator_device.hpp"
#include "device/forecast.hpp"
#include "device/forecast_cycles.hpp"
#include "device/forwarding_device.hpp"
#include "device/gated_delta_forward.hpp"
#include "plan/plan.hpp"

namespace flashdelta {
namespace {

using emulator::Counters;

// Fitted: cycles that a chunk's step waits for itself, with one warp a quarter; and the part of the preparation's time
// in which its warps issue.
constexpr double kStepCycles = 400;
constexpr double kPreparationBusy = 0.7;
constexpr double kRecurrentBusy = 0.72;  // the same of the recurrent kernel's
// From a block's launch to its first chunk, and from its last to the next block, but for its states.
constexpr double kBlockSeconds = 5e-6;
constexpr int64_t kChunks = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The emulator, with what each launch counted.
class CountingDevice final : public ForwardingDevice {
 public:
  CountingDevice() : ForwardingDevice(emulator_) {}

  Status launch(const KernelLaunch& launch, void* stream) override {
    const Counters before = emulator_.counters();
    FLASHDELTA_RETURN_IF_ERROR(emulator_.launch(launch, stream));
    launches.push_back(difference(emulator_.counters(), before));
    return {};
  }

  std::vector<Counters> launches;

 private:
  EmulatorDevice emulator_{*parse_arch("sm120"), 0, 0};
};

// A call's kernels over one key head and that many tokens of zeros, whose gates are zero too, in blocks of one width;
// states: from one to another.
Status count_tokens(const GatedDeltaForecastRequest& r, int64_t tokens, bool wide, bool states,
                    std::vector<Counters>* launches) {
  const int64_t group = r.heads_v / r.heads_k, elements = states ? group * r.dim_k * r.dim_v : 0;
  std::vector<float> initial(elements), final(elements);
  std::vector<uint16_t> q(tokens * r.dim_k), v(tokens * group * r.dim_v), o(tokens * group * r.dim_v);
  std::vector<float> gates(tokens * group);
  const auto rows = [&](void* data, flashdelta_dtype dtype, int64_t heads, int64_t features) {
    return Rows{static_cast<char*>(data), dtype, 0, heads * features, features};
  };
  GatedDeltaProblem p;
  p.sequences = p.heads_k = 1;
  p.heads_v = group;
  p.dim_k = r.dim_k, p.dim_v = r.dim_v;
  p.tokens = p.max_tokens = tokens;
  p.q = p.k = rows(q.data(), r.dtype, 1, r.dim_k);
  p.v = rows(v.data(), r.dtype, group, r.dim_v);
  p.o = rows(o.data(), r.dtype, group, r.dim_v);
  p.g = p.beta = rows(gates.data(), FLASHDELTA_FP32, group, 1);
  p.scale = 1;
  p.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_OFF;
  const auto state = [&](std::vector<float>& x) {
    return States{reinterpret_cast<char*>(x.data()), FLASHDELTA_FP32, 1, elements, r.dim_k * r.dim_v, r.dim_v};
  };
  if (states) p.initial = state(initial), p.final = state(final);
  CountingDevice device;
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(p, *r.arch, &kernels));
  GatedDeltaParts parts;
  if (wide) parts.wide_units = group;
  void* workspace = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(device.allocate(gated_delta_workspace(p, kernels, parts).total, &workspace));
  const Status status = gated_delta_forward_in_parts(device, *r.arch, p, kernels, parts, workspace, nullptr);
  device.release(workspace);
  *launches = std::move(device.launches);
  return status;
}

// Few tokens a sequence, by the kernel that goes token by token, states in fp32 read and written. A block reads its
// state, works and writes it, and four blocks an SM do so at different times: memory's time and the warps' overlap in
// part, as the root of the sum of their squares has it.
Status forecast_recurrent(const DeviceProfile& device, const GatedDeltaForecastRequest& r,
                          const GatedDeltaRow<GatedDeltaRecurrentConfig>& row, Forecast* forecast) {
  std::vector<Counters> launches;
  FLASHDELTA_RETURN_IF_ERROR(count_tokens(r, r.seqlen, false, true, &launches));
  Cycles busy;
  busy.add(cycles_of(launches.at(0), device, 1, 1), static_cast<double>(r.batch * r.heads_k) / device.sm_count);
  busy.exposed = 0;
  const double hertz = *device.clock_ghz() * 1e9;
  const double heads = static_cast<double>(r.batch * r.heads_v), tokens = static_cast<double>(r.seqlen);
  const double states = heads * static_cast<double>(r.dim_k * r.dim_v) * 8;
  const double rows =
      tokens * (static_cast<double>(r.batch * r.heads_k * r.dim_k) * 4 + heads * static_cast<double>(r.dim_v * 4 + 8));
  const double memory = (states + rows) / memory_rate(device);
  *forecast = {.device = std::string(device.name),
               .kernel = row.name,
               .blocks = r.batch * r.heads_v * ceil_div(r.dim_v, row.config.block_v),
               .resident_blocks =
                   resident_blocks(*r.arch, row.config.shared_bytes(), row.config.threads(), row.register_ceiling),
               .seconds = std::hypot(memory, busy.total() / kRecurrentBusy / hertz),
               .flops = heads * tokens * static_cast<double>(r.dim_k * r.dim_v) * 6,
               .limits = {},
               .binding = ""};
  set_limits(busy, memory, hertz, forecast);
  return {};
}

}  // namespace

Status forecast_gated_delta(const DeviceProfile& device, const GatedDeltaForecastRequest& request, Forecast* forecast) {
  FLASHDELTA_RETURN_IF_ERROR(check_rates(device));
  GatedDeltaProblem shape;
  shape.q.dtype = shape.o.dtype = request.dtype;
  shape.dim_k = request.dim_k, shape.dim_v = request.dim_v;
  shape.sequences = request.batch, shape.heads_k = request.heads_k, shape.heads_v = request.heads_v;
  shape.tokens = shape.max_tokens = request.seqlen;
  GatedDeltaKernels kernels;
  FLASHDELTA_RETURN_IF_ERROR(choose_gated_delta_kernels(shape, *request.arch, &kernels));
  if (kernels.recurrent != nullptr) return forecast_recurrent(device, request, *kernels.recurrent, forecast);
  const auto parts = [&](flashdelta_context_parallel parallel) {
    shape.context_parallel = parallel;
    return gated_delta_parts(shape, kernels, device.sm_count);
  };
  const GatedDeltaParts whole = parts(FLASHDELTA_CONTEXT_PARALLEL_OFF);
  const GatedDeltaParts cut = parts(FLASHDELTA_CONTEXT_PARALLEL_DECAY_START);
  const int64_t units = request.batch * request.heads_v;
  const int64_t wide_units = whole.ranges > 0 ? units : whole.wide_units;
  const GatedDeltaForwardConfig& config = kernels.forward->config;
  const int64_t group = request.heads_v / request.heads_k;
  const auto value_blocks = [&](const GatedDeltaForwardConfig& c) { return ceil_div(request.dim_v, c.block_v); };
  // A chunk of the preparation, and of a block of the sequential kernel.
  struct Work {
    Cycles prepare, step;
  };
  const auto work_of = [&](const GatedDeltaForwardConfig& c, Work* work) -> Status {
    std::vector<Counters> few, more;
    const bool wide = c.block_v != config.block_v;
    FLASHDELTA_RETURN_IF_ERROR(count_tokens(request, kChunks * gated_delta_chunk, wide, false, &few));
    FLASHDELTA_RETURN_IF_ERROR(count_tokens(request, 2 * kChunks * gated_delta_chunk, wide, false, &more));
    const auto cycles = [&](size_t launch, double blocks) {
      Cycles sum;
      sum.add(cycles_of(difference(more[launch], few[launch]), device, 1, 1), 1.0 / (kChunks * blocks));
      sum.exposed = 0;
      return sum;
    };
    *work = {cycles(0, 1), cycles(1, static_cast<double>(group * value_blocks(c)))};
    return {};
  };
  Work narrow, wide;
  FLASHDELTA_RETURN_IF_ERROR(work_of(config, &narrow));
  if (wide_units > 0 || cut.ranges > 0) FLASHDELTA_RETURN_IF_ERROR(work_of(kernels.wide->config.wide, &wide));
  const Cycles& prepare = narrow.prepare;

  const double hertz = *device.clock_ghz() * 1e9;
  const double rate = memory_rate(device);
  const auto chunks = static_cast<double>(ceil_div(request.seqlen, gated_delta_chunk));
  const double heads_k = static_cast<double>(request.batch * request.heads_k);
  const double heads_v = static_cast<double>(request.batch * request.heads_v);
  const double tokens = static_cast<double>(request.seqlen);
  const double keys = heads_k * tokens * static_cast<double>(request.dim_k) * 4;  // q and k
  const double records = heads_v * chunks * static_cast<double>(gated_delta_record_bytes),
               values = heads_v * tokens * static_cast<double>(request.dim_v) * 4;
  const double preparation = std::max(heads_k * chunks / device.sm_count * prepare.total() / kPreparationBusy / hertz,
                                      (keys + records + heads_v * tokens * 8) / rate);
  const int64_t wide_blocks = wide_units > 0 ? wide_units * value_blocks(kernels.wide->config.wide) : 0;
  const int64_t narrow_blocks = (units - wide_units) * value_blocks(config);
  const int64_t blocks =
      whole.ranges > 0 ? whole.ranges * group * value_blocks(kernels.wide->config.wide) : wide_blocks + narrow_blocks;
  const int64_t resident =
      resident_blocks(*request.arch, config.shared_bytes(), config.threads(), kernels.forward->register_ceiling);
  const int64_t places = device.sm_count * std::max<int64_t>(resident, 1);
  const auto sharing = static_cast<double>(std::min(resident, ceil_div(blocks, device.sm_count)));
  const auto step_cycles = [&](const Cycles& step) {
    return std::max(step.total() * std::max(sharing, 1.0), step.total() + kStepCycles);
  };
  // Sequences one after another in a place.
  const int64_t narrow_rounds = ceil_div(narrow_blocks, places);
  const int64_t wide_rounds =
      whole.ranges > 0 ? ceil_div(request.batch * request.heads_k, whole.ranges) : ceil_div(wide_blocks, places);
  const double cycles = static_cast<double>(narrow_rounds) * step_cycles(narrow.step) +
                        (wide_rounds > 0 ? static_cast<double>(wide_rounds) * step_cycles(wide.step) : 0);
  const double states = heads_v * static_cast<double>(request.dim_k * request.dim_v) * 8;  // in fp32, read and written
  const double starts = kBlockSeconds * static_cast<double>(narrow_rounds + wide_rounds) + states / rate;
  const double sequential = std::max(chunks * cycles / hertz + starts, (keys + records + values + states) / rate);
  const double memory = (2 * keys + 2 * records + values + states) / rate;
  const int ahead = whole.ahead_blocks;
  // On idle SMs beside it, the preparation ends before the forward kernel does.
  const double beside = ahead == 0 ? 0 : std::max({sequential, preparation * device.sm_count / ahead, memory});
  *forecast = {.device = std::string(device.name),
               .kernel = wide_units > 0 ? kernels.wide->name : kernels.forward->name,
               .blocks = blocks,
               .resident_blocks = resident,
               .seconds = ahead > 0 ? beside : preparation + sequential,
               // of the recurrence: S k, the update and S q, a multiplication and an addition an element each
               .flops = heads_v * tokens * static_cast<double>(request.dim_k * request.dim_v) * 6,
               .limits = {},
               .binding = ""};
  forecast->ahead_blocks = ahead;
  const GatedDeltaParts exact = parts(FLASHDELTA_CONTEXT_PARALLEL_EXACT);
  forecast->parts_exact = exact.most;
  forecast->parts_decay_start = cut.most;
  if (cut.ranges > 0 && cut.least_piece != GatedDeltaParts::kWholeSequences) {
    forecast->ranges = cut.ranges;
    forecast->range_chunks = ceil_div(gated_delta_line(shape), cut.ranges);
    forecast->early_chunks = cut.least_piece;
    const double time = static_cast<double>(forecast->range_chunks + forecast->early_chunks) * step_cycles(wide.step);
    forecast->range_seconds =
        preparation + std::max(time / hertz + kBlockSeconds, (keys + records + values + states) / rate);
  }
  if (exact.composed()) {
    forecast->composed_chunks = exact.chunks;
    forecast->composed_seconds = preparation + exact.time * sequential;
  }
  Cycles busy;
  busy.add(narrow.step, static_cast<double>(narrow_blocks) * chunks / device.sm_count);
  if (wide_units > 0) busy.add(wide.step, static_cast<double>(wide_blocks) * chunks / device.sm_count);
  busy.add(prepare, heads_k * chunks / device.sm_count);
  set_limits(busy, memory, hertz, forecast);
  return {};
}

}  // namespace flashdelta
