// The gated delta rule (Yang et al., arXiv 2412.06464) along a sequence, chunk by chunk of 32 tokens. With T, P and the
// gates of the preparation (prepare.cuh) and S the state before the chunk:
//
//   X^T = V^T - S^T K^T diag(e^G)
//   U^T = X^T T^T
//   O^T = S^T Q^T diag(scale e^G) + U^T P^T
//   S^T = e^G_last S^T + U^T diag(e^(G_last - G)) K
//
// A block owns a sequence, a value head and block_v value columns, a warp block_v / warps of them. The state stays in
// the warp's registers, transposed, for the whole sequence: every product has it, or what came of it, as the A operand
// and a shared tile as B. Warps share the tiles alone, and the one barrier a chunk is the pipeline's.
//
// A chunk's step has no branch before its output: the compiler may then put products where others wait.
#pragma once

#include "cuda/gated_delta/copy.cuh"
#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/output.cuh"
#include "cuda/gated_delta/state.cuh"
#include "cuda/ptx/load_shared.cuh"
#include "cuda/ptx/pack_finite.cuh"

namespace flashdelta::gated_delta {

template <GatedDeltaForwardConfig C>
class Forward {
 public:
  __device__ __forceinline__ Forward(ForwardStorage<C>& storage, const GatedDeltaForwardParams& params,
                                     const Sequence& sequence, int n, int head, int value_block)
      : params_(params),
        sequence_(sequence),
        n_(n),
        head_(head),
        thread_(threadIdx.x),
        lane_(threadIdx.x & 31),
        warp_column_(ptx::shfl_idx(threadIdx.x / 32, 0) * C.warp_columns()),
        first_value_(value_block * C.block_v + warp_column_),
        address_(ptx::shared_address(&storage)),
        k_reader_(address_ + k_offset, 0, lane_),
        k_state_reader_(address_ + k_offset, 0, lane_),
        q_reader_(address_ + q_offset, 0, lane_),
        v_reader_(address_ + v_offset, 0, lane_),
        square_reader_(address_ + record_offset, 0, lane_),
        copy_(params, sequence, head, value_block * C.block_v, 0, thread_),
        output_(params, sequence, head, first_value_, warp_column_, lane_) {}

  __device__ __forceinline__ void run() {
    const Slots slots = slots_of(params_, n_);
    if (slots.skipped) {
      output_.clear();
      return;
    }
    tile::zero(state_);
    if (slots.initial >= 0) load_state(state_, params_, params_.initial, slots.initial, head_, first_value_, lane_);
    chunks();
    if (slots.final >= 0) {
      store_state(state_, params_, params_.final, slots.final, head_, first_value_, lane_);
    }
  }

 private:
  using Stage = ForwardStage<C>;
  using Squares = decltype(ChunkRecord::squares);
  static constexpr int M = C.warp_columns() / 16, k_steps = C.dim_k / 16;
  static constexpr uint32_t k_offset = offsetof(Stage, k), q_offset = offsetof(Stage, q);
  static constexpr uint32_t v_offset = offsetof(Stage, v), record_offset = offsetof(Stage, record);

  __device__ __forceinline__ void chunks() {
    const int count = sequence_.chunks();
    int64_t checkpoint = params_.checkpoints.data != nullptr ? first_checkpoint(params_, n_, lane_) : 0;
#pragma unroll
    for (int c = 0; c < C.stages - 1; c++) copy_chunk(address_ + c * sizeof(Stage));
    int stage = 0;
    for (int c = 0; c < count; c++) {
      ptx::cp_async_wait<C.stages - 2>();
      ptx::barrier_sync_block();  // chunk c is there, and every warp has read chunk c - 1
      step(c, stage);
      if (params_.checkpoints.data != nullptr) save_checkpoint(c, checkpoint);
      if (++stage == C.stages) stage = 0;
    }
    ptx::cp_async_wait<0>();  // zeros past the last chunk
  }

  // Chunk c with its tiles in `stage`.
  __device__ __forceinline__ void step(int c, int stage) {
    const uint32_t bytes = stage * sizeof(Stage);
    const uint32_t next = address_ + (stage == 0 ? C.stages - 1 : stage - 1) * sizeof(Stage);  // where chunk c - 1 was
    tile::Operand state[k_steps][M];
    tile::Accumulator<M, 4> ks, qs;
    tile::zero(ks);
    tile::zero(qs);
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
#pragma unroll
      for (int m = 0; m < M; m++) state[k][m] = finite_operand(state_, m, k);
      multiply(ks, state[k], k_reader_, k, bytes);
      if (k < C.early_q) multiply(qs, state[k], q_reader_, k, bytes);
      copy_part(k, next);
    }
    decay(bytes);
    tile::Operand x[2][M];
#pragma unroll
    for (int t = 0; t < 2; t++) residual(x[t], ks, t, bytes);
#pragma unroll
    for (int k = C.early_q; k < k_steps; k++) multiply(qs, state[k], q_reader_, k, bytes);
    tile::Accumulator<M, 4> u;
    tile::zero(u);
    multiply_lower<0>(u, x, bytes);
    tile::Operand value[2][M], update[2][M];
#pragma unroll
    for (int t = 0; t < 2; t++) {
      convert(value[t], update[t], u, t, bytes);
      scale_queries(qs, t, bytes);
    }
    multiply_lower<1>(qs, value, bytes);
    add_update(update[0], 0, bytes);
    output_.turn(qs, address_ + bytes + v_offset);  // its way through shared memory is hidden by the second update
    add_update(update[1], 1, bytes);
    output_.store(qs, c * chunk, address_ + bytes + v_offset);
  }

  // Columns 16 k16 .. + 15 of accumulators as an A operand.
  template <int N>
  static __device__ __forceinline__ tile::Operand finite_operand(const tile::Accumulator<M, N>& s, int m, int k16) {
    tile::Operand d;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const auto& column = s.x[m][2 * k16 + (i >> 1)];
      d.x[i] = ptx::pack_finite<C.element>(column[2 * (i & 1)], column[2 * (i & 1) + 1]);
    }
    return d;
  }

  // d += state k-slice times the tile's: 16 M values by 32 tokens.
  template <class Reader>
  __device__ __forceinline__ void multiply(tile::Accumulator<M, 4>& d, const tile::Operand (&state)[M],
                                           const Reader& reader, int k, uint32_t bytes) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const tile::Operand b = reader.load(n, k, bytes);
#pragma unroll
      for (int m = 0; m < M; m++) tile::multiply_add<C.element>(d, m, n, state[m], b);
    }
  }

  // d += x times the transpose of T (Square 0) or P (1), of which three blocks are there.
  template <int Square>
  __device__ __forceinline__ void multiply_lower(tile::Accumulator<M, 4>& d, const tile::Operand (&x)[2][M],
                                                 uint32_t bytes) {
#pragma unroll
    for (int block = 0; block < block_count; block++) {
      const tile::Operand b = square_reader_.load(Square * block_count + block, 0, bytes);
#pragma unroll
      for (int m = 0; m < M; m++) {
        tile::multiply_add<C.element>(d, m, block == top ? 0 : 1, x[block == bottom ? 1 : 0][m], b);
      }
    }
  }

  __device__ __forceinline__ void decay(uint32_t bytes) {
    const float factor = load_float(bytes, offsetof(ChunkRecord, decay));
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < C.dim_k / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) state_.x[m][n][e] *= factor;
      }
    }
  }

  // X^T of tokens 16 t .. + 15 as A operands.
  __device__ __forceinline__ void residual(tile::Operand (&x)[M], const tile::Accumulator<M, 4>& ks, int t,
                                           uint32_t bytes) {
    const Factors key = factors(bytes, offsetof(ChunkRecord, key), t);
#pragma unroll
    for (int m = 0; m < M; m++) {
      const tile::Operand v = v_reader_.load_transposed(t, warp_column_ / 16 + m, bytes);
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
  __device__ __forceinline__ void convert(tile::Operand (&value)[M], tile::Operand (&update)[M],
                                          const tile::Accumulator<M, 4>& u, int t, uint32_t bytes) {
    const Factors factor = factors(bytes, offsetof(ChunkRecord, update), t);
#pragma unroll
    for (int m = 0; m < M; m++) {
      value[m] = finite_operand(u, m, t);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const auto& column = u.x[m][2 * t + (i >> 1)];
        const int e = 2 * (i & 1), f = i & 2;
        update[m].x[i] = ptx::pack_finite<C.element>(column[e] * factor.x[f], column[e + 1] * factor.x[f + 1]);
      }
    }
  }

  __device__ __forceinline__ void scale_queries(tile::Accumulator<M, 4>& qs, int t, uint32_t bytes) {
    const Factors query = factors(bytes, offsetof(ChunkRecord, query), t);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) qs.x[m][2 * t + n][e] *= query.x[2 * n + (e & 1)];
      }
    }
  }

  // S^T += U^T K of tokens 16 t .. + 15.
  __device__ __forceinline__ void add_update(const tile::Operand (&update)[M], int t, uint32_t bytes) {
#pragma unroll
    for (int n = 0; n < k_steps; n++) {
      const tile::Operand b = k_state_reader_.load_transposed(t, n, bytes);
#pragma unroll
      for (int m = 0; m < M; m++) tile::multiply_add<C.element>(state_, m, n, update[m], b);
    }
  }

  // A lane's four tokens of sixteen: 2 (l % 4), + 1, + 8, + 9.
  struct Factors {
    float x[4];
  };
  __device__ __forceinline__ Factors factors(uint32_t bytes, uint32_t offset, int t) const {
    const uint32_t at = address_ + bytes + record_offset + offset + t * 64 + lane_ % 4 * 8;
    Factors f;
    ptx::load_shared_64(f.x[0], f.x[1], at);
    ptx::load_shared_64(f.x[2], f.x[3], at + 32);
    return f;
  }
  __device__ __forceinline__ float load_float(uint32_t bytes, uint32_t offset) const {
    float x;
    ptx::load_shared_32(x, address_ + bytes + record_offset + offset);
    return x;
  }

  // The next chunk's copies, spread over the steps of the first products.
  __device__ __forceinline__ void copy_part(int k, uint32_t stage_address) {
    static_assert(k_steps >= ChunkCopy<C>::parts);
    if (k == 0) copy_.template issue<0>(stage_address);
    if (k == 1) copy_.template issue<1>(stage_address);
    if (k == 2) copy_.template issue<2>(stage_address);
    if (k == 3) copy_.template issue<3>(stage_address);
  }
  __device__ __forceinline__ void copy_chunk(uint32_t stage_address) {
#pragma unroll
    for (int part = 0; part < ChunkCopy<C>::parts; part++) copy_part(part, stage_address);
  }

  // The state after chunk c, where it ends at a multiple of checkpoint_every tokens. Chunks of 32 divide it.
  __device__ __forceinline__ void save_checkpoint(int c, int64_t& row) {
    const int end = (c + 1) * chunk;
    if (end > sequence_.length || end % params_.checkpoint_every != 0) return;
    if (row < params_.checkpoints.slots) {
      store_state(state_, params_, params_.checkpoints, row, head_, first_value_, lane_);
    }
    row++;
  }

  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const int n_, head_, thread_, lane_, warp_column_, first_value_;
  const uint32_t address_;
  const tile::Reader<decltype(Stage::k), tile::Order::cols_first> k_reader_;
  const tile::Reader<decltype(Stage::k), tile::Order::rows_first> k_state_reader_;
  const tile::Reader<decltype(Stage::q), tile::Order::cols_first> q_reader_;
  const tile::Reader<decltype(Stage::v), tile::Order::cols_first> v_reader_;
  const tile::Reader<Squares, tile::Order::cols_first> square_reader_;
  ChunkCopy<C> copy_;
  const Output<C> output_;
  tile::Accumulator<M, C.dim_k / 8> state_;
};

template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void forward(const GatedDeltaForwardParams& params) {
  static_assert(C.valid());
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(128) char shared[];
  // Value heads of a key head run side by side, so that their keys and queries are read from memory once.
  const int heads_v = params.heads_k * params.group;
  const int value_block = blockIdx.x % params.value_blocks, unit = blockIdx.x / params.value_blocks;
  const int n = unit / heads_v, head = unit - n * heads_v;
  const Sequence sequence = sequence_at(params, n);
  Forward<C>(*reinterpret_cast<ForwardStorage<C>*>(shared), params, sequence, n, head, value_block).run();
}

}  // namespace flashdelta::gated_delta
