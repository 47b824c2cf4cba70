// The kernel of the preparation that runs beside the forward kernel (ahead.cuh).
#pragma once

#include "cuda/gated_delta/prepare.cuh"
#include "cuda/gated_delta/progress.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace flashdelta::gated_delta {

// Chunks of the longest sequence.
__device__ __forceinline__ int most_chunks(const GatedDeltaForwardParams& p, int lane) {
  int most = 0;
  for (int n = lane; n < p.sequences; n += 32) most = max(most, sequence_at(p, n).chunks());
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    most = max(most, static_cast<int>(ptx::shfl_xor(static_cast<uint32_t>(most), mask)));
  }
  return most;
}

// What a team needs again in every unit it works out anew: the preparation leaves no register to keep it in.
template <GatedDeltaAheadConfig C>
__device__ __forceinline__ void ahead(const GatedDeltaForwardParams& params) {
  using Storage = PrepareStorage<C.prepare>;
  static_assert(sizeof(Storage[C.teams]) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(1024) char shared[];
  constexpr int threads = C.prepare.threads();
  const auto own = [] { return ptx::shfl_idx(ptx::thread_index() / threads, 0); };
  const auto count = [&](uint32_t unit, int done) {
    if (ptx::thread_index() % threads == 0) ptx::store_release_32(params.done + unit % params.teams, done);
  };
  const uint32_t team = ptx::block_index() * C.teams + own();
  count(team, 0);
  ptx::fence_device();
  ptx::barrier_sync_block();
  ptx::let_next_kernel_start();
  const auto units = [&] { return most_chunks(params, ptx::thread_index() % 32) * params.sequences * params.heads_k; };
  for (uint32_t unit = team; unit < static_cast<uint32_t>(units()); unit += params.teams) {
    const uint32_t row = unit / params.heads_k, c = row / params.sequences;
    const Sequence sequence = sequence_at(params, row - c * params.sequences);
    if (static_cast<int>(c) < sequence.chunks()) {
      Prepare<C.prepare>(reinterpret_cast<Storage*>(shared)[own()], params, sequence, sequence.first_chunk + c,
                         unit - row * params.heads_k, own() + 1)
          .run();
    }
    ptx::fence_for_tensor_copies();         // of the next unit, to where this one's scratch is
    ptx::barrier_sync(own() + 1, threads);  // the records are written, and the scratch is free
    count(unit, static_cast<int>(unit / params.teams + 1));
  }
}

}  // namespace flashdelta::gated_delta
