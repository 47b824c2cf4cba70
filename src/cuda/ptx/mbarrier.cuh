// mbarrier: arrivals and waits apart, in shared memory, 8 bytes each. A phase ends when `count` arrivals have come; who
// waits names the phase by its parity. All from SM80.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t shared_address, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address), "r"(count) : "memory");
}

// Its memory may then be used otherwise.
__device__ __forceinline__ void mbarrier_invalidate(uint32_t shared_address) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address) : "memory");
}

// What this thread wrote and read before is done for those who see the phase end.
__device__ __forceinline__ void mbarrier_arrive(uint32_t shared_address) {
  asm volatile("{\n\t.reg .b64 phase;\n\tmbarrier.arrive.shared.b64 phase, [%0];\n\t}" ::"r"(shared_address)
               : "memory");
}

// Arrives when this thread's cp.async copies so far have landed, without waiting for them.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t shared_address) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address) : "memory");
}

// Whether the phase of this parity has ended. The phase before a barrier's first counts as ended, with parity 1.
__device__ __forceinline__ bool mbarrier_test(uint32_t shared_address, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.b32 %0, 1, 0, p;\n\t}"
               : "=r"(done)
               : "r"(shared_address), "r"(parity)
               : "memory");
  return done != 0;
}

// Waits by asking: soonest to go on, and asking takes issue slots from other warps of the quarter.
__device__ __forceinline__ void mbarrier_wait(uint32_t shared_address, uint32_t parity) {
  while (!mbarrier_test(shared_address, parity)) {
  }
}

// The same, asleep where SM90 and later can: other warps then have the issue slots that tests would take.
__device__ __forceinline__ void mbarrier_sleep(uint32_t shared_address, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done;
  do {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.b32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(shared_address), "r"(parity)
                 : "memory");
  } while (done == 0);
#else
  mbarrier_wait(shared_address, parity);
#endif
}

}  // namespace flashdelta::ptx
