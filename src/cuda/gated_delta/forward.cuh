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
// and a shared tile as B. Warps share the tiles alone.
//
// A chunk's step has no branch before its output, and S^T Q^T stands in the source where the products of X, U and the
// state would wait for one another: the assembler moves products little.
#pragma once

#include "cuda/gated_delta/copy.cuh"
#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/output.cuh"
#include "cuda/gated_delta/segments.cuh"
#include "cuda/gated_delta/state.cuh"
#include "cuda/ptx/load_shared.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/pack_finite.cuh"

namespace flashdelta::gated_delta {

// Runs the chunks of one sequence, value head and value block: a warp copies, the others multiply, each at its own pace
// within the stages. (With a barrier a chunk all warps ask for shared memory at the same time, and then all for none.)
template <GatedDeltaForwardConfig C>
class Forward {
 public:
  __device__ __forceinline__ Forward(ForwardStorage<C>& storage, const GatedDeltaForwardParams& params,
                                     const Sequence& sequence, const ChunkRange& range, int n, int head,
                                     int value_block)
      : params_(params),
        sequence_(sequence),
        range_(range),
        n_(n),
        head_(head),
        lane_(threadIdx.x & 31),
        warp_column_(ptx::shfl_idx(threadIdx.x / 32, 0) * C.warp_columns()),
        first_value_(value_block * C.block_v + warp_column_),
        address_(ptx::shared_address(&storage)),
        k_reader_(address_ + k_offset, 0, lane_),
        k_state_reader_(address_ + k_offset, 0, lane_),
        q_reader_(address_ + q_offset, 0, lane_),
        v_reader_(address_ + v_offset, 0, lane_),
        square_reader_(address_ + record_offset, 0, lane_),
        factors_(address_ + record_offset + lane_ % 4 * 16),
        output_(params, sequence, head, first_value_, warp_column_, range.emit * chunk, address_ + offsetof(Storage, o),
                lane_) {
    if constexpr (C.keep_addresses) v_reader_.keep();
  }

  // A multiplying warp's share. First: of a composed sequence's first part, which leaves the state before the second.
  template <bool First>
  __device__ __forceinline__ void run() {
    const Slots slots = slots_of(params_, n_);
    if (slots.skipped) {
      if (range_.starts) output_.clear(sequence_.length);
      return;
    }
    tile::zero(state_);
    if (!First && range_.from >= 0) {
      load_columns(state_, state_before(params_, range_.from, head_, first_value_, C.dim_k), lane_);
    } else if (range_.starts && slots.initial >= 0) {
      load_state(state_, params_, params_.initial, slots.initial, head_, first_value_, lane_);
    }
    chunks();
    if (!range_.ends) {
      if constexpr (First) {
        store_columns(state_, state_before(params_, second_slot(), head_, first_value_, C.dim_k), lane_);
      }
      return;
    }
    const int64_t final = slots_of(params_, n_).final;  // read again: no register holds it meanwhile
    if (final >= 0) store_state(state_, params_, params_.final, final, head_, first_value_, lane_);
  }

  // The same of the summary (summary.cuh) of the part in `slot`: of H, or of M, which is zero where no chunk is to do.
  __device__ __forceinline__ void summarize(int64_t slot, bool transition) {
    tile::zero(state_);
    if (transition && range_.first < range_.end) set_identity(state_, first_value_, lane_);
    // Now: two registers instead of five.
    float* to = transition ? transition_of(params_, slot, head_, first_value_, C.dim_k)
                           : state_before(params_, slot + 1, head_, first_value_, C.dim_k);
    chunks();
    store_columns(state_, to, lane_);
  }

 private:
  using Stage = ForwardStage<C>;
  using Storage = ForwardStorage<C>;
  using Squares = decltype(ChunkRecord::squares);
  static constexpr int M = C.warp_columns() / 16, k_steps = C.dim_k / 16;
  // Registers to spare hold operands for a while: of S^T Q^T after so many slices, of the state's update ahead of use.
  static constexpr int early_queries = C.keep_addresses ? 2 : k_steps, updates_ahead = C.keep_addresses ? 3 : 0;
  static constexpr float least_gathered = 0x1p-40f;
  static constexpr uint32_t k_offset = offsetof(Stage, k), q_offset = offsetof(Stage, q);
  static constexpr uint32_t v_offset = offsetof(Stage, v), record_offset = offsetof(Stage, record);

  // Of the sequence's second part, worked out anew for the same reason.
  __device__ __forceinline__ int64_t second_slot() const {
    return first_part(params_, sequence_at(params_, n_), n_).first_slot + 1;
  }

  __device__ __forceinline__ void chunks() {
    const bool plain = C.summary || (params_.checkpoints.data == nullptr && !params_.o.is_fp32);
    // e^G_last of a chunk, from the record in memory: it is needed before the record's copy has come.
    const int64_t record_bytes = int64_t{params_.heads_k} * params_.group * sizeof(ChunkRecord);
    const char* decay_at = params_.records + (sequence_.first_chunk + range_.first) * record_bytes +
                           head_ * sizeof(ChunkRecord) + offsetof(ChunkRecord, decay);
    float decay = range_.first < range_.end ? *reinterpret_cast<const float*>(decay_at) : 1.0f;
    bool here = false;  // the next chunk is
    int stage = 0;
    uint32_t parity = 0;
    for (int c = range_.first; c < range_.end; c++) {
      const float gathered = gathered_ * decay;
      const uint32_t full = address_ + offsetof(Storage, full) + stage * 8;
      if (!here) wait(full, parity);
      if (c + 1 < range_.end) decay_at += record_bytes;
      decay = *reinterpret_cast<const float*>(decay_at);
      const uint32_t bytes = stage * sizeof(Stage);
      if (++stage == C.stages) stage = 0, parity ^= 1;
      const Next next{static_cast<uint32_t>(address_ + offsetof(Storage, full) + stage * 8), parity};
      if (C.gathers() && plain && gathered >= least_gathered) {
        here = step<true>(c >= range_.emit, bytes, gathered, next);
      } else {
        settle();
        here = step<false>(c >= range_.emit, bytes, 1.0f, next);
        if (!C.summary && params_.checkpoints.data != nullptr && c >= range_.emit) save_checkpoint(c);
      }
      ptx::warp_sync();
      if (lane_ == 0) ptx::mbarrier_arrive(full + sizeof(Storage::full));
    }
    if constexpr (!C.summary) output_.store_rows();
    settle();
  }

  // Asking again and again has the answer soonest; sleeping costs fewer registers, and no slots of another block's.
  static __device__ __forceinline__ void wait(uint32_t full, uint32_t parity) {
    if constexpr (C.keep_addresses) {
      ptx::mbarrier_wait(full, parity);
    } else {
      ptx::mbarrier_sleep(full, parity);
    }
  }

  // Where to ask for the chunk after this one.
  struct Next {
    uint32_t full, parity;
  };

  // The state is gathered_ times what the registers hold: chunks leave it undecayed, and their factors make up for it,
  // until too little is left of it. 16-bit operands need fp32's range for that.
  __device__ __forceinline__ void settle() {
    scale_state(gathered_);
    gathered_ = 1.0f;
  }

  __device__ __forceinline__ void scale_state(float factor) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < C.dim_k / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) state_.x[m][n][e] *= factor;
      }
    }
  }

  // A chunk with its tiles in the stage `bytes` from the first. Gathers: leaves the state's decay to later; `gathered`
  // is then what it comes to with this chunk. Returns whether the next chunk is there. A chunk that emits nothing costs
  // as much: there are few.
  template <bool Gathers>
  __device__ __forceinline__ bool step(bool emits, uint32_t bytes, float gathered, const Next& next) {
    tile::Accumulator<M, 4> ks, qs;
    tile::zero(ks);
    tile::zero(qs);
    tile::Operand state[k_steps][M];
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
#pragma unroll
      for (int m = 0; m < M; m++) state[k][m] = finite_operand(state_, m, k);
      multiply(ks, state[k], k_reader_, k, bytes);
      if (C.summary) continue;
      if (k < early_queries) multiply(qs, state[k], q_reader_, k, bytes);
      if (k == 1) output_.store_rows();  // of the chunk before
    }
    if constexpr (!Gathers) scale_state(load_float(bytes, offsetof(ChunkRecord, decay)));
    const float before = Gathers ? gathered_ : 1.0f, after = Gathers ? ptx::rcp(gathered) : 1.0f;
    if constexpr (Gathers) gathered_ = gathered;
    const auto queries = [&](int first, int end) {
#pragma unroll
      for (int k = first; k < end; k++) {
        if (!C.summary && k >= early_queries) multiply(qs, state[k], q_reader_, k, bytes);
      }
    };
    tile::Operand x[2][M];
    queries(2, 4);
    residual(x[0], ks, 0, bytes, before);
    residual(x[1], ks, 1, bytes, before);
    queries(4, k_steps > 4 ? 5 : 4);
    tile::Accumulator<M, 4> u;
    tile::zero(u);
    multiply_lower<0>(u, x, bytes);
    queries(5, k_steps);
    tile::Operand value[2][M], update[2][M];
    tile::Operand keys[updates_ahead + 1];
    first_updates(keys, bytes);
    convert(value[0], update[0], u, 0, bytes, after);
    if constexpr (!C.summary) scale_queries(qs, 0, bytes, before);
    add_updates(update[0], 0, k_steps / 2, keys, bytes);
    convert(value[1], update[1], u, 1, bytes, after);
    if constexpr (!C.summary) scale_queries(qs, 1, bytes, before);
    add_updates(update[0], k_steps / 2, k_steps, keys, bytes);
    if constexpr (!C.summary) multiply_lower<1>(qs, value, bytes);
    add_updates(update[1], k_steps, k_steps + k_steps / 2, keys, bytes);
    const bool here = !C.summary && ptx::mbarrier_test(next.full, next.parity);
    if constexpr (C.summary) {
    } else if (Gathers || !params_.o.is_fp32) {
      output_.turn(qs, emits);
    } else if (emits) {
      output_.store_32(qs);
    }
    add_updates(update[1], k_steps + k_steps / 2, 2 * k_steps, keys, bytes);
    return here;
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

  // X^T of tokens 16 t .. + 15 as A operands.
  __device__ __forceinline__ void residual(tile::Operand (&x)[M], const tile::Accumulator<M, 4>& ks, int t,
                                           uint32_t bytes, float factor) {
    const Factors key = factors(bytes, offsetof(ChunkRecord, key), t, factor);
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
                                          const tile::Accumulator<M, 4>& u, int t, uint32_t bytes, float after) {
    const Factors factor = factors(bytes, offsetof(ChunkRecord, update), t, after);
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

  __device__ __forceinline__ void scale_queries(tile::Accumulator<M, 4>& qs, int t, uint32_t bytes, float factor) {
    const Factors query = factors(bytes, offsetof(ChunkRecord, query), t, factor);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) qs.x[m][2 * t + n][e] *= query.x[2 * n + (e & 1)];
      }
    }
  }

  // S^T += U^T K: of tokens 0 .. 15 in slices 0 .. k_steps - 1 of the keys, then of the others in the next k_steps. The
  // tile's operands are loaded some slices ahead.
  __device__ __forceinline__ tile::Operand load_update(int slice, uint32_t bytes) const {
    return k_state_reader_.load_transposed(slice / k_steps, slice % k_steps, bytes);
  }

  __device__ __forceinline__ void first_updates(tile::Operand (&keys)[updates_ahead + 1], uint32_t bytes) const {
#pragma unroll
    for (int i = 0; i < updates_ahead; i++) keys[i] = load_update(i, bytes);
  }

  __device__ __forceinline__ void add_updates(const tile::Operand (&update)[M], int first, int end,
                                              tile::Operand (&keys)[updates_ahead + 1], uint32_t bytes) {
#pragma unroll
    for (int i = first; i < end; i++) {
      constexpr int places = updates_ahead + 1;
      if (i + updates_ahead < 2 * k_steps) keys[(i + updates_ahead) % places] = load_update(i + updates_ahead, bytes);
      const tile::Operand& b = keys[i % places];
#pragma unroll
      for (int m = 0; m < M; m++) tile::multiply_add<C.element>(state_, m, i % k_steps, update[m], b);
    }
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
  __device__ __forceinline__ float load_float(uint32_t bytes, uint32_t offset) const {
    float x;
    ptx::load_shared_32(x, address_ + bytes + record_offset + offset);
    return x;
  }

  // The state after chunk c, where it ends at a multiple of checkpoint_every tokens. Chunks of 32 divide it.
  __device__ __forceinline__ void save_checkpoint(int c) {
    const int end = (c + 1) * chunk, every = params_.checkpoint_every;
    if (end > sequence_.length || end % every != 0) return;
    const int row = first_checkpoint(params_, n_, lane_) + end / every - 1;
    if (row < params_.checkpoints.slots) {
      store_state(state_, params_, params_.checkpoints, row, head_, first_value_, lane_);
    }
  }

  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const ChunkRange& range_;
  const int n_, head_, lane_, warp_column_, first_value_;
  const uint32_t address_;
  template <class Tile, tile::Order O>
  using Reader = tile::Reader<Tile, O, C.keep_addresses>;
  Reader<decltype(Stage::k), tile::Order::cols_first> k_reader_;
  Reader<decltype(Stage::k), tile::Order::rows_first> k_state_reader_;
  Reader<decltype(Stage::q), tile::Order::cols_first> q_reader_;
  tile::Reader<decltype(Stage::v), tile::Order::cols_first> v_reader_;  // of the columns that the warp has
  Reader<Squares, tile::Order::cols_first> square_reader_;
  const uint32_t factors_;
  Output<C> output_;
  tile::Accumulator<M, C.dim_k / 8> state_;
  float gathered_ = 1.0f;
};

// A block's chunks.
template <GatedDeltaForwardConfig C, bool First>
__device__ __forceinline__ void run_range(char* shared, const GatedDeltaForwardParams& params, const Sequence& sequence,
                                          const ChunkRange& range, int n, int head, int value_block) {
  static_assert(C.valid());
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  ForwardStorage<C>& storage = *reinterpret_cast<ForwardStorage<C>*>(shared);
  init_barriers<C>(storage);
  if (threadIdx.x / 32 == C.warps) {
    copy_chunks<C>(storage, params, sequence, range, n, head, value_block);
  } else {
    Forward<C>(storage, params, sequence, range, n, head, value_block).template run<First>();
  }
}

template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void forward(const GatedDeltaForwardParams& params) {
  extern __shared__ __align__(1024) char shared[];
  // Value heads of a key head run side by side, so that their keys and queries are read from memory once. First parts
  // come first: they may have whole sequences to do.
  const int heads_v = params.heads_k * params.group, lane = threadIdx.x & 31;
  const int value_block = blockIdx.x % params.value_blocks;
  const int unit = blockIdx.x / params.value_blocks, head = unit % heads_v;
  const bool composed = params.part_chunks > 0;
  const Part part = composed ? part_at(params, unit / heads_v, lane) : Part{unit / heads_v % params.sequences, 0, 1, 0};
  if (composed && part.index == 0) return;  // the summaries' kernel has done it
  const Sequence sequence = sequence_at(params, part.n);
  const ChunkRange range = composed ? range_of(params, sequence, part)
                                    : range_of(params, sequence, head, unit / heads_v / params.sequences, lane);
  if (range.empty()) return;
  run_range<C, false>(shared, params, sequence, range, part.n, head, value_block);
}

}  // namespace flashdelta::gated_delta
