// What gated_delta_forward's kernels may touch, for the emulator to hold them to.
#pragma once

#include <vector>

#include "core/problem.hpp"
#include "device/device.hpp"

namespace flashdelta {

// The workspace is written by the preparation and read after it.
std::vector<Region> gated_delta_prepare_regions(const GatedDeltaProblem& problem, void* workspace, size_t bytes);
std::vector<Region> gated_delta_forward_regions(const GatedDeltaProblem& problem, void* workspace, size_t bytes);

std::vector<Region> gated_delta_recurrent_regions(const GatedDeltaProblem& problem);

}  // namespace flashdelta
