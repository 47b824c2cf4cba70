// Online softmax over the columns of s^T, as softmax.cuh over rows: a lane has rows (of queries) 8 n + 2 (l % 4) + e,
// keys l / 4 and l / 4 + 8 of 16. Here the keys of a row are shared by two warps, which must agree on its maximum: one
// that raises it says so beside its weights, and before those are used both take the larger one. Maxima are whole
// numbers, so that this multiplies 16-bit weights by powers of two alone.
#pragma once

#include "cuda/attention/paired_storage.cuh"
#include "cuda/attention/softmax.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace flashdelta::attention {

// Over the lanes that hold a row.
__device__ __forceinline__ float octet_max(float x) {
  x = fmaxf(x, ptx::shfl_xor(x, 4));
  x = fmaxf(x, ptx::shfl_xor(x, 8));
  return fmaxf(x, ptx::shfl_xor(x, 16));
}

__device__ __forceinline__ float octet_sum(float x) {
  x += ptx::shfl_xor(x, 4);
  x += ptx::shfl_xor(x, 8);
  return x + ptx::shfl_xor(x, 16);
}

template <ForwardConfig C>
class PairedSoftmax {
 public:
  static constexpr int N = C.pair_rows() / 8;
  using Scores = tile::Accumulator<1, N>;

  // scale: the kernel's own parameter, so that it takes no register.
  __device__ __forceinline__ explicit PairedSoftmax(const float& scale) : scale_(scale) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) maximum_[n][e] = lowest_maximum, sum_[n][e] = 0;
    }
  }

  // Makes the maximum fit for a tile's scores, before their weights are taken.
  __device__ __forceinline__ void raise_maximum(const Scores& s, PairExchange<C>& exchange, int warp, int tile,
                                                int buffer) {
    float rise[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
      float each[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        each[e] = fmaf(fmaxf(s.x[0][n][e], s.x[0][n][e + 2]), scale_, -maximum_[n][e]);
      }
      rise[n] = fmaxf(each[0], each[1]);
    }
    float most = rise[0];
#pragma unroll
    for (int n = 1; n < N; n++) most = fmaxf(most, rise[n]);
    if (!ptx::vote_any(most > OnlineSoftmax<1>::slack)) return;
    const int lane = ptx::thread_index() & 31;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float old = maximum_[n][e];
        maximum_[n][e] = fmaxf(old, ceilf(octet_max(fmaxf(s.x[0][n][e], s.x[0][n][e + 2]) * scale_)));
        sum_[n][e] *= ptx::ex2(old - maximum_[n][e]);
        if (lane < 4) {
          exchange.maximum[warp][0][row(n, e, lane)] = old;
          exchange.maximum[warp][1][row(n, e, lane)] = maximum_[n][e];
        }
      }
    }
    if (lane == 0) exchange.risen[buffer][warp] = tile;
  }

  // Whether the maximum of either warp rose for this tile.
  __device__ __forceinline__ static bool risen(const PairExchange<C>& exchange, int tile, int buffer) {
    const int2 tiles = *reinterpret_cast<const int2*>(exchange.risen[buffer]);
    return (tiles.x == tile) | (tiles.y == tile);
  }

  // The larger maximum of both warps; o, which has the tiles before, the sum and this warp's weights follow it.
  template <int M>
  __device__ __forceinline__ void agree(PairExchange<C>& exchange, int warp, int tile, int buffer,
                                        tile::Accumulator<M, N>& o) {
    const int lane = ptx::thread_index() & 31;
    const bool mine = exchange.risen[buffer][warp] == tile, theirs = exchange.risen[buffer][warp ^ 1] == tile;
#pragma unroll
    for (int n = 0; n < N; n++) {
      float factor[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float old = mine ? exchange.maximum[warp][0][row(n, e, lane)] : maximum_[n][e];
        const float other = theirs ? exchange.maximum[warp ^ 1][1][row(n, e, lane)] : old;
        const float agreed = fmaxf(maximum_[n][e], other), rise = ptx::ex2(old - agreed);
        factor[e] = ptx::ex2(maximum_[n][e] - agreed);
        maximum_[n][e] = agreed;
        sum_[n][e] *= factor[e];
#pragma unroll
        for (int m = 0; m < M; m++) o.x[m][n][e] *= rise, o.x[m][n][e + 2] *= rise;
      }
#pragma unroll
      for (int octet = 0; octet < 2; octet++) {
        uint32_t& word = exchange.weights[buffer][place(warp, n, octet) + lane];
        word = ptx::pack<C.element>(ptx::to_float<C.element>(static_cast<uint16_t>(word)) * factor[0],
                                    ptx::to_float<C.element>(static_cast<uint16_t>(word >> 16)) * factor[1]);
      }
    }
  }

  // Scores of rows 8 n .. + 7 to weights, for both warps.
  __device__ __forceinline__ void weigh(const Scores& s, int n, PairExchange<C>& exchange, int warp, int buffer,
                                        int lane) {
    float p[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      p[e] = ptx::ex2(fmaf(s.x[0][n][e], scale_, -maximum_[n][e & 1]));
      sum_[n][e & 1] += p[e];
    }
    exchange.weights[buffer][place(warp, n, 0) + lane] = ptx::pack<C.element>(p[0], p[1]);
    exchange.weights[buffer][place(warp, n, 1) + lane] = ptx::pack<C.element>(p[2], p[3]);
  }

  // After the last tile: what this warp has of the sums.
  __device__ __forceinline__ void tell_sums(PairExchange<C>& exchange, int warp, int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        sum_[n][e] = octet_sum(sum_[n][e]);
        if (lane < 4) exchange.maximum[warp][0][row(n, e, lane)] = sum_[n][e];
      }
    }
  }
  __device__ __forceinline__ void add_sums(const PairExchange<C>& exchange, int warp, int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) sum_[n][e] += exchange.maximum[warp ^ 1][0][row(n, e, lane)];
    }
  }

  __device__ __forceinline__ Denominator denominator(int n, int e, float sink_log2) const {
    return attention::denominator(maximum_[n][e], sum_[n][e], sink_log2);
  }

  __device__ __forceinline__ static int row(int n, int e, int lane) { return n * 8 + lane % 4 * 2 + e; }

 private:
  // The word of lane 0: of the keys of a warp, rows 8 n and up, keys 8 octet and up.
  __device__ __forceinline__ static int place(int warp, int n, int octet) {
    return (n < 2 ? warp * 256 + n * 64 : 128 + warp * 64) + octet * 32;
  }

  const float& scale_;
  float maximum_[N][2], sum_[N][2];
};

}  // namespace flashdelta::attention
