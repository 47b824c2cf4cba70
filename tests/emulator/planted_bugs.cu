// Attention with one mistake planted in each instance: o = softmax(scale q k^T) v and its lse, one head of 64, bf16.
// Four warps own 16 of a block's 64 query rows each; K and V tiles of 64 keys are double-buffered with cp.async.
#include "instructions.cuh"
#include "planted_bugs.h"

namespace {

constexpr int kRows = 64, kHeadDim = 64, kRowBytes = 128, kTileBytes = kRows * kRowBytes;

template <PlantedBug kBug>
struct Attention {
  static __device__ uint32_t offset(int row, int chunk) {
    return row * kRowBytes + ((kBug == kNoSwizzle ? chunk : chunk ^ (row & 7)) << 4);
  }

  // Rows past the end are zeros and read nothing.
  static __device__ void load_tile(uint32_t tile, const __nv_bfloat16* from, int first, int rows, int extra = 0) {
    for (int i = threadIdx.x; i < kRows * 8; i += 128) {
      const int row = i >> 3, chunk = i & 7;
      const int limit = kBug == kGlobalRowOut ? rows + 1 : rows;
      const bool there = first + row < limit;
      const uint32_t target = tile + offset(row + extra, chunk) + (kBug == kMisalignedCopy && i == 0 ? 8 : 0);
      copy_async(target, there ? from + (first + row) * kHeadDim + chunk * 8 : from, there ? 16 : 0);
    }
  }

  static __device__ void scores(float (&s)[8][4], const uint32_t (&q)[4][4], uint32_t k_tile) {
    const int lane = threadIdx.x & 31;
    for (int k = 0; k < 4; ++k) {
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_matrices(b, k_tile + offset(n * 16 + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
        if (kBug == kSwappedFragments) {
          const uint32_t t = b[1];
          b[1] = b[2];
          b[2] = t;
        }
        mma_bf16(s[2 * n], q[k], b[0], b[1]);
        mma_bf16(s[2 * n + 1], q[k], b[2], b[3]);
      }
    }
  }

  static __device__ void mask(float (&s)[8][4], const PlantedParams& p, int first_row, int first_key) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int n = 0; n < 8; ++n) {
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + n * 8 + (lane & 3) * 2 + (e & 1);
        const int row = first_row + warp * 16 + (lane >> 2) + (e >> 1) * 8;
        const bool past = kBug == kTailMaskOff ? key > p.seqlen_k : key >= p.seqlen_k;
        const bool ahead = p.causal && key > row + p.seqlen_k - p.seqlen_q + (kBug == kCausalMaskOff ? 1 : 0);
        if (past || ahead) s[n][e] = -INFINITY;
      }
    }
  }

  static __device__ void softmax(float (&s)[8][4], float (&acc)[8][4], float (&m)[2], float (&l)[2], float scale) {
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
      for (int n = 0; n < 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -INFINITY ? 0.f : top * scale;
      const float keep = exp2_approx(m[r] * scale - base);
      m[r] = top;
      float sum = 0;
      for (int n = 0; n < 8; ++n) {
        for (int e = 0; e < 2; ++e) {
          s[n][2 * r + e] = exp2_approx(s[n][2 * r + e] * scale - base);
          sum += s[n][2 * r + e];
          acc[n][2 * r + e] *= keep;
        }
      }
      l[r] = l[r] * keep + sum;
    }
  }

  static __device__ void weighted_sum(float (&acc)[8][4], const float (&s)[8][4], uint32_t v_tile) {
    const int lane = threadIdx.x & 31;
    for (int k = 0; k < 4; ++k) {
      const uint32_t a[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                             pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        const uint32_t at = v_tile + offset(k * 16 + (lane & 15), n * 2 + (lane >> 4));
        if (kBug == kWrongTranspose) {
          load_matrices(b, at);
        } else {
          load_matrices_transposed(b, at);
        }
        mma_bf16(acc[2 * n], a, b[0], b[1]);
        mma_bf16(acc[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // Through shared memory, so that global stores are whole rows; only this warp reads what it stages.
  static __device__ void write_out(const PlantedParams& p, const float (&acc)[8][4], const float (&m)[2],
                                   const float (&l)[2], char* staging, int first_row) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int r = 0; r < 2; ++r) {
      float sum = l[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = sum > 0 ? 1.f / sum : 0.f;
      const int in_tile = warp * 16 + (lane >> 2) + r * 8;
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(staging + offset(in_tile, n) + (lane & 3) * 4) =
            pack_bf16(acc[n][2 * r] * inverse, acc[n][2 * r + 1] * inverse);
      }
      if ((lane & 3) == 0 && first_row + in_tile < p.seqlen_q) {
        p.lse[first_row + in_tile] = sum > 0 ? m[r] * p.scale_log2 * 0.69314718f + logf(sum) : -INFINITY;
      }
    }
    if (kBug != kMissingWarpSync) __syncwarp();
    for (int i = lane; i < 16 * 8; i += 32) {
      const int in_tile = warp * 16 + (i >> 3), chunk = i & 7;
      if (first_row + in_tile >= p.seqlen_q) continue;
      *reinterpret_cast<uint4*>(p.o + (first_row + in_tile) * kHeadDim + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + offset(in_tile, chunk));
    }
  }

  static __device__ void run(const PlantedParams& p) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t q_tile = shared_address(shared);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first_row = blockIdx.x * kRows;
    auto k_tile = [&](int stage) { return q_tile + kTileBytes * (1 + stage); };
    auto v_tile = [&](int stage) { return q_tile + kTileBytes * (3 + stage); };
    const int tiles = (p.seqlen_k + kRows - 1) / kRows;
    load_tile(q_tile, p.q, first_row, p.seqlen_q);
    load_tile(k_tile(0), p.k, 0, p.seqlen_k);
    load_tile(v_tile(0), p.v, 0, p.seqlen_k);
    commit_copies();

    float acc[8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    for (int n = 0; n < 8; ++n) {
      for (int e = 0; e < 4; ++e) {
        if (kBug == kUninitialised) {
          asm volatile("" : "=f"(acc[n][e]));  // whatever the register holds
        } else {
          acc[n][e] = 0;
        }
      }
    }
    uint32_t q[4][4];
    for (int j = 0; j < tiles; ++j) {
      const int stage = j & 1;
      auto prefetch = [&] {
        if (j + 1 < tiles) {
          load_tile(k_tile(stage ^ 1), p.k, (j + 1) * kRows, p.seqlen_k);
          load_tile(v_tile(stage ^ 1), p.v, (j + 1) * kRows, p.seqlen_k, kBug == kSharedRowOut ? 1 : 0);
        }
        commit_copies();
      };
      if (kBug != kMissingWait) wait_copies();
      if (kBug == kPrefetchEarly) prefetch();
      const bool skips = kBug == kSkippedBarrier && warp == 3 && j == tiles - 1;
      if (kBug != kMissingBarrier && !skips) __syncthreads();
      if (kBug != kPrefetchEarly) prefetch();
      if (j == 0) {
        for (int k = 0; k < 4; ++k) load_matrices(q[k], q_tile + offset(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
      }
      float s[8][4] = {};
      scores(s, q, k_tile(stage));
      mask(s, p, first_row, j * kRows);
      softmax(s, acc, m, l, p.scale_log2);
      weighted_sum(acc, s, v_tile(stage));
    }
    wait_copies();
    __syncwarp();  // this warp's reads of Q before its writes over them
    write_out(p, acc, m, l, shared, first_row);
  }
};

}  // namespace

#define PLANT(bug) \
  extern "C" __global__ void __launch_bounds__(128) planted_##bug(PlantedParams p) { Attention<bug>::run(p); }
FOR_EACH_PLANTED_BUG(PLANT)
