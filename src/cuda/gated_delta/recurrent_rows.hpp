// The recurrent gated delta kernels there are, for few tokens a sequence. Plain C++ for host and device.
#pragma once

#include "cuda/gated_delta/rows.hpp"

namespace flashdelta {

// The most tokens a sequence for which a call is run token by token. A token costs this kernel 4 dim_k dim_v FMA on the
// common cores; a chunk costs the others the products of 32 tokens and two launches, however few there are.
inline constexpr int gated_delta_recurrent_tokens = 16;

struct GatedDeltaRecurrentConfig {
  Element element;
  int dim_k;    // keys that a warp has room for; smaller heads are padded with zeros
  int columns;  // of values a warp: 16 or 32
  int warps;

  constexpr int threads() const { return warps * 32; }
  constexpr int block_v() const { return warps * columns; }
  constexpr int shared_bytes() const { return 0; }
  constexpr bool valid() const {
    return (columns == 16 || columns == 32) && dim_k % (512 / columns) == 0 && warps >= 1;
  }
  bool operator==(const GatedDeltaRecurrentConfig&) const = default;
};

inline constexpr GatedDeltaRow<GatedDeltaRecurrentConfig> gated_delta_recurrent_rows[] = {
    {"gated_delta_recurrent_bf16_k64", {Element::bf16, 64, 16, 4}, 4, 128, true},
    {"gated_delta_recurrent_fp16_k64", {Element::fp16, 64, 16, 4}, 4, 128, true},
    {"gated_delta_recurrent_bf16_k128", {Element::bf16, 128, 16, 4}, 4, 128, true},
    {"gated_delta_recurrent_fp16_k128", {Element::fp16, 128, 16, 4}, 4, 128, true},
    {"gated_delta_recurrent_bf16_k256", {Element::bf16, 256, 16, 4}, 2, 255, true},
    {"gated_delta_recurrent_fp16_k256", {Element::fp16, 256, 16, 4}, 2, 255, true},
};

}  // namespace flashdelta
