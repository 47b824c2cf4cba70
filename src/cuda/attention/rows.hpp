// The attention kernels there are: one row, one kernel. Everything else (generated sources, images, the planner's list,
// the audit) is made from this table.
#pragma once

#include "cuda/attention/forward_config.hpp"

namespace flashdelta {

struct ForwardRow {
  const char* name;  // the kernel is flashdelta_<name>
  ForwardConfig config;
  int resident_blocks;   // an SM of SM120, by shared memory, registers and threads; what launch bounds ask for
  int register_ceiling;  // a thread, on sm_120
  bool tuned;            // tuned rows may not spill
};

inline constexpr ForwardRow forward_rows[] = {
    // Long prompts: 32 query rows a warp halve the shared-memory reads a product.
    {"attention_forward_bf16_d64_q128", {Element::bf16, 64, 64, 128, 64, 4, 2, true}, 2, 255, true},
    {"attention_forward_fp16_d64_q128", {Element::fp16, 64, 64, 128, 64, 4, 2, true}, 2, 255, true},
    {"attention_forward_bf16_d128_q256", {Element::bf16, 128, 128, 256, 64, 8, 1, false}, 1, 255, true},
    {"attention_forward_fp16_d128_q256", {Element::fp16, 128, 128, 256, 64, 8, 1, false}, 1, 255, true},
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

struct ForwardCombineRow {
  const char* name;
  ForwardCombineConfig config;
  int resident_blocks, register_ceiling;
  bool tuned;
};

inline constexpr ForwardCombineRow forward_combine_rows[] = {
    {"attention_combine_bf16", {Element::bf16}, 8, 64, true},
    {"attention_combine_fp16", {Element::fp16}, 8, 64, true},
};

}  // namespace flashdelta
