// Copies by the tensor engine (TMA, from SM90): to shared memory they complete on an mbarrier, from it in groups. One
// thread asks for a whole box, and no instruction of the warps carries its bytes. To shared::cta: given any place of a
// cluster, machine code for SM120 first asks whose it is.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_tensor_copy = true;
#else
inline constexpr bool has_tensor_copy = false;
#endif

// What this thread wrote to shared memory, as new mbarriers, is there for the copies that are asked for after it.
__device__ __forceinline__ void fence_for_tensor_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Arrives, and has the phase wait for so many bytes of copies besides.
__device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t shared_address, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n\t.reg .b64 phase;\n\tmbarrier.arrive.expect_tx.shared.b64 phase, [%0], %1;\n\t}" ::"r"(shared_address),
      "r"(bytes)
      : "memory");
#endif
}

// The box of a 4D tensor map whose first element is at (x, y, z, w), x innermost. Elements outside the tensor become
// zero and count as bytes copied. `map` lies in parameters, constant or global memory.
__device__ __forceinline__ void tensor_copy(uint32_t shared_address, const void* map, int x, int y, int z, int w,
                                            uint32_t mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(mbarrier)
      : "memory");
#endif
}

// The box of a 4D tensor map from shared memory to global: elements outside the tensor go nowhere. What the warp's
// lanes wrote to the box they have fenced, and met. Part of the thread's open group of stores.
__device__ __forceinline__ void tensor_store(uint32_t shared_address, const void* map, int x, int y, int z, int w) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(shared_address),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
#endif
}

// Closes the thread's group of stores.
__device__ __forceinline__ void tensor_store_commit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until this thread's stores have read shared memory, which may then be written again.
__device__ __forceinline__ void tensor_store_wait_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// `bytes` in one piece, a multiple of 16 as the addresses are.
__device__ __forceinline__ void bulk_copy(uint32_t shared_address, const void* global, uint32_t bytes,
                                          uint32_t mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address),
      "l"(global), "r"(bytes), "r"(mbarrier)
      : "memory");
#endif
}

}  // namespace flashdelta::ptx
