// A barrier of some of a block's warps.
#pragma once

namespace flashdelta::ptx {

// Of so many threads, who all name it by `id`, 0 to 15; 0 is the block's own as well.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace flashdelta::ptx
