// Preparation beside the forward kernel, ahead of it: few blocks that have an SM each, where the forward kernel's leave
// SMs idle. A team of warps does what a block of the preparation's own kernel does (prepare.cuh), for one chunk and key
// head after another; chunk c of all sequences and heads comes before chunk c + 1.
//
// Unit u, chunk c of sequence n and key head h with u = (c * sequences + n) * heads_k + h, is done by team u % teams as
// its number u / teams, and a team tells how many of its units are done: p.done[team]. The forward kernel starts when
// all blocks here run and have cleared their counts, and waits for blocks that run already: nothing can stand still.
#pragma once

#include "cuda/gated_delta/forward_params.h"
#include "cuda/gated_delta/work.cuh"
#include "cuda/ptx/acquire_release.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/dependent_launch.cuh"

namespace flashdelta::gated_delta {

// The forward kernel's view, by its copying warp: chunks of one sequence and key head whose records are there.
class Progress {
 public:
  // Of chunks [first, end).
  __device__ __forceinline__ Progress(const GatedDeltaForwardParams& p, int n, int head_k, int first, int end, int lane)
      : params_(p), n_(n), head_k_(head_k), end_(end), lane_(lane), ready_(p.teams > 0 ? first : end) {}

  // Waits for chunk c and all before it. The lanes ask for 32 chunks at once, and mostly these have been there for
  // long.
  __device__ __forceinline__ void wait_for(int c) {
    if (c < ready_) return;
    while (ready_ <= c) {
      const uint32_t missing = ~ptx::vote_ballot(ready_ + lane_ < end_ && is_done(ready_ + lane_));
      ready_ += missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1;
    }
    ptx::warp_sync();  // what one lane has seen is there for all
    ptx::fence_global_for_tensor_copies();
  }

 private:
  __device__ __forceinline__ bool is_done(int c) const {
    const uint32_t unit = (static_cast<uint32_t>(c) * params_.sequences + n_) * params_.heads_k + head_k_;
    const uint32_t number = unit / params_.teams, team = unit - number * params_.teams;
    return ptx::load_acquire_32(params_.done + team) > static_cast<int>(number);
  }

  const GatedDeltaForwardParams& params_;
  const int n_, head_k_, end_, lane_;
  int ready_;  // chunks before this one are there
};

}  // namespace flashdelta::gated_delta
