// Ordinary control flow with lanes that part and meet again. Each kernel's result is a function of the thread's number,
// written a second time on the host in emulator_control_test.cpp.
#include "control.h"
#include "instructions.cuh"

#define KERNEL(name)                                     \
  extern "C" __global__ void name(int* out) {            \
    const int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = control_##name(i, out);                     \
  }
FOR_EACH_CONTROL_KERNEL(KERNEL)

// Lanes return at different places; the rest go on, and meet.
extern "C" __global__ void early_returns(int* out) {
  const int i = threadIdx.x;
  if (i % 5 == 0) {
    out[i] = -5;
    return;
  }
  int x = i;
  for (int k = 0; k < i; ++k) {
    x += k;
    if (x > 100) {
      out[i] = -x;
      return;
    }
  }
  out[i] = x;
}

// After the lanes have met, warp-wide instructions are whole again.
extern "C" __global__ void meets_again(int* out) {
  int x = threadIdx.x;
  for (int k = 0; k < 4; ++k) {
    if (x & 1) {
      x = 3 * x + 1;
    } else {
      x = x / 2;
    }
    while (x > 50) x -= 7;
    x = __shfl_xor_sync(0xffffffffu, x, 1) + k;
  }
  out[threadIdx.x] = x;
}
