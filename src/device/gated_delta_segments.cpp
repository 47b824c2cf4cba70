// Context parallelism: into how many parts a call's sequences may be cut. Gates decide on the card which parts there
// are (cuda/gated_delta/segments.cuh); this decides how many there may be, and where none may.
#include <algorithm>
#include <cmath>

#include "device/gated_delta_forward.hpp"

namespace flashdelta {
namespace {

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

}  // namespace

double gated_delta_segment_threshold(const GatedDeltaProblem& p) {
  constexpr double kUnderFp32 = -104;  // e^-104 < 2^-149
  return p.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_DECAY_START ? p.decay_threshold : kUnderFp32;
}

int gated_delta_segments(const GatedDeltaProblem& p, int64_t blocks, int64_t resident) {
  // Of FlashQLA's public benchmark, a token. Wrong for a call, it makes too few parts, or some that are not used.
  constexpr double kUsualDecay = 0.05;
  constexpr int kMostSegments = 32;
  constexpr int64_t kMostBlocks = INT32_MAX;
  if (p.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_OFF || blocks == 0 || states_overlap(p)) return 1;
  const auto early =
      static_cast<int64_t>(std::ceil(-gated_delta_segment_threshold(p) / (kUsualDecay * gated_delta_chunk)));
  const int64_t chunks = ceil_div(p.max_tokens, gated_delta_chunk);
  int best = 1;
  // In chunks one after another. A twentieth less pays for what parts cost themselves.
  int64_t least = ceil_div(blocks, resident) * chunks * 19 / 20;
  for (int s = 2; s <= kMostSegments && chunks / s / 2 >= early && blocks * s <= kMostBlocks; s++) {
    const int64_t time = ceil_div(blocks * s, resident) * (ceil_div(chunks, s) + early);
    if (time < least) best = s, least = time;
  }
  return best;
}

}  // namespace flashdelta
