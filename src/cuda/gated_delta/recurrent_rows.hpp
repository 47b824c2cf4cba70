// The recurrent gated delta kernels there are, for few tokens a sequence. Plain C++ for host and device.
#pragma once

#include "cuda/gated_delta/rows.hpp"

namespace flashdelta {

// The most tokens a sequence for which a call is run token by token. A token costs this kernel 4 dim_k dim_v FMA on the
// common cores; a chunk costs the others the products of 32 tokens and two launches, however few there are.
inline constexpr int gated_delta_recurrent_tokens = 16;

// Sums over keys, of all warps and two tokens: two a column and three, in pieces of 16 bytes.
constexpr int gated_delta_recurrent_shared_bytes(int block_v, int warps) { return 2 * warps * (2 * block_v + 4) * 4; }

struct GatedDeltaRecurrentConfig {
  Element element;
  int dim_k;    // keys that a block has room for; smaller heads are padded with zeros
  int block_v;  // value columns a block
  int warps;    // share the keys where values are contiguous, the values where keys are

  constexpr int threads() const { return warps * 32; }
  constexpr int shared_bytes() const { return gated_delta_recurrent_shared_bytes(block_v, warps); }
  // Every lane has whole groups of 4 keys by 4 values.
  constexpr bool valid() const {
    return warps == 4 && block_v <= 128 && block_v % (4 * warps) == 0 && dim_k * block_v % (warps * 512) == 0;
  }
  bool operator==(const GatedDeltaRecurrentConfig&) const = default;
};

inline constexpr GatedDeltaRow<GatedDeltaRecurrentConfig> gated_delta_recurrent_rows[] = {
    {"gated_delta_recurrent_bf16_k64", {Element::bf16, 64, 64, 4}, 4, 128, true},
    {"gated_delta_recurrent_fp16_k64", {Element::fp16, 64, 64, 4}, 4, 128, true},
    {"gated_delta_recurrent_bf16_k128", {Element::bf16, 128, 64, 4}, 4, 128, true},
    {"gated_delta_recurrent_fp16_k128", {Element::fp16, 128, 64, 4}, 4, 128, true},
    {"gated_delta_recurrent_bf16_k256", {Element::bf16, 256, 64, 4}, 2, 255, true},
    {"gated_delta_recurrent_fp16_k256", {Element::fp16, 256, 64, 4}, 2, 255, true},
};

}  // namespace flashdelta
