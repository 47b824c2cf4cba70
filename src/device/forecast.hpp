// How long a kernel would take on a card that is not there: its counters on the emulator against the card's
// rates. The model and its constants are in docs/forecast.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/profiles.hpp"
#include "core/status.hpp"
#include "flashdelta/flashdelta.h"

namespace flashdelta {

// Attention forward over equally long sequences, queries and keys of one length.
struct ForecastRequest {
  const ArchProfile* arch = nullptr;  // whose limits the kernel runs under
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t batch = 1, heads_q = 1, heads_k = 1, seqlen = 0;
  bool causal = false;
  bool share_tail = true;  // false: as if every query tile had one block, to compare with
};

struct Forecast {
  struct Limit {
    const char* name;  // "tensor", "shared", "issue", "special", "memory"
    double share;      // of the forecast time, that the work would take by this limit alone
  };
  std::string device, kernel;
  int64_t blocks = 0, resident_blocks = 0;
  double seconds = 0, flops = 0;
  std::vector<Limit> limits;
  const char* binding = "";  // the limit with the largest share
  int tail_parts = 1;        // attention: of each of the query tiles after the last whole wave
  // Gated delta: the most parts of a sequence that context parallelism would cut, were gates strong enough; else 0.
  int parts_exact = 0, parts_decay_start = 0;
  // Where exact composes states, which asks for no gates: chunks of a part, and the time where no state fades; else 0.
  int64_t composed_chunks = 0;
  double composed_seconds = 0;
  // Where decay_start cuts all key heads' chunks in ranges, a block each, not sequences in parts: how many there are,
  // chunks of each, those that gates of usual strength have it start early, and the time then; else 0.
  int64_t ranges = 0, range_chunks = 0, early_chunks = 0;
  double range_seconds = 0;
  // Blocks that prepare chunks on idle SMs while the sequential kernel runs; 0: they are prepared before it.
  int ahead_blocks = 0;
};

// NOT_SUPPORTED where no kernel takes the problem, or a rate of the card is not known.
Status forecast_attention(const DeviceProfile& device, const ForecastRequest& request, Forecast* forecast);

// Gated delta forward over equally long sequences, each in one part, without context parallelism; fp32 states are read
// and written.
struct GatedDeltaForecastRequest {
  const ArchProfile* arch = nullptr;
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  int64_t dim_k = 0, dim_v = 0;
  int64_t batch = 1, heads_k = 1, heads_v = 1, seqlen = 0;
};

// Of the preparation and the sequential kernel together; for few tokens, of the recurrent kernel. NOT_SUPPORTED as
// above.
Status forecast_gated_delta(const DeviceProfile& device, const GatedDeltaForecastRequest& request, Forecast* forecast);

}  // namespace flashdelta
