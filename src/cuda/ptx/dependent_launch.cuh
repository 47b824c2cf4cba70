// A kernel that starts while the one before it in the stream still runs (from SM90), where the host asks for that.
#pragma once

namespace flashdelta::ptx {

// Once every block of this kernel has said so, or has ended, the next kernel may start.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the kernel before this one to end, with all that it wrote.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace flashdelta::ptx
