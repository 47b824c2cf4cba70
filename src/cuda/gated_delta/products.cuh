// What a multiplying warp of the sequential kernel does with a chunk's tiles (forward.cuh has the formulas): products,
// and the elementwise steps between them.
#pragma once

#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/storage.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/load_shared.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/memory_16.cuh"
#include "cuda/ptx/pack_finite.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/tile/fragment.cuh"

namespace flashdelta::gated_delta {

// Of one warp: 16 M value columns. `bytes`: from the first stage to the chunk's.
template <GatedDeltaForwardConfig C>
class ChunkProducts {
 public:
  static constexpr int M = C.warp_columns() / 16, k_steps = C.dim_k / 16;
  using Stage = ForwardStage<C>;
  using Storage = ForwardStorage<C>;
  using State = tile::Accumulator<M, C.dim_k / 8>;
  // Value columns by the chunk's tokens, of all blocks of 16 columns or of some.
  template <int Blocks>
  using Tokens = tile::Accumulator<Blocks, 4>;
  template <int Blocks>
  using Operands = tile::Operand[Blocks];

  __device__ __forceinline__ ChunkProducts(uint32_t address, int warp_column, int lane)
      : address_(address),
        lane_(lane),
        k_reader_(address + k_offset, 0, lane),
        k_state_reader_(address + k_offset, 0, lane),
        q_reader_(address + q_offset, 0, lane),
        v_address_(address + v_offset + Values::offset(lane % 8 + lane / 16 * 8, warp_column / 8 + lane / 8 % 2)),
        square_reader_(address + record_offset, 0, lane),
        factors_(address + record_offset + lane % 4 * 16) {
    if constexpr (C.keep_addresses) v_address_ = ptx::shfl_idx(static_cast<int>(v_address_), lane);
  }

  // Columns 16 k16 .. + 15 of a block of accumulators as an A operand.
  template <int Blocks, int N>
  static __device__ __forceinline__ tile::Operand finite_operand(const tile::Accumulator<Blocks, N>& s, int m,
                                                                 int k16) {
    tile::Operand d;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const auto& column = s.x[m][2 * k16 + (i >> 1)];
      d.x[i] = ptx::pack_finite<C.element>(column[2 * (i & 1)], column[2 * (i & 1) + 1]);
    }
    return d;
  }
  // The same of blocks first_m .. of the state.
  template <int Blocks>
  static __device__ __forceinline__ void slice(Operands<Blocks>& d, const State& s, int k16, int first_m = 0) {
#pragma unroll
    for (int m = 0; m < Blocks; m++) d[m] = finite_operand(s, first_m + m, k16);
  }

  // Tokens 16 n .. + 15 of slice k of the keys, or of the queries.
  __device__ __forceinline__ tile::Operand load_keys(int n, int k, uint32_t bytes) const {
    return k_reader_.load(n, k, bytes);
  }
  __device__ __forceinline__ tile::Operand load_queries(int n, int k, uint32_t bytes) const {
    return q_reader_.load(n, k, bytes);
  }

  // d += x b, of tokens 16 n .. + 15.
  template <int Blocks>
  static __device__ __forceinline__ void multiply(Tokens<Blocks>& d, int n, const Operands<Blocks>& x,
                                                  const tile::Operand& b) {
#pragma unroll
    for (int m = 0; m < Blocks; m++) tile::multiply_add<C.element>(d, m, n, x[m], b);
  }

  // d of tokens 16 n .. + 15 += x times the transpose of a block of T (Square 0) or of P (1).
  template <int Square, int Blocks>
  __device__ __forceinline__ void multiply_block(Tokens<Blocks>& d, int n, const Operands<Blocks>& x, int block,
                                                 uint32_t bytes) const {
    multiply(d, n, x, square_reader_.load(Square * block_count + block, 0, bytes));
  }

  // All three blocks.
  template <int Square, int Blocks>
  __device__ __forceinline__ void multiply_lower(Tokens<Blocks>& d, const Operands<Blocks> (&x)[2],
                                                 uint32_t bytes) const {
    multiply_block<Square>(d, 0, x[0], top, bytes);
    multiply_block<Square>(d, 1, x[0], below, bytes);
    multiply_block<Square>(d, 1, x[1], bottom, bytes);
  }

  // X^T of tokens 16 t .. + 15 as A operands, of blocks first_m ..
  template <int Blocks>
  __device__ __forceinline__ void residual(Operands<Blocks>& x, const Tokens<Blocks>& ks, int t, uint32_t bytes,
                                           float factor, int first_m = 0) const {
    const Factors key = factors(bytes, offsetof(ChunkRecord, key), t, factor);
#pragma unroll
    for (int m = 0; m < Blocks; m++) {
      tile::Operand v;
      ptx::ldmatrix_x4_trans(v.x, values_at(t, first_m + m, bytes));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const auto& s = ks.x[m][2 * t + (i >> 1)];
        const int e = 2 * (i & 1), f = i & 2;
        x[m].x[i] =
            ptx::pack_finite<C.element>(fmaf(-key.x[f], s[e], to_float<C.element>(static_cast<uint16_t>(v.x[i]))),
                                        fmaf(-key.x[f + 1], s[e + 1], to_float<C.element>(v.x[i] >> 16)));
      }
    }
  }

  // U^T of tokens 16 t .. + 15 as A operands: as it is, and decayed to the chunk's end.
  template <int Blocks>
  __device__ __forceinline__ void convert(Operands<Blocks>& value, Operands<Blocks>& update, const Tokens<Blocks>& u,
                                          int t, uint32_t bytes, float after) const {
    const Factors factor = factors(bytes, offsetof(ChunkRecord, update), t, after);
#pragma unroll
    for (int m = 0; m < Blocks; m++) {
      value[m] = finite_operand(u, m, t);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const auto& column = u.x[m][2 * t + (i >> 1)];
        const int e = 2 * (i & 1), f = i & 2;
        update[m].x[i] = ptx::pack_finite<C.element>(column[e] * factor.x[f], column[e + 1] * factor.x[f + 1]);
      }
    }
  }

  template <int Blocks>
  __device__ __forceinline__ void scale_queries(Tokens<Blocks>& qs, int t, uint32_t bytes, float factor) const {
    const Factors query = factors(bytes, offsetof(ChunkRecord, query), t, factor);
#pragma unroll
    for (int m = 0; m < Blocks; m++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) qs.x[m][2 * t + n][e] *= query.x[2 * n + (e & 1)];
      }
    }
  }

  // O^T of blocks first_m .. in 16 bits, where V^T was.
  template <int Blocks>
  __device__ __forceinline__ void write_output(const Tokens<Blocks>& o, uint32_t bytes, int first_m = 0) const {
    ptx::warp_sync();  // every lane has read V
#pragma unroll
    for (int m = 0; m < Blocks; m++) {
      // Values 8 half + l / 4 of tokens 8 n + 2 (l % 4) and + 1.
      const auto packed = [&](int n, int half) {
        return ptx::pack<C.element>(o.x[m][n][2 * half], o.x[m][n][2 * half + 1]);
      };
      if constexpr (ptx::has_stmatrix) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
          const uint32_t words[4] = {packed(2 * t, 0), packed(2 * t, 1), packed(2 * t + 1, 0), packed(2 * t + 1, 1)};
          ptx::stmatrix_x4_trans(values_at(t, first_m + m, bytes), words);
        }
      } else {
        // From the address that this lane has for matrices: row lane % 8 of them begins there, but for its swizzle.
        const uint32_t row = lane_ % 8 + lane_ / 16 * 8,
                       chunk16 = values_at(0, first_m + m, bytes) - row * Values::pitch;
        const uint32_t column = chunk16 ^ ((row % 8) << 4) ^ ((lane_ / 8 % 2) << 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
          for (int n = 0; n < 4; n++) {
            const uint32_t token = lane_ % 4 * 2;  // of eight, as the swizzle counts them
            const uint32_t even =
                ((column ^ (half << 4)) ^ (token << 4)) + lane_ / 4 * 2 + (n * 8 + token) * Values::pitch;
            ptx::store_shared_16x2(even, (even ^ 16) + Values::pitch, packed(n, half));
          }
        }
      }
    }
  }

  // The keys' tile as the state's update has it: of tokens 0 .. 15 in slices 0 .. k_steps - 1, then of the others in
  // the next k_steps.
  __device__ __forceinline__ tile::Operand load_update(int slice, uint32_t bytes) const {
    return k_state_reader_.load_transposed(slice / k_steps, slice % k_steps, bytes);
  }

  __device__ __forceinline__ float load_decay(uint32_t bytes) const {
    float x;
    ptx::load_shared_32(x, decay_address(bytes));
    return x;
  }
  __device__ __forceinline__ uint32_t decay_address(uint32_t bytes) const {
    return address_ + bytes + record_offset + offsetof(ChunkRecord, decay);
  }

 private:
  using Squares = decltype(ChunkRecord::squares);
  using Values = typename Stage::Values;
  static constexpr uint32_t k_offset = offsetof(Stage, k), q_offset = offsetof(Stage, q);
  static constexpr uint32_t v_offset = offsetof(Stage, v), record_offset = offsetof(Stage, record);

  // Of tokens 16 t .. and a block of columns, as ldmatrix with .trans and its inverse take them.
  __device__ __forceinline__ uint32_t values_at(int t, int m, uint32_t bytes) const {
    return ((v_address_ + bytes) ^ (2 * m << 4)) + t * 16 * Values::pitch;
  }

  // A lane's four tokens of sixteen, 2 (l % 4), + 1, + 8, + 9: together in the record.
  struct Factors {
    float x[4];
  };
  __device__ __forceinline__ Factors factors(uint32_t bytes, uint32_t offset, int t, float factor) const {
    uint32_t words[4];
    ptx::load_shared_128(words, factors_ + bytes + offset + t * 64);
    Factors f;
#pragma unroll
    for (int i = 0; i < 4; i++) f.x[i] = __uint_as_float(words[i]) * factor;
    return f;
  }

  template <class Tile, tile::Order O>
  using Reader = tile::Reader<Tile, O, C.keep_addresses>;

  const uint32_t address_;
  const int lane_;
  Reader<decltype(Stage::k), tile::Order::cols_first> k_reader_;
  Reader<decltype(Stage::k), tile::Order::rows_first> k_state_reader_;
  Reader<decltype(Stage::q), tile::Order::cols_first> q_reader_;
  uint32_t v_address_;  // of the warp's columns
  Reader<Squares, tile::Order::cols_first> square_reader_;
  const uint32_t factors_;
};

}  // namespace flashdelta::gated_delta
