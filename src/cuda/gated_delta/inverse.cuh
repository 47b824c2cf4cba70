// (I + L)^-1 of a strictly lower triangular L [32, 32], in place, by one warp:
//
//   A11 = (I + L11)^-1, A22 = (I + L22)^-1 by substitution in fp32;  A21 = -A22 L21 A11
//
// Substitution: lane l has column l % 16 of diagonal block l / 16 in registers. A21 comes from mma on bf16 pairs
// (x = high + low, 16 bits of mantissa), three products for one: nothing here is rounded to the inputs' 16 bits.
#pragma once

#include "cuda/gated_delta/storage.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

struct SplitOperand {
  tile::Operand high, low;

  __device__ __forceinline__ void set(int i, float x, float y) {
    high.x[i] = ptx::pack<Element::bf16>(x, y);
    low.x[i] =
        ptx::pack<Element::bf16>(x - __uint_as_float(high.x[i] << 16), y - __uint_as_float(high.x[i] & 0xffff0000u));
  }
};

__device__ __forceinline__ void multiply_add(tile::Accumulator<1, 2>& d, const SplitOperand& a, const SplitOperand& b) {
  tile::multiply_add<Element::bf16>(d, 0, 0, a.low, b.high);
  tile::multiply_add<Element::bf16>(d, 0, 0, a.high, b.low);
  tile::multiply_add<Element::bf16>(d, 0, 0, a.high, b.high);
}

// The diagonal blocks, whose columns also stay in x. Row i of the inverse is e_i - sum over k < i of L[i][k] row k.
__device__ __forceinline__ void invert_diagonal_blocks(float (&x)[16], LowerSquare& square, int lane) {
  const int block = lane < 16 ? top : bottom, column = lane % 16;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int k4 = 0; k4 < i; k4 += 4) {
      const float4 l = *reinterpret_cast<const float4*>(square.at(block, i, k4));
      const float row[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
      for (int k = k4; k < k4 + 4; k++) {
        if (k < i) sum = fmaf(-row[k - k4], x[k], sum);
      }
    }
    x[i] = sum;
  }
  ptx::warp_sync();  // every lane has read L
#pragma unroll
  for (int i = 0; i < 16; i++) *square.at(block, i, column) = x[i];
  ptx::warp_sync();
}

// A21, transposed throughout so that the first product's accumulators are the second's A operand:
// Y = A11^T L21^T, A21^T = -Y A22^T.
__device__ __forceinline__ void invert_below(LowerSquare& square, int lane) {
  const int r = lane / 4, c = lane % 4 * 2;
  SplitOperand a11, l21, a22;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int low = 8 * (i & 1), high = 8 * (i >> 1) * LowerSquare::pitch;  // of A: rows alternate, of B^T: columns
    const float* a = square.at(top, c, r + low) + high;
    a11.set(i, a[0], a[LowerSquare::pitch]);
    const float2 l = *reinterpret_cast<const float2*>(square.at(below, r, c + low) + high);
    const float2 b = *reinterpret_cast<const float2*>(square.at(bottom, r, c + low) + high);
    l21.set(i, l.x, l.y);
    a22.set(i, -b.x, -b.y);
  }
  tile::Accumulator<1, 2> y, d;
  tile::zero(y);
  multiply_add(y, a11, l21);
  SplitOperand left;
#pragma unroll
  for (int i = 0; i < 4; i++) left.set(i, y.x[0][i >> 1][2 * (i & 1)], y.x[0][i >> 1][2 * (i & 1) + 1]);
  tile::zero(d);
  multiply_add(d, left, a22);
  ptx::warp_sync();  // every lane has read L21
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++)
      square.at(below, c, r + 8 * (e >> 1))[(n * 8 + (e & 1)) * LowerSquare::pitch] = d.x[0][n][e];
  }
  ptx::warp_sync();
}

}  // namespace flashdelta::gated_delta
