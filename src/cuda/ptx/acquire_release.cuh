// Numbers in global memory by which blocks of a card tell one another how far they are.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

// What this thread wrote before, and what it knows to be written, is there for those who see x.
__device__ __forceinline__ void store_release_32(void* pointer, int x) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(pointer), "r"(x) : "memory");
}

__device__ __forceinline__ int load_acquire_32(const void* pointer) {
  int x;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(pointer) : "memory");
  return x;
}

__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Has the tensor engine's copies from global memory, asked for after it, see what ordinary stores wrote before it.
__device__ __forceinline__ void fence_global_for_tensor_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace flashdelta::ptx
