// The states before a sequence's parts, from what its parts do (parts.cuh), in fp32: S_(s+1) = M_s S_s + H_s. starts
// [columns, dim_k] holds H_s where S_(s+1) goes, and S_1, which the first part has left.
//
// A block owns a sequence, a value head and 8 value columns. A thread owns a key of the new state and half of the keys
// that its sum goes over; M comes by coalesced rows straight to registers, ahead of its use, and the state lies in
// shared memory, where all lanes read the same numbers.
#pragma once

#include "cuda/gated_delta/parts.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/dependent_launch.cuh"

namespace flashdelta::gated_delta {

template <GatedDeltaScanConfig C>
struct ScanStorage {
  static constexpr int share = C.columns / C.groups;  // columns that a group's thread ends
  float state[C.dim_k][C.columns];
  float sums[C.groups][C.dim_k][share];  // of a group's columns, by the other one
};

template <GatedDeltaScanConfig C>
class Scan {
 public:
  __device__ __forceinline__ Scan(ScanStorage<C>& storage, const GatedDeltaForwardParams& p, const Part& first,
                                  int head, int first_column)
      : storage_(storage),
        key_(threadIdx.x % C.dim_k),
        group_(threadIdx.x / C.dim_k),
        starts_(p.starts + (first.first_slot * heads(p) + head) * state_size(p) +
                (first_column + group_ * share) * C.dim_k + key_),
        transitions_(p.transitions + (first.first_slot * heads(p) + head) * matrix_size + group_ * keys * C.dim_k +
                     key_),
        start_stride_(heads(p) * state_size(p)),
        transition_stride_(int64_t{heads(p)} * matrix_size),
        last_(first.count - 1) {}

  __device__ __forceinline__ void run() {
    float m[tile];
    load(m, 1, 0);
    float own[share];
    load_own(own, 1);
    keep(own);
    ptx::barrier_sync_block();
    for (int s = 1; s < last_; s++) {
      float sum[C.columns];
#pragma unroll
      for (int c = 0; c < C.columns; c++) sum[c] = 0;
      load_own(own, s + 1);
      for (int t = 0; t < tiles; t++) {
        float next[tile];
        load(next, t + 1 < tiles ? s : s + 1, t + 1 < tiles ? t + 1 : 0);
        add(sum, m, t);
#pragma unroll
        for (int i = 0; i < tile; i++) m[i] = next[i];
      }
      finish(own, sum, s + 1);
    }
  }

 private:
  static constexpr int share = ScanStorage<C>::share;
  static constexpr int keys = C.dim_k / C.groups, tile = 32, tiles = keys / tile;
  static constexpr int64_t matrix_size = int64_t{C.dim_k} * C.dim_k;
  static_assert(keys % tile == 0 && share == 4 && C.groups == 2);

  static __device__ __forceinline__ int heads(const GatedDeltaForwardParams& p) { return p.heads_k * p.group; }
  static __device__ __forceinline__ int64_t state_size(const GatedDeltaForwardParams& p) {
    return int64_t{p.columns} * C.dim_k;
  }

  // Columns tile * t .. of this thread's row of M_s and half. Nothing after the last.
  __device__ __forceinline__ void load(float (&m)[tile], int s, int t) const {
    const float* from = transitions_ + s * transition_stride_ + t * tile * C.dim_k;
    const bool there = s < last_;
#pragma unroll
    for (int i = 0; i < tile; i++) m[i] = there ? from[i * C.dim_k] : 0.0f;
  }

  __device__ __forceinline__ void load_own(float (&own)[share], int s) const {
#pragma unroll
    for (int c = 0; c < share; c++) own[c] = starts_[s * start_stride_ + c * C.dim_k];
  }

  __device__ __forceinline__ void add(float (&sum)[C.columns], const float (&m)[tile], int t) const {
#pragma unroll
    for (int i = 0; i < tile; i++) {
      const float4* state = reinterpret_cast<const float4*>(storage_.state[group_ * keys + t * tile + i]);
#pragma unroll
      for (int c = 0; c < C.columns; c += 4) {
        const float4 s = state[c / 4];
        sum[c] = fmaf(m[i], s.x, sum[c]);
        sum[c + 1] = fmaf(m[i], s.y, sum[c + 1]);
        sum[c + 2] = fmaf(m[i], s.z, sum[c + 2]);
        sum[c + 3] = fmaf(m[i], s.w, sum[c + 3]);
      }
    }
  }

  // Columns of this thread's to the shared state.
  __device__ __forceinline__ void keep(const float (&x)[share]) const {
    *reinterpret_cast<float4*>(storage_.state[key_] + group_ * share) = make_float4(x[0], x[1], x[2], x[3]);
  }

  // Both groups' sums and H are the state before part s.
  __device__ __forceinline__ void finish(float (&own)[share], const float (&sum)[C.columns], int s) {
    float mine[share], others[share];
#pragma unroll
    for (int c = 0; c < share; c++) {
      mine[c] = group_ == 0 ? sum[c] : sum[share + c];
      others[c] = group_ == 0 ? sum[share + c] : sum[c];
    }
    *reinterpret_cast<float4*>(storage_.sums[1 - group_][key_]) =
        make_float4(others[0], others[1], others[2], others[3]);
    ptx::barrier_sync_block();
    const float4 rest = *reinterpret_cast<const float4*>(storage_.sums[group_][key_]);
    const float add[share] = {rest.x, rest.y, rest.z, rest.w};
#pragma unroll
    for (int c = 0; c < share; c++) {
      own[c] += mine[c] + add[c];
      starts_[s * start_stride_ + c * C.dim_k] = own[c];
    }
    keep(own);
    ptx::barrier_sync_block();
  }

  ScanStorage<C>& storage_;
  const int key_, group_;
  float* starts_;
  const float* transitions_;
  const int64_t start_stride_, transition_stride_;
  const int last_;  // the part that no state after is asked for
};

template <GatedDeltaScanConfig C>
__device__ __forceinline__ void scan(const GatedDeltaForwardParams& params) {
  static_assert(sizeof(ScanStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(128) char shared[];
  ptx::let_next_kernel_start();
  ptx::wait_for_kernel_before();
  const int slices = params.dim_v / C.columns, heads_v = params.heads_k * params.group;
  const int slice = blockIdx.x % slices, unit = blockIdx.x / slices, n = unit / heads_v;
  const Part first = first_part(params, sequence_at(params, n), n);
  if (first.count < 3 || slots_of(params, n).skipped) return;
  Scan<C>(*reinterpret_cast<ScanStorage<C>*>(shared), params, first, unit % heads_v, slice * C.columns).run();
}

}  // namespace flashdelta::gated_delta
