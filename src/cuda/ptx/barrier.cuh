// Barriers of a block, of some of its warps, and of one warp.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void barrier_sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }

// Named barrier `id` (1 to 15) between `threads` threads of the block, whole warps.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts towards the barrier without waiting at it.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

}  // namespace flashdelta::ptx
