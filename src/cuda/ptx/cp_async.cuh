// cp.async: 16 bytes from global to shared memory without registers, past L1. Groups complete in order of commit.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void cp_async_16(uint32_t shared_address, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(global) : "memory");
}

// Copies the first `bytes` (0 to 16) and fills the rest with zeros; with 0, `global` is not read and may lie anywhere.
__device__ __forceinline__ void cp_async_16_zero_filled(uint32_t shared_address, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most Pending of this thread's groups are under way. Other threads' copies need a barrier as well.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Waits for all of this thread's copies, whatever their group.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace flashdelta::ptx
