// Registers that say where a thread is, read here and now: what is made of them in a path that is seldom taken, or at
// the end, keeps no register before it.
#pragma once

namespace flashdelta::ptx {

__device__ __forceinline__ int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

__device__ __forceinline__ int block_index() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

}  // namespace flashdelta::ptx
