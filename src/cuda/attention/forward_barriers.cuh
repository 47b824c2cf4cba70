// Where the warps of a forward kernel's block meet: in mbarriers behind the tiles, each warp at its own pace, or, in
// rows that have no register left for the phase, in the block's barrier, behind which a tile is there and another's
// place free.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace flashdelta::attention {

template <ForwardConfig C>
struct ForwardBarriers {
  // Bytes from the first: the copies of all threads to a place have landed; all warps have read what is there. With one
  // stage K and V have places of their own, with more a stage is one.
  static constexpr uint32_t here(int place) { return place * 8; }
  static constexpr uint32_t read(int place) { return (places + place) * 8; }
  static constexpr int places = C.stages == 1 ? 2 : C.stages;
  static constexpr uint32_t k_here = 0, v_here = 8, k_read = places * 8, v_read = k_read + 8;

  __device__ __forceinline__ static uint32_t address(uint32_t offset) {
    extern __shared__ __align__(128) char shared[];
    return ptx::shared_address(shared) + C.shared_bytes() + offset;
  }

  // By one warp, before the block's next barrier.
  __device__ __forceinline__ static void init(int thread) {
    if (!C.own_pace() || thread >= places) return;
    ptx::mbarrier_init(address(here(0)) + thread * 8, C.threads());
    ptx::mbarrier_init(address(read(0)) + thread * 8, C.threads());
  }
  __device__ __forceinline__ static void arrive_copied(uint32_t offset) {
    if constexpr (C.own_pace()) ptx::mbarrier_arrive_after_copies(address(offset));
  }
  // Each thread for itself: as fast as one lane for its warp, and racecheck sees it (docs/kernels.md).
  __device__ __forceinline__ static void arrive_read(uint32_t offset) {
    if constexpr (C.own_pace()) ptx::mbarrier_arrive(address(offset));
  }
  __device__ __forceinline__ static void wait_read(uint32_t offset, uint32_t parity) {
    if constexpr (C.own_pace()) wait(offset, parity);
  }
  __device__ __forceinline__ static void wait_here(uint32_t offset, uint32_t parity) {
    if constexpr (C.own_pace()) {
      wait(offset, parity);
    } else {
      ptx::cp_async_wait<0>();
      ptx::barrier_sync_block();
    }
  }

 private:
  // Asleep where waits are long; with one stage they are short.
  __device__ __forceinline__ static void wait(uint32_t offset, uint32_t parity) {
    if constexpr (C.stages == 1) {
      ptx::mbarrier_wait(address(offset), parity);
    } else {
      ptx::mbarrier_sleep(address(offset), parity);
    }
  }
};

}  // namespace flashdelta::attention
