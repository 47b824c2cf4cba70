// Context parallelism: into how many parts a call's sequences may be cut. Gates decide on the card what is done about
// the states before parts (cuda/gated_delta/segments.cuh and parts.cuh); this decides how many parts there may be.
#include <algorithm>
#include <cmath>

#include "device/gated_delta_forward.hpp"

namespace flashdelta {
namespace {

constexpr int kMostParts = 32;
constexpr int64_t kMostBlocks = INT32_MAX;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A final state written where another part still reads the initial one would be a race.
bool states_overlap(const GatedDeltaProblem& p) {
  if (!p.initial || !p.final) return false;
  const auto range = [&](const States& states) {
    const auto begin = reinterpret_cast<uintptr_t>(states.data);
    const int64_t rows = p.value_major ? p.dim_v : p.dim_k, features = p.value_major ? p.dim_k : p.dim_v;
    const int64_t elements = std::max<int64_t>(states.slots - 1, 0) * states.slot_stride +
                             (p.heads_v - 1) * states.head_stride + (rows - 1) * states.row_stride + features;
    return std::pair{begin, begin + static_cast<uintptr_t>(elements * dtype_size(states.dtype))};
  };
  const auto [initial, initial_end] = range(p.initial);
  const auto [final, final_end] = range(p.final);
  return initial < final_end && final < initial_end;
}

// How blocks of two widths share a card, in steps: the time of a narrow block's chunk.
class BlockModel {
 public:
  BlockModel(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count)
      : narrow_(ceil_div(p.dim_v, kernels.forward->config.block_v)),
        wide_(kernels.wide == nullptr ? 0 : ceil_div(p.dim_v, kernels.wide->config.wide.block_v)),
        places_(int64_t{sm_count} * kernels.forward->resident_blocks),
        group_(p.group()),
        line_(gated_delta_line(p)) {}

  struct Share {
    int64_t wide_units;
    double rounds;  // of narrow blocks' time
  };

  // Of so many units, as many rounds of wide blocks as are fastest, and narrow blocks after them.
  Share share(int64_t units) const {
    Share best{0, narrow_rounds(units)};
    if (wide_ == 0) return best;
    // Under a few rounds, or where products count for more than on an H200, the gain may be none.
    double least = best.rounds * (1 - kLeastGain);
    for (int64_t round = 1; (round - 1) * places_ < units * wide_; round++) {
      const int64_t wide_units = std::min(units, round * places_ / wide_);
      const double time = kWideStep * rounds(wide_units * wide_) + narrow_rounds(units - wide_units);
      if (time <= least) best = {wide_units, time}, least = time;
    }
    return best;
  }

  double narrow_rounds(int64_t units) const { return rounds(units * narrow_); }

  // A range for each group of neighbouring wide blocks that the card has a place for.
  int64_t ranges() const { return wide_ == 0 || line_ > INT32_MAX ? 0 : places_ / (group_ * wide_); }
  int64_t range_chunks() const { return ceil_div(line_, ranges()); }
  // Of ranges that start so many chunks early.
  double range_time(int64_t early) const { return kWideStep * static_cast<double>(range_chunks() + early); }

  // Whether blocks that walk over whole sequences have no more of them one after another than those of many units,
  // all wide, would have in any place: then they save all starts but one.
  bool walks(int64_t units, const Share& share) const {
    if (share.wide_units < units || units * wide_ <= places_ || ranges() == 0) return false;
    return ceil_div(units / group_, ranges()) <= ceil_div(units * wide_, places_);
  }

 private:
  // A wide block's chunk: about 1.6 on an H200, nearer 2 where products count for more, as on SM120's cards.
  static constexpr double kWideStep = 1.7;
  static constexpr double kLeastGain = 0.08;

  double rounds(int64_t blocks) const { return static_cast<double>(ceil_div(blocks, places_)); }

  const int64_t narrow_, wide_, places_, group_, line_;
};

// Preparation beside the forward kernel, which is in one part and has narrow blocks.
struct Ahead {
  int blocks = 0;    // 0: it could not keep ahead, or finds no idle SM
  double saved = 0;  // against preparation before it, in chunks of the forward kernel one after another
};

Ahead prepare_ahead(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count) {
  // What preparing takes of an SM, measured on an H200 at head size 128, in chunks of the forward kernel: a chunk and
  // key head, and each of its value heads.
  constexpr double kUnit = 0.6, kHead = 0.4;
  constexpr double kAhead = 0.95;
  const int64_t chunks = ceil_div(p.max_tokens, gated_delta_chunk);
  const int64_t blocks = p.sequences * p.heads_v * ceil_div(p.dim_v, kernels.forward->config.block_v);
  const int64_t idle = sm_count - blocks;
  if (kernels.ahead == nullptr || blocks == 0 || chunks == 0 || idle <= 0) return {};
  if (ceil_div(p.tokens, gated_delta_chunk) * p.sequences * p.heads_k > INT32_MAX / 2) return {};  // counted in 32 bits
  const int64_t units = chunks * p.sequences * p.heads_k;
  const double work = static_cast<double>(units) * (kUnit + kHead * static_cast<double>(p.group()));
  if (work > kAhead * static_cast<double>(chunks * idle)) return {};
  return {static_cast<int>(std::min(idle, ceil_div(units, kernels.ahead->config.teams))), work / sm_count};
}

// Parts that start early, each with the blocks that are fastest.
GatedDeltaParts parts_that_start_early(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count,
                                       const Ahead& ahead) {
  // Of FlashQLA's public benchmark, a token. Wrong for a call, it makes too few parts, or some that are not used.
  constexpr double kUsualDecay = 0.05;
  const BlockModel model(p, kernels, sm_count);
  const int64_t units = p.sequences * p.heads_v, chunks = ceil_div(p.max_tokens, gated_delta_chunk);
  GatedDeltaParts best;
  if (units == 0) return best;
  const BlockModel::Share whole = model.share(units);
  best.wide_units = whole.wide_units;
  best.ahead_blocks = ahead.blocks;
  if (model.walks(units, whole)) best.ranges = model.ranges(), best.wide_units = 0;
  if (p.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_OFF || states_overlap(p)) return best;
  // Under exact few gates allow parts, and without them the preparation's time would come back.
  if (ahead.blocks > 0 && p.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_EXACT) return best;
  const auto early =
      static_cast<int64_t>(std::ceil(-gated_delta_segment_threshold(p) / (kUsualDecay * gated_delta_chunk)));
  // In chunks one after another. A twentieth less pays for what parts cost themselves; where the preparation is hidden
  // with one part alone, less pays.
  double least = whole.rounds * static_cast<double>(chunks) * (ahead.blocks > 0 ? 1 : 0.95);
  for (int s = 2; s <= kMostParts && chunks / s / 2 >= early; s++) {
    if (units * s * ceil_div(p.dim_v, kernels.forward->config.block_v) > kMostBlocks) break;
    const double time = model.narrow_rounds(units * s) * static_cast<double>(ceil_div(chunks, s) + early) + ahead.saved;
    if (time >= least) continue;
    best = {};
    best.most = s;
    least = time;
  }
  if (p.context_parallel != FLASHDELTA_CONTEXT_PARALLEL_DECAY_START || model.ranges() == 0) return best;
  const int64_t most_early = model.range_chunks() / 2;
  if (early > most_early || most_early == 0 || model.range_time(early) + ahead.saved >= least) return best;
  best = {};
  best.ranges = model.ranges(), best.least_piece = std::max<int64_t>(early, 1), best.most_early = most_early;
  return best;
}

// What composing costs where no state fades, in chunks of the forward kernel one after another.
class CompositionModel {
 public:
  CompositionModel(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count)
      : p_(p),
        total_(p.cu_seqlens ? ceil_div(p.tokens, gated_delta_chunk)
                            : p.sequences * ceil_div(p.tokens, gated_delta_chunk)),
        blocks_(p.heads_v * ceil_div(p.dim_v, kernels.forward->config.block_v)),
        places_(int64_t{sm_count} * kernels.forward->resident_blocks),
        summary_blocks_(p.heads_v * (ceil_div(p.dim_v, kernels.summary->config.part.block_v) +
                                     ceil_div(kernels.forward->config.dim_k, kernels.summary->config.part.block_v))),
        summary_places_(int64_t{sm_count} * kernels.summary->resident_blocks),
        scan_blocks_(p.heads_v * ceil_div(p.dim_v, GatedDeltaScanConfig::columns)),
        scan_places_(int64_t{sm_count} * kernels.scan->resident_blocks) {}

  // The longest sequence has `longest` chunks, and as many others as there is room for are as long.
  double without(int64_t longest) const {
    return std::max(rounds(long_ones(longest) * blocks_, places_) * static_cast<double>(longest),
                    busy(blocks_, places_, total_));
  }

  double with(int64_t longest, int64_t part) const {
    const int64_t count = ceil_div(longest, part), sequences = long_ones(longest);
    const int64_t numbers = gated_delta_part_slots(p_, {1, part, 1}).numbers;
    const double others = busy(blocks_, places_, std::max<int64_t>(total_ - sequences * longest, 0));
    // A block that finds nothing to do takes about a chunk's time as well.
    const double idle = kLaunches + rounds(numbers * summary_blocks_, summary_places_) +
                        rounds(p_.sequences * scan_blocks_, scan_places_);
    const double step = static_cast<double>(std::min(part, longest));
    if (count == 1) return rounds(sequences * blocks_, summary_places_) * step + others + idle;
    const double first = rounds(sequences * (blocks_ + (count - 2) * summary_blocks_), summary_places_) * step;
    const double rest = rounds(sequences * (count - 1) * blocks_, places_) * step;
    const double scan = rounds(sequences * scan_blocks_, scan_places_) * static_cast<double>(count - 2);
    return others + kSummaryStep * first + kScanStep * scan + rest + idle;
  }

  // No parts take less: of the fewest that can pay, three, the forward kernel does all and the summaries a third.
  double least() const { return busy(blocks_, places_, total_) * 4 / 3; }

 private:
  // Measured on an H200, but for the first, which is an SM120's: there products alone bound a chunk.
  static constexpr double kSummaryStep = 1.3;
  static constexpr double kLaunches = 10;  // of summary and scan
  static constexpr double kScanStep = 2;

  static double rounds(int64_t blocks, int64_t places) { return static_cast<double>(ceil_div(blocks, places)); }
  static double busy(int64_t blocks, int64_t places, int64_t chunks) {
    return static_cast<double>(blocks * chunks) / static_cast<double>(places);
  }
  int64_t long_ones(int64_t longest) const {
    return std::clamp<int64_t>(total_ / std::max<int64_t>(longest, 1), 1, p_.sequences);
  }

  const GatedDeltaProblem& p_;
  const int64_t total_, blocks_, places_, summary_blocks_, summary_places_, scan_blocks_, scan_places_;
};

// Parts whose states are composed, or one part where that could be slower for any gates.
GatedDeltaParts composed_parts(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count,
                               const Ahead& ahead) {
  constexpr int64_t kFewest = 8;  // chunks of a part
  constexpr double kGain = 0.95;
  const double most = ahead.blocks > 0 ? 1 : kGain;
  if (p.context_parallel != FLASHDELTA_CONTEXT_PARALLEL_EXACT || p.sequences == 0) return {};
  if (kernels.summary == nullptr || kernels.scan == nullptr) return {};
  const int64_t longest = ceil_div(p.max_tokens, gated_delta_chunk);
  // Where lengths are not known, one sequence may have all tokens, or all may have as many.
  const bool known = !p.cu_seqlens || p.max_tokens < p.tokens;
  const int64_t shortest = known ? longest : ceil_div(longest, p.sequences);
  const CompositionModel model(p, kernels, sm_count);
  const double without = model.without(longest);
  GatedDeltaParts best;
  if (model.least() + ahead.saved >= without * most) return best;
  double least = most;
  for (int parts = 2; parts <= kMostParts; parts++) {
    const int64_t part = ceil_div(longest, parts);
    if (part < kFewest) break;
    const double time = model.with(longest, part) / without, cost = time + ahead.saved / without;
    if (cost >= least || model.with(shortest, part) > model.without(shortest) * (2 - kGain)) continue;
    const int64_t numbers = gated_delta_part_slots(p, {parts, part, 1}).numbers;
    if (numbers * p.heads_v * (p.dim_v + 2 * p.dim_k) / 16 > kMostBlocks) continue;
    best = {static_cast<int>(ceil_div(longest, part)), part, time}, least = cost;
  }
  return best;
}

}  // namespace

double gated_delta_segment_threshold(const GatedDeltaProblem& p) {
  constexpr double kUnderFp32 = -104;  // e^-104 < 2^-149
  return p.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_DECAY_START ? p.decay_threshold : kUnderFp32;
}

GatedDeltaParts gated_delta_parts(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels, int sm_count) {
  if (kernels.recurrent != nullptr) return {};
  const Ahead ahead = prepare_ahead(p, kernels, sm_count);
  const GatedDeltaParts composed = composed_parts(p, kernels, sm_count, ahead);
  return composed.composed() ? composed : parts_that_start_early(p, kernels, sm_count, ahead);
}

GatedDeltaPartSlots gated_delta_part_slots(const GatedDeltaProblem& p, const GatedDeltaParts& parts) {
  const int64_t tokens = parts.chunks * gated_delta_chunk;
  const int64_t dense = p.sequences * ceil_div(p.tokens, tokens);
  if (!p.cu_seqlens) return {dense, dense};
  return {p.tokens / tokens + p.sequences, 2 * p.tokens / tokens};
}

GatedDeltaWorkspace gated_delta_workspace(const GatedDeltaProblem& p, const GatedDeltaKernels& kernels,
                                          const GatedDeltaParts& parts) {
  GatedDeltaWorkspace layout;
  if (kernels.recurrent != nullptr) return layout;
  const auto lines = [](int64_t bytes) { return static_cast<size_t>(ceil_div(bytes, 256) * 256); };
  const int64_t records = gated_delta_chunk_slots(p) * p.heads_v * gated_delta_record_bytes;
  layout.total = layout.records = static_cast<size_t>(records);
  if (parts.ahead_blocks > 0) {
    layout.records = lines(records);
    layout.done = lines(int64_t{parts.ahead_blocks} * kernels.ahead->config.teams * 4);
    layout.total = layout.records + layout.done;
  }
  if (!parts.composed()) return layout;
  const GatedDeltaForwardConfig& summary = kernels.summary->config.part;
  const int64_t states = gated_delta_part_slots(p, parts).states * p.heads_v * summary.dim_k * 4;
  layout.records = lines(records);
  layout.starts = lines(states * ceil_div(p.dim_v, summary.block_v) * summary.block_v);
  layout.transitions = lines(states * summary.dim_k);
  layout.total = layout.records + layout.starts + layout.transitions;
  return layout;
}

}  // namespace flashdelta
