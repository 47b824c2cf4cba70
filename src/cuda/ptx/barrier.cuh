// Barriers of a block and of one warp.
#pragma once

namespace flashdelta::ptx {

__device__ __forceinline__ void barrier_sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }

__device__ __forceinline__ void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

}  // namespace flashdelta::ptx
