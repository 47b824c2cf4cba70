// The gated delta forward kernels there are: one row, one kernel.
#pragma once

#include "cuda/gated_delta/forward_config.hpp"

namespace flashdelta {

template <class Config>
struct GatedDeltaRow {
  const char* name;  // the kernel is flashdelta_<name>
  Config config;
  int resident_blocks;   // an SM of SM120, by shared memory, registers and threads; what launch bounds ask for
  int register_ceiling;  // a thread, on sm_120
  bool tuned;            // tuned rows may not spill
};

inline constexpr GatedDeltaRow<GatedDeltaPrepareConfig> gated_delta_prepare_rows[] = {
    {"gated_delta_prepare_bf16_k64", {Element::bf16, 64, 4}, 4, 128, true},
    {"gated_delta_prepare_fp16_k64", {Element::fp16, 64, 4}, 4, 128, true},
    {"gated_delta_prepare_bf16_k128", {Element::bf16, 128, 4}, 4, 128, true},
    {"gated_delta_prepare_bf16_k128_w3", {Element::bf16, 128, 3}, 5, 128, true},
    {"gated_delta_prepare_fp16_k128", {Element::fp16, 128, 4}, 4, 128, true},
    {"gated_delta_prepare_fp16_k128_w3", {Element::fp16, 128, 3}, 5, 128, true},
    {"gated_delta_prepare_bf16_k256", {Element::bf16, 256, 4}, 2, 168, false},
    {"gated_delta_prepare_fp16_k256", {Element::fp16, 256, 4}, 2, 168, false},
};

// Registers for one block an SM: no other kernel's block finds room beside it.
inline constexpr GatedDeltaRow<GatedDeltaAheadConfig> gated_delta_ahead_rows[] = {
    {"gated_delta_ahead_bf16_k64", {{Element::bf16, 64, 4}, 4}, 1, 128, true},
    {"gated_delta_ahead_fp16_k64", {{Element::fp16, 64, 4}, 4}, 1, 128, true},
    {"gated_delta_ahead_bf16_k128", {{Element::bf16, 128, 4}, 4}, 1, 128, true},
    {"gated_delta_ahead_fp16_k128", {{Element::fp16, 128, 4}, 4}, 1, 128, true},
};

inline constexpr GatedDeltaRow<GatedDeltaForwardConfig> gated_delta_forward_rows[] = {
    {"gated_delta_forward_bf16_k64_v64", {Element::bf16, 64, 64, 4, 2, false}, 2, 168, true},
    {"gated_delta_forward_fp16_k64_v64", {Element::fp16, 64, 64, 4, 2, false}, 2, 168, true},
    {"gated_delta_forward_bf16_k128_v64", {Element::bf16, 128, 64, 4, 3, true}, 1, 255, true},
    {"gated_delta_forward_fp16_k128_v64", {Element::fp16, 128, 64, 4, 3, true}, 1, 255, true},
    {"gated_delta_forward_bf16_k256_v64", {Element::bf16, 256, 64, 4, 2, false}, 1, 255, false},
    {"gated_delta_forward_fp16_k256_v64", {Element::fp16, 256, 64, 4, 2, false}, 1, 255, false},
};

// Beside a forward row: its blocks, and others twice as wide. The state of these has to decay late (gathers()).
inline constexpr GatedDeltaRow<GatedDeltaWideConfig> gated_delta_wide_rows[] = {
    {"gated_delta_wide_bf16_k128",
     {{Element::bf16, 128, 128, 4, 3, false}, {Element::bf16, 128, 64, 4, 3, true}},
     1,
     255,
     true},
};

// One a forward row. Without Q, P and output there are registers for twice the columns.
inline constexpr GatedDeltaRow<GatedDeltaSummaryConfig> gated_delta_summary_rows[] = {
    {"gated_delta_summary_bf16_k64",
     {{Element::bf16, 64, 64, 4, 2, false, true}, {Element::bf16, 64, 64, 4, 2, false}},
     2,
     168,
     true},
    {"gated_delta_summary_fp16_k64",
     {{Element::fp16, 64, 64, 4, 2, false, true}, {Element::fp16, 64, 64, 4, 2, false}},
     2,
     168,
     true},
    {"gated_delta_summary_bf16_k128",
     {{Element::bf16, 128, 128, 4, 3, false, true}, {Element::bf16, 128, 64, 4, 3, true}},
     1,
     255,
     true},
    {"gated_delta_summary_fp16_k128",
     {{Element::fp16, 128, 128, 4, 3, false, true}, {Element::fp16, 128, 64, 4, 3, true}},
     1,
     255,
     true},
    {"gated_delta_summary_bf16_k256",
     {{Element::bf16, 256, 64, 4, 2, false, true}, {Element::bf16, 256, 64, 4, 2, false}},
     1,
     255,
     false},
    {"gated_delta_summary_fp16_k256",
     {{Element::fp16, 256, 64, 4, 2, false, true}, {Element::fp16, 256, 64, 4, 2, false}},
     1,
     255,
     false},
};

inline constexpr GatedDeltaRow<GatedDeltaScanConfig> gated_delta_scan_rows[] = {
    {"gated_delta_scan_k64", {64}, 2, 168, true},
    {"gated_delta_scan_k128", {128}, 2, 128, true},
    {"gated_delta_scan_k256", {256}, 1, 128, true},
};

}  // namespace flashdelta
