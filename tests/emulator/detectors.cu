// Small kernels, each for one thing that a detector must see or must leave alone.
#include "instructions.cuh"

extern "C" {

// ---- shared memory ----------------------------------------------------------------------------------------------

__global__ void race_between_warps(int* out) {
  __shared__ int x[64];
  x[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = x[threadIdx.x ^ 32];
}
__global__ void race_within_warp(int* out) {
  __shared__ int x[64];
  x[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = x[threadIdx.x ^ 1];
}
__global__ void no_race(int* out) {
  __shared__ int x[64];
  x[threadIdx.x] = threadIdx.x;
  __syncwarp();
  const int near = x[threadIdx.x ^ 1];
  __syncthreads();
  out[threadIdx.x] = near + x[threadIdx.x ^ 32];
}
// Neighbouring halves and bytes of a word are no race.
__global__ void small_elements(int* out) {
  __shared__ unsigned short halves[64];
  __shared__ unsigned char bytes[64];
  halves[threadIdx.x] = static_cast<unsigned short>(threadIdx.x * 3);
  bytes[threadIdx.x] = static_cast<unsigned char>(threadIdx.x * 5);
  __syncthreads();
  out[threadIdx.x] = halves[63 - threadIdx.x] + 1000 * bytes[63 - threadIdx.x];
}
__global__ void small_elements_race(int* out) {
  __shared__ unsigned short halves[64];
  halves[threadIdx.x] = 0;
  __syncthreads();
  halves[threadIdx.x] = static_cast<unsigned short>(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = halves[(threadIdx.x + 1) & 63];
}
__global__ void write_after_read_race(int* out) {
  __shared__ int x[64];
  x[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const int other = x[threadIdx.x ^ 32];
  x[threadIdx.x] = 2 * other;
  __syncthreads();
  out[threadIdx.x] = x[threadIdx.x];
}
__global__ void shared_atomics(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, static_cast<int>(threadIdx.x));
  __syncthreads();
  out[threadIdx.x] = sum;
}
__global__ void shared_out_of_bounds(int* out, int past) {
  extern __shared__ int dynamic[];
  dynamic[threadIdx.x + past] = 1;
  out[threadIdx.x] = 0;
}
__global__ void shared_misaligned(int* out, int by) {
  __shared__ __align__(16) char x[1024];
  asm volatile("st.shared.u32 [%0], 1;" ::"r"(shared_address(x) + threadIdx.x * 4 + by) : "memory");
  out[threadIdx.x] = 0;
}

// ---- global memory ----------------------------------------------------------------------------------------------

__global__ void global_store_at(int* out, long long index) { out[index + threadIdx.x] = 1; }
__global__ void global_load_at(const int* in, int* out, long long index) { out[threadIdx.x] = in[index + threadIdx.x]; }
__global__ void global_misaligned(char* out) { *reinterpret_cast<int*>(out + 4 * threadIdx.x + 2) = 1; }
__global__ void global_write_conflict(int* out) { out[threadIdx.x] = 1; }
__global__ void global_atomics(int* out) { atomicAdd(&out[threadIdx.x], 1); }
__global__ void global_own_rows(unsigned short* out) { out[blockIdx.x * 33 + threadIdx.x] = 1; }

// ---- undefined values -------------------------------------------------------------------------------------------

__global__ void undefined_shared_to_output(int* out) {
  __shared__ int x[64];
  if (threadIdx.x < 32) x[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = x[threadIdx.x];
}
// Undefined, but chosen away before it matters.
__global__ void undefined_but_unused(int* out, int limit) {
  __shared__ int x[64];
  if (threadIdx.x < 32) x[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const int value = x[threadIdx.x];
  int chosen;
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; selp.b32 %0, %1, 7, p; }"
               : "=r"(chosen)
               : "r"(value), "r"(static_cast<int>(threadIdx.x)), "r"(limit));
  out[threadIdx.x] = chosen;
}
__global__ void undefined_branch(int* out) {
  __shared__ int x[64];
  const int value = *static_cast<volatile int*>(&x[threadIdx.x]);
  if (value == 17) out[threadIdx.x] = 1;
}
__global__ void undefined_address(int* out) {
  int index;
  asm volatile("" : "=r"(index));
  asm volatile("st.global.u32 [%0], 1;" ::"l"(out + (index & 1)) : "memory");
}
__global__ void undefined_global(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }
__global__ void undefined_through_copy(const int4* in, int* out) {
  __shared__ __align__(16) int4 x[32];
  copy_async(shared_address(&x[threadIdx.x]), in + threadIdx.x, 16);
  commit_copies();
  wait_copies();
  __syncthreads();
  out[threadIdx.x] = x[31 - threadIdx.x].y;
}
__global__ void undefined_through_mma(float* out) {
  uint32_t a[4] = {0, 0, 0, 0};
  uint32_t b;
  asm volatile("" : "=r"(b));
  if (threadIdx.x >= 4) b = 0;  // only column 0 of B is undefined
  float d[4] = {};
  mma_bf16(d, a, b, b);
  const int column = 2 * (threadIdx.x & 3);
  if (column != 0) out[threadIdx.x] = d[0];  // columns 2, 4 and 6 are fine
  if (column == 0) out[threadIdx.x] = d[1];  // and so is 1
}
__global__ void undefined_mma_column(float* out) {
  uint32_t a[4] = {0, 0, 0, 0};
  uint32_t b;
  asm volatile("" : "=r"(b));
  if (threadIdx.x >= 4) b = 0;
  float d[4] = {};
  mma_bf16(d, a, b, b);
  out[threadIdx.x] = d[0];
}

// ---- barriers, divergence ---------------------------------------------------------------------------------------

__global__ void named_barriers_deadlock(int* out) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 64;" ::: "memory");
  }
  out[threadIdx.x] = 1;
}
// Producer and consumer warps: one arrives, the other waits.
__global__ void named_barriers(int* out) {
  __shared__ int x[32];
  if (threadIdx.x < 32) {
    x[threadIdx.x] = threadIdx.x + 5;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x - 32] = x[threadIdx.x - 32];
  }
}
__global__ void barrier_counts_differ(int* out) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 96;" ::: "memory");
  }
  out[threadIdx.x] = 1;
}
__global__ void divergent_barrier(int* out) {
  if (threadIdx.x & 1) __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void divergent_mma(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {0, 0, 0, 0};
  if (threadIdx.x < 16) mma_bf16(d, a, 0, 0);
  out[threadIdx.x] = d[0];
}
__global__ void shuffle_with_wrong_mask(int* out) {
  int x = threadIdx.x;
  if (threadIdx.x < 16) x = __shfl_xor_sync(0xffffffffu, x, 1);
  out[threadIdx.x] = x;
}
__global__ void shuffle_with_right_mask(int* out) {
  int x = threadIdx.x;
  if (threadIdx.x < 16) x = __shfl_xor_sync(0x0000ffffu, x, 1);
  out[threadIdx.x] = x;
}
__global__ void barrier_reductions(int* out) {
  out[3 * threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0);
  out[3 * threadIdx.x + 1] = __syncthreads_and(threadIdx.x < 64) != 0;
  out[3 * threadIdx.x + 2] = __syncthreads_or(threadIdx.x > 64) != 0;
}
__global__ void traps(int* out) {
  if (out[threadIdx.x] == 3) __trap();
}
__global__ void never_ends(volatile int* out) {
  while (out[0] == 0) {
  }
}

// ---- asynchronous copies ----------------------------------------------------------------------------------------

__global__ void copy_never_waited(const int4* in, int* out) {
  __shared__ __align__(16) int4 x[32];
  copy_async(shared_address(&x[threadIdx.x]), in + threadIdx.x, 16);
  commit_copies();
  out[threadIdx.x] = 1;
}
__global__ void copy_without_barrier(const int4* in, int* out) {
  __shared__ __align__(16) int4 x[64];
  copy_async(shared_address(&x[threadIdx.x]), in + threadIdx.x, 16);
  commit_copies();
  wait_copies();
  out[threadIdx.x] = x[threadIdx.x ^ 32].x;
}
__global__ void write_over_copy(const int4* in, int* out) {
  __shared__ __align__(16) int4 x[32];
  copy_async(shared_address(&x[threadIdx.x]), in + threadIdx.x, 16);
  commit_copies();
  x[threadIdx.x].x = 1;
  wait_copies();
  out[threadIdx.x] = x[threadIdx.x].x;
}
// kind 0: right; 1: nobody waits; 2: waits for the wrong phase; 3: fewer bytes expected than come (deadlock).
__global__ void bulk_copy(const int* in, int* out, int kind) {
  __shared__ __align__(128) int x[256];
  __shared__ __align__(8) uint64_t barrier;
  const uint32_t b = shared_address(&barrier);
  if (threadIdx.x == 0) mbarrier_init(b, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(b, kind == 3 ? 2048 : 1024);
    bulk_load(shared_address(x), in, 1024, b);
  }
  if (kind != 1) mbarrier_wait(b, kind == 2 ? 1 : 0);
  for (int i = threadIdx.x; i < 256; i += 64) out[i] = x[i];
}
struct alignas(128) TensorMap {
  uint64_t words[16];
};
// kind 0: right; 1: nobody waits; 2: the box of an address that is no map's.
__global__ void tensor_box(const __grid_constant__ TensorMap map, short* out, int x, int y, int z, int w, int kind) {
  __shared__ __align__(1024) short box[32 * 64];
  __shared__ __align__(8) uint64_t barrier;
  const uint32_t b = shared_address(&barrier);
  if (threadIdx.x == 0) mbarrier_init(b, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(b, 4096);
    tensor_load(shared_address(box), kind == 2 ? map.words + 8 : map.words, x, y, z, w, b);
  }
  if (kind != 1) mbarrier_wait(b, 0);
  for (int i = threadIdx.x; i < 32 * 64; i += 64) {
    const int row = i / 64, chunk = i % 64 / 8;
    out[i] = box[row * 64 + (chunk ^ row % 8) * 8 + i % 8];
  }
}
__global__ void bulk_store_waited(int* out, int waits) {
  __shared__ __align__(128) int x[256];
  for (int i = threadIdx.x; i < 256; i += 64) x[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out, shared_address(x), 1024);
    if (waits) wait_bulk_reads();
    x[0] = -1;
    if (!waits) wait_bulk_reads();
  }
}
__global__ void mbarrier_pipeline(const int* in, int* out) {
  __shared__ __align__(128) int x[2][128];
  __shared__ __align__(8) uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(shared_address(&full[s]), 1);
      mbarrier_init(shared_address(&empty[s]), 32);
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // producer
    for (int t = 0; t < 8; ++t) {
      const int s = t & 1;
      if (t >= 2) mbarrier_wait(shared_address(&empty[s]), ((t >> 1) + 1) & 1);
      if (threadIdx.x == 0) {
        mbarrier_expect(shared_address(&full[s]), 512);
        bulk_load(shared_address(x[s]), in + 128 * t, 512, shared_address(&full[s]));
      }
    }
  } else {
    int sum = 0;
    for (int t = 0; t < 8; ++t) {
      const int s = t & 1;
      mbarrier_wait(shared_address(&full[s]), (t >> 1) & 1);
      for (int i = 0; i < 4; ++i) sum += x[s][(threadIdx.x - 32) * 4 + i];
      mbarrier_arrive(shared_address(&empty[s]));
    }
    out[threadIdx.x - 32] = sum;
  }
}
__global__ void mbarrier_not_initialised(int* out) {
  __shared__ __align__(8) uint64_t barrier;
  mbarrier_arrive(shared_address(&barrier));
  out[threadIdx.x] = 1;
}
}
