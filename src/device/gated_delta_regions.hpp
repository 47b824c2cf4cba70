// What gated_delta_forward's kernels may touch, for the emulator to hold them to.
#pragma once

#include <vector>

#include "device/gated_delta_forward.hpp"

namespace flashdelta {

// Of the workspace, records are written by the preparation, and states and transitions by summary and scan.
std::vector<Region> gated_delta_prepare_regions(const GatedDeltaProblem& problem, void* workspace,
                                                const GatedDeltaWorkspace& layout);
std::vector<Region> gated_delta_summary_regions(const GatedDeltaProblem& problem, void* workspace,
                                                const GatedDeltaWorkspace& layout);
std::vector<Region> gated_delta_scan_regions(const GatedDeltaProblem& problem, void* workspace,
                                             const GatedDeltaWorkspace& layout);
std::vector<Region> gated_delta_forward_regions(const GatedDeltaProblem& problem, void* workspace,
                                                const GatedDeltaWorkspace& layout);

std::vector<Region> gated_delta_recurrent_regions(const GatedDeltaProblem& problem);

}  // namespace flashdelta
