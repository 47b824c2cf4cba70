// The attention kernels there are: one row, one kernel. Everything else (generated sources, images, the planner's list,
// the audit) is made from this table.
#pragma once

#include "cuda/attention/decode_config.hpp"
#include "cuda/attention/forward_config.hpp"

namespace flashdelta {

struct ForwardRow {
  const char* name;  // the kernel is flashdelta_<name>
  ForwardConfig config;
  int resident_blocks;    // an SM of SM120, by shared memory, registers and threads; what launch bounds ask for
  int register_ceiling;   // a thread, on sm_120
  bool tuned;             // tuned rows may not spill
  int wanted_blocks = 0;  // more than SM120 holds: the row is for cards whose SM holds that many, and comes first there

  constexpr int bounds_blocks() const { return wanted_blocks > 0 ? wanted_blocks : resident_blocks; }
};

inline constexpr ForwardRow forward_rows[] = {
    // Long prompts: 32 query rows a warp halve the shared-memory reads a product.
    {"attention_forward_bf16_d64_q128", {Element::bf16, 64, 64, 128, 64, 4, 2, true}, 2, 255, true},
    {"attention_forward_fp16_d64_q128", {Element::fp16, 64, 64, 128, 64, 4, 2, true}, 2, 255, true},
    {"attention_forward_bf16_d128_q256", {Element::bf16, 128, 128, 256, 64, 8, 1, false}, 1, 255, true},
    {"attention_forward_fp16_d128_q256", {Element::fp16, 128, 128, 256, 64, 8, 1, false}, 1, 255, true},
    // The same rows an SM in two blocks, of which one computes while the other waits: 4% faster where both fit.
    {"attention_forward_bf16_d128_q128", {Element::bf16, 128, 128, 128, 64, 4, 2, false}, 1, 255, false, 2},
    {"attention_forward_fp16_d128_q128", {Element::fp16, 128, 128, 128, 64, 4, 2, false}, 1, 255, false, 2},
    // Short prompts: small blocks, two or more an SM.
    {"attention_forward_bf16_d64_q64", {Element::bf16, 64, 64, 64, 64, 4, 2, false}, 2, 255, true},
    {"attention_forward_fp16_d64_q64", {Element::fp16, 64, 64, 64, 64, 4, 2, false}, 2, 255, true},
    {"attention_forward_bf16_d128_q64", {Element::bf16, 128, 128, 64, 64, 4, 1, false}, 2, 255, true},
    {"attention_forward_fp16_d128_q64", {Element::fp16, 128, 128, 64, 64, 4, 1, false}, 2, 255, true},
    // Other head sizes: 16 query rows a warp where Q in registers leaves no room for 32.
    {"attention_forward_bf16_d96_q128", {Element::bf16, 96, 96, 128, 64, 4, 1, false}, 2, 255, true},
    {"attention_forward_fp16_d96_q128", {Element::fp16, 96, 96, 128, 64, 4, 1, false}, 2, 255, true},
    {"attention_forward_bf16_d192_128_q128", {Element::bf16, 192, 128, 128, 64, 8, 2, true}, 1, 255, true},
    {"attention_forward_fp16_d192_128_q128", {Element::fp16, 192, 128, 128, 64, 8, 2, true}, 1, 255, true},
    {"attention_forward_bf16_d256_q128", {Element::bf16, 256, 256, 128, 32, 8, 2, true}, 1, 255, true},
    {"attention_forward_fp16_d256_q128", {Element::fp16, 256, 256, 128, 32, 8, 2, true}, 1, 255, true},
    {"attention_forward_bf16_d256_q64", {Element::bf16, 256, 256, 64, 32, 4, 2, true}, 1, 255, false, 2},
    {"attention_forward_fp16_d256_q64", {Element::fp16, 256, 256, 64, 32, 4, 2, true}, 1, 255, false, 2},
    // With softcap, paged keys and split keys.
    {"attention_forward_bf16_d64_general", {Element::bf16, 64, 64, 64, 64, 4, 2, false, 1, true}, 2, 255, true},
    {"attention_forward_fp16_d64_general", {Element::fp16, 64, 64, 64, 64, 4, 2, false, 1, true}, 2, 255, true},
    {"attention_forward_bf16_d128_general", {Element::bf16, 128, 128, 64, 64, 4, 1, false, 1, true}, 2, 255, true},
    {"attention_forward_fp16_d128_general", {Element::fp16, 128, 128, 64, 64, 4, 1, false, 1, true}, 2, 255, true},
    {"attention_forward_bf16_d256_general", {Element::bf16, 256, 256, 64, 32, 4, 1, true, 1, true}, 2, 255, true},
    {"attention_forward_fp16_d256_general", {Element::fp16, 256, 256, 64, 32, 4, 1, true, 1, true}, 2, 255, true},
    {"attention_forward_bf16_d512_general", {Element::bf16, 512, 512, 64, 16, 4, 1, false, 2, true}, 1, 255, true},
    {"attention_forward_fp16_d512_general", {Element::fp16, 512, 512, 64, 16, 4, 1, false, 2, true}, 1, 255, true},
};

// 65 to 96 query rows, whose keys come from memory.
inline constexpr ForwardRow paired_rows[] = {
    {"attention_paired_bf16_d256_q96", {Element::bf16, 256, 256, 96, 32, 8, 2, true, 1, false, true}, 1, 255, true},
    {"attention_paired_fp16_d256_q96", {Element::fp16, 256, 256, 96, 32, 8, 2, true, 1, false, true}, 1, 255, true},
};

// Few query rows against many keys: at most 16, a warp a tile of keys of its own, and more, 16 a warp.
struct DecodeRow {
  const char* name;
  DecodeConfig config;
  int resident_blocks, register_ceiling;
  bool tuned;

  constexpr int bounds_blocks() const { return resident_blocks; }
};

inline constexpr DecodeRow decode_rows[] = {
    {"attention_decode_bf16_d64_q16", {Element::bf16, 64, 64, 1, 4, 16, 6}, 2, 255, true},
    {"attention_decode_fp16_d64_q16", {Element::fp16, 64, 64, 1, 4, 16, 6}, 2, 255, true},
    {"attention_decode_bf16_d64_q64", {Element::bf16, 64, 64, 4, 1, 64, 6}, 2, 255, true},
    {"attention_decode_fp16_d64_q64", {Element::fp16, 64, 64, 4, 1, 64, 6}, 2, 255, true},
    {"attention_decode_bf16_d128_q16", {Element::bf16, 128, 128, 1, 4, 16, 3}, 2, 255, true},
    {"attention_decode_fp16_d128_q16", {Element::fp16, 128, 128, 1, 4, 16, 3}, 2, 255, true},
    {"attention_decode_bf16_d128_q64", {Element::bf16, 128, 128, 4, 1, 64, 3}, 2, 255, true},
    {"attention_decode_fp16_d128_q64", {Element::fp16, 128, 128, 4, 1, 64, 3}, 2, 255, true},
    {"attention_decode_bf16_d256_q16", {Element::bf16, 256, 256, 1, 4, 16, 3}, 1, 255, true},
    {"attention_decode_fp16_d256_q16", {Element::fp16, 256, 256, 1, 4, 16, 3}, 1, 255, true},
    {"attention_decode_bf16_d256_q64", {Element::bf16, 256, 256, 4, 1, 32, 3}, 2, 255, true},
    {"attention_decode_fp16_d256_q64", {Element::fp16, 256, 256, 4, 1, 32, 3}, 2, 255, true},
};

struct ForwardCombineRow {
  const char* name;
  ForwardCombineConfig config;
  int resident_blocks, register_ceiling;
  bool tuned;

  constexpr int bounds_blocks() const { return resident_blocks; }
};

inline constexpr ForwardCombineRow forward_combine_rows[] = {
    {"attention_combine_bf16", {Element::bf16}, 8, 64, true},
    {"attention_combine_fp16", {Element::fp16}, 8, 64, true},
};

// As these, of the last query tiles of a call of the rows above.
inline constexpr ForwardCombineRow forward_tail_rows[] = {
    {"attention_tail_bf16", {Element::bf16}, 8, 64, true},
    {"attention_tail_fp16", {Element::fp16}, 8, 64, true},
};

}  // namespace flashdelta
