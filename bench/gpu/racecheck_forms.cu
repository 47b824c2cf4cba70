// Which orders of copies and reads compute-sanitizer's racecheck knows: the pipeline of the attention kernels as small
// as it gets, in several forms, of which all but one are right.
//
//   nvcc -std=c++20 -arch=sm_90 -I../../src racecheck_forms.cu -o racecheck_forms
//   for form in $(./racecheck_forms); do compute-sanitizer --tool racecheck ./racecheck_forms $form; done
//
// Two warps walk tiles through two places in shared memory. Each warp copies half of a tile and reads the other's half,
// so that every read depends on another warp's copy, and every copy on another warp's read. Without an argument the
// program prints its forms; with one it runs that form and exits 1 where a sum is wrong.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tensor_copy.cuh"

namespace {

using namespace flashdelta;

enum class Copy {
  async_noinc,   // cp.async, and cp.async.mbarrier.arrive.noinc: as the attention kernels
  async_waited,  // cp.async, its wait, and an arrival of each thread
  stored,        // loads and stores, and an arrival of each thread
  bulk,          // a bulk copy that completes on the mbarrier
  block,         // cp.async, its wait, and the block's barrier; no mbarrier
};
enum class Release {
  lane,    // the warp meets, and one lane arrives
  thread,  // each thread arrives: as the attention kernels
  none,    // wrong: nobody waits for reads
};

struct Form {
  const char* name;
  Copy copy;
  Release release;
  bool matrix;  // read by ldmatrix; else by ld
};
constexpr Form forms[] = {
    {"async_noinc_lane", Copy::async_noinc, Release::lane, true},
    {"async_noinc_lane_ld", Copy::async_noinc, Release::lane, false},
    {"async_noinc_thread", Copy::async_noinc, Release::thread, true},
    {"async_waited_lane", Copy::async_waited, Release::lane, true},
    {"async_waited_thread", Copy::async_waited, Release::thread, true},
    {"async_waited_thread_ld", Copy::async_waited, Release::thread, false},
    {"stored_thread", Copy::stored, Release::thread, true},
    {"bulk_lane", Copy::bulk, Release::lane, true},
    {"bulk_thread", Copy::bulk, Release::thread, true},
    {"block", Copy::block, Release::thread, true},
    {"wrong", Copy::async_noinc, Release::none, true},
};

constexpr int threads = 64, tiles = 32, places = 2, words = threads * 4;  // 16 bytes a thread and tile

template <Copy C, Release R, bool Matrix>
__global__ void pipeline(const uint32_t* from, uint32_t* sums) {
  __shared__ alignas(128) uint32_t place[places][words];
  __shared__ uint64_t full[places], empty[places];
  const int thread = static_cast<int>(threadIdx.x), other = thread ^ 32;
  if (thread < places) {
    ptx::mbarrier_init(ptx::shared_address(&full[thread]), C == Copy::bulk ? 1 : threads);
    ptx::mbarrier_init(ptx::shared_address(&empty[thread]), R == Release::lane ? threads / 32 : threads);
  }
  if (C == Copy::bulk) ptx::fence_for_tensor_copies();
  ptx::barrier_sync_block();
  const auto copy = [&](int tile) {
    const int p = tile % places;
    const uint32_t parity = tile / places % 2, here = ptx::shared_address(&full[p]);
    if (C != Copy::block && R != Release::none) {
      ptx::mbarrier_wait(ptx::shared_address(&empty[p]), parity ^ 1);
    }
    const uint32_t to = ptx::shared_address(place[p]);
    const uint32_t* tile_from = from + tile * words;
    if constexpr (C == Copy::bulk) {
      if (thread != 0) return;
      ptx::mbarrier_arrive_expecting(here, words * 4);
      ptx::bulk_copy(to, tile_from, words * 4, here);
    } else if constexpr (C == Copy::stored) {
      uint32_t x[4];
      for (int i = 0; i < 4; i++) x[i] = tile_from[thread * 4 + i];
      ptx::store_shared_128(to + thread * 16, x);
      ptx::mbarrier_arrive(here);
    } else {
      ptx::cp_async_16(to + thread * 16, tile_from + thread * 4);
      if constexpr (C == Copy::async_noinc) ptx::mbarrier_arrive_after_copies(here);
      if constexpr (C == Copy::async_waited) {
        ptx::cp_async_wait_all();
        ptx::mbarrier_arrive(here);
      }
    }
  };
  uint32_t sum = 0;
  copy(0);
  for (int tile = 0; tile < tiles; tile++) {
    const int p = tile % places;
    if constexpr (C == Copy::block) {
      ptx::cp_async_wait_all();
      ptx::barrier_sync_block();
    }
    if (tile + 1 < tiles) copy(tile + 1);
    if (C != Copy::block) ptx::mbarrier_wait(ptx::shared_address(&full[p]), tile / places % 2);
    uint32_t x[4];
    const uint32_t address = ptx::shared_address(place[p]) + other * 16;
    if (Matrix) {
      ptx::ldmatrix_x4(x, address);
    } else {
      ptx::load_shared_128(x, address);
    }
    sum += x[0] + x[1] + x[2] + x[3];
    if constexpr (R == Release::thread && C != Copy::block) {
      ptx::mbarrier_arrive(ptx::shared_address(&empty[p]));
    } else if constexpr (R == Release::lane) {
      ptx::warp_sync();
      if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty[p]));
    }
  }
  sums[thread] = sum;
}

template <size_t I = 0>
bool launch(const char* name, const uint32_t* from, uint32_t* sums) {
  if constexpr (I < std::size(forms)) {
    if (std::strcmp(name, forms[I].name) != 0) return launch<I + 1>(name, from, sums);
    pipeline<forms[I].copy, forms[I].release, forms[I].matrix><<<1, threads>>>(from, sums);
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    for (const Form& form : forms) std::puts(form.name);
    return 0;
  }
  std::vector<uint32_t> from(tiles * words), sums(threads);
  uint32_t expected = 0, sum = 0;
  for (uint32_t i = 0; i < from.size(); i++) expected += from[i] = i * 2654435761u;
  uint32_t *device_from = nullptr, *device_sums = nullptr;
  cudaMalloc(&device_from, from.size() * 4);
  cudaMalloc(&device_sums, sums.size() * 4);
  cudaMemcpy(device_from, from.data(), from.size() * 4, cudaMemcpyHostToDevice);
  if (!launch(argv[1], device_from, device_sums)) {
    std::fprintf(stderr, "no form %s\n", argv[1]);
    return 2;
  }
  cudaMemcpy(sums.data(), device_sums, sums.size() * 4, cudaMemcpyDeviceToHost);
  for (const uint32_t x : sums) sum += x;
  std::printf("%s: %s\n", argv[1], cudaGetLastError() == cudaSuccess && sum == expected ? "right" : "wrong");
  return sum == expected ? 0 : 1;
}
