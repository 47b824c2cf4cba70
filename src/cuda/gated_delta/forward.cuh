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
#include "cuda/gated_delta/output.cuh"
#include "cuda/gated_delta/products.cuh"
#include "cuda/gated_delta/segments.cuh"
#include "cuda/gated_delta/state.cuh"
#include "cuda/ptx/load_shared.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace flashdelta::gated_delta {

// Runs the chunks of one sequence, value head and value block: a warp copies, the others multiply, each at its own pace
// within the stages. (With a barrier a chunk all warps ask for shared memory at the same time, and then all for none.)
template <GatedDeltaForwardConfig C>
class Forward {
 public:
  __device__ __forceinline__ Forward(uint32_t address, int lane, const GatedDeltaForwardParams& params,
                                     const Sequence& sequence, const ChunkRange& range, int head, int value_block)
      : params_(params),
        sequence_(sequence),
        range_(range),
        unit_(head * value_blocks() + value_block),
        lane_(lane),
        address_(address),
        products_(address_, warp_column(), lane_) {}

  // A multiplying warp's share. First: of a composed sequence's first part, which leaves the state before the second.
  template <bool First>
  __device__ __forceinline__ void run() {
    const Slots slots = slots_of(params_, sequence_number());
    if (slots.skipped) {
      if (range_.starts) clear_output<C>(output_rows(), lane_);
      return;
    }
    tile::zero(state_);
    if (!First && range_.from >= 0) {
      load_columns(state_, state_before(params_, range_.from, head(), first_value(), C.dim_k), lane_);
    } else if (range_.starts && slots.initial >= 0) {
      load_state(state_, params_, params_.initial, slots.initial, head(), first_value(), lane_);
    }
    chunks();
    if (!leaves_final_state()) {
      if constexpr (First) {
        store_columns(state_, state_before(params_, second_slot(), head(), first_value(), C.dim_k), lane_);
      }
      return;
    }
    const int64_t final = slots_of(params_, sequence_number()).final;
    if (final >= 0) store_state(state_, params_, params_.final, final, head(), first_value(), lane_);
  }

  // The same of a task (wide.cuh), whose number comes back. Registers keep nothing but the state and the chunk.
  __device__ __forceinline__ int run_task() {
    tile::zero(state_);
    const int64_t initial = task_slot(offsetof(ForwardTask, initial));
    if (initial >= 0) load_state(state_, params_, params_.initial, initial, head(), first_value(), lane_);
    chunks();
    const int64_t final = task_slot(offsetof(ForwardTask, final));
    const int number = task_int(offsetof(ForwardTask, number)), head = this->head(), value = first_value();
    take();
    if (final >= 0) store_state(state_, params_, params_.final, final, head, value, lane_);
    return number;
  }

  // The same of the summary (summary.cuh) of the part in `slot`: of H, or of M, which is zero where no chunk is to do.
  __device__ __forceinline__ void summarize(int64_t slot, bool transition) {
    tile::zero(state_);
    if (transition && range_.first < range_.end) set_identity(state_, first_value(), lane_);
    // Now: two registers instead of five.
    float* to = transition ? transition_of(params_, slot, head(), first_value(), C.dim_k)
                           : state_before(params_, slot + 1, head(), first_value(), C.dim_k);
    chunks();
    store_columns(state_, to, lane_);
  }

 private:
  // What is not asked for while chunks are done takes few registers: a number for both, or none.
  __device__ __forceinline__ int shared_int(uint32_t offset) const {
    int x;
    ptx::load_shared_32(x, address_ + offset);
    return x;
  }
  __device__ __forceinline__ int owner() const { return shared_int(offsetof(Storage, owner)); }
  __device__ __forceinline__ int sequence_number() const { return owner() < 0 ? ~owner() : owner(); }
  __device__ __forceinline__ bool leaves_final_state() const { return owner() >= 0; }
  __device__ __forceinline__ int task_int(uint32_t offset) const {
    return shared_int(offsetof(Storage, task) + offset);
  }
  __device__ __forceinline__ int64_t task_slot(uint32_t offset) const {
    int64_t x;
    ptx::load_shared_64(x, address_ + offsetof(Storage, task) + offset);
    return x;
  }
  __device__ __forceinline__ int value_blocks() const {
    return C.summary ? params_.summary_blocks : params_.value_blocks;
  }
  __device__ __forceinline__ int head() const {
    return C.has_tasks() ? task_int(offsetof(ForwardTask, head)) : unit_ / value_blocks();
  }
  __device__ __forceinline__ int first_value() const {
    const int value = C.has_tasks() ? task_int(offsetof(ForwardTask, value)) : unit_ % value_blocks() * C.block_v;
    return value + warp_column();
  }
  static __device__ __forceinline__ int warp_column() { return ptx::shfl_idx(threadIdx.x / 32, 0) * C.warp_columns(); }

  using Products = ChunkProducts<C>;
  using Stage = ForwardStage<C>;
  using Storage = ForwardStorage<C>;
  static constexpr int M = Products::M, k_steps = Products::k_steps;
  using Tokens = tile::Accumulator<M, 4>;
  using Operands = tile::Operand[M];
  static constexpr float least_gathered = 0x1p-40f;

  // Of the sequence's second part.
  __device__ __forceinline__ int64_t second_slot() const {
    const int n = sequence_number();
    return first_part(params_, sequence_at(params_, n), n).first_slot + 1;
  }

  // Chunk i of the range: its stage, the stage's first byte from the first stage, and its mbarrier.
  static __device__ __forceinline__ uint32_t stage_of(uint32_t i) { return i % C.stages; }
  static __device__ __forceinline__ uint32_t bytes_of(uint32_t i) { return stage_of(i) * sizeof(Stage); }
  __device__ __forceinline__ uint32_t full_address(uint32_t i) const {
    return address_ + offsetof(Storage, full) + stage_of(i) * 8;
  }
  static __device__ __forceinline__ uint32_t parity_of(uint32_t i) { return i / C.stages & 1; }

  __device__ __forceinline__ void chunks() {
    const bool plain =
        C.gathers() && (C.summary || C.has_tasks() || (params_.checkpoints.data == nullptr && !params_.o.is_fp32));
    int i = C.has_tasks() ? task_int(offsetof(ForwardTask, first)) : 0;
    const int end = C.has_tasks() ? task_int(offsetof(ForwardTask, end)) : range_.end - range_.first;
    while (i < end) {
      wait(full_address(i), parity_of(i));
      float decay = products_.load_decay(bytes_of(i));
      const bool gathers = plain && decay >= least_gathered;
      if (!gathers || gathered_ * decay < least_gathered) settle();
      if (gathers) {
        // What most chunks take, in a loop of its own that decides nothing: the next chunk is there, and gathers too.
        while (step<true>(i++, end, decay)) {
        }
      } else {
        step<false>(i, end, decay);
        if (!C.summary && !C.has_tasks() && params_.checkpoints.data != nullptr) save_checkpoint(range_.first + i);
        i++;
      }
    }
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

  // What a step does with its chunk's decay. Gathers: leaves the state's decay to later.
  struct Decay {
    float before, after;  // factors of what comes of the state before, and of what is added to it
  };
  template <bool Gathers>
  __device__ __forceinline__ Decay take_decay(float decay) {
    if constexpr (!Gathers) {
      scale_state(decay);
      return {1.0f, 1.0f};
    }
    const float before = gathered_;
    gathered_ *= decay;
    return {before, ptx::rcp(gathered_)};
  }

  // Whether chunk i is to do, is there and gathers; its decay if it is there. Of the whole warp: a vote, so that the
  // assembler knows it too.
  __device__ __forceinline__ bool look(int i, int end, float& decay) const {
    const bool here = ptx::mbarrier_test(full_address(i), parity_of(i));
    ptx::load_shared_32_if(here, decay, products_.decay_address(bytes_of(i)));
    return ptx::vote_any(here && i < end && gathered_ * decay >= least_gathered);
  }

  // Chunk i, whose decay the next one's takes the place of if that is there. Whether the next can be done in the same
  // way.
  template <bool Gathers>
  __device__ __forceinline__ bool step(int i, int end, float& decay) {
    if constexpr (!C.wide()) {
      return narrow_step<Gathers>(i, end, decay);
    } else if constexpr (Gathers) {
      return wide_step(i, end, decay);
    } else {
      wide_step_that_decays(i, decay);
      return false;
    }
  }

  // Registers to spare hold operands for a while: of S^T Q^T after so many slices, of the state's update ahead of use.
  // A chunk that emits nothing costs as much: there are few.
  template <bool Gathers>
  __device__ __forceinline__ bool narrow_step(int chunk_index, int end, float& decay) {
    constexpr int early_queries = C.keep_addresses ? 2 : k_steps, updates_ahead = C.keep_addresses ? 3 : 0;
    const uint32_t bytes = bytes_of(chunk_index);
    Tokens ks, qs;
    tile::zero(ks);
    tile::zero(qs);
    Operands state[k_steps];
    const auto keys = [&](int k) {
#pragma unroll
      for (int n = 0; n < 2; n++) products_.multiply(ks, n, state[k], products_.load_keys(n, k, bytes));
    };
    const auto queries = [&](int first, int end) {
#pragma unroll
      for (int k = first; k < end; k++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          if (!C.summary) products_.multiply(qs, n, state[k], products_.load_queries(n, k, bytes));
        }
      }
    };
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
      products_.slice(state[k], state_, k);
      keys(k);
      if (k < early_queries) queries(k, k + 1);
    }
    const auto [before, after] = take_decay<Gathers>(decay);
    Operands x[2];
    queries(early_queries, early_queries < 4 ? 4 : early_queries);
    products_.residual(x[0], ks, 0, bytes, before);
    products_.residual(x[1], ks, 1, bytes, before);
    if (early_queries < 4) queries(4, 5);
    Tokens u;
    tile::zero(u);
    products_.template multiply_lower<0>(u, x, bytes);
    if (early_queries < 4) queries(5, k_steps);
    Operands value[2], update[2];
    tile::Operand ahead[updates_ahead + 1];
    first_updates(ahead, bytes);
    products_.convert(value[0], update[0], u, 0, bytes, after);
    if constexpr (!C.summary) products_.scale_queries(qs, 0, bytes, before);
    add_updates(update[0], 0, k_steps / 2, ahead, bytes);
    products_.convert(value[1], update[1], u, 1, bytes, after);
    if constexpr (!C.summary) products_.scale_queries(qs, 1, bytes, before);
    add_updates(update[0], k_steps / 2, k_steps, ahead, bytes);
    if constexpr (!C.summary) products_.template multiply_lower<1>(qs, value, bytes);
    add_updates(update[1], k_steps, k_steps + k_steps / 2, ahead, bytes);
    const bool more = Gathers && look(chunk_index + 1, end, decay);
    if constexpr (!C.summary) put<Gathers>(qs, range_.first + chunk_index, bytes);
    add_updates(update[1], k_steps + k_steps / 2, 2 * k_steps, ahead, bytes);
    leave(chunk_index);
    return more;
  }

  // The same with twice the columns a warp, and as many products for every operand that is read. Registers are full, so
  // that S^T Q^T goes beside S^T K^T; what waits for X and U are the products of the chunk's other half.
  __device__ __forceinline__ bool wide_step(int chunk_index, int end, float& decay) {
    const uint32_t bytes = bytes_of(chunk_index);
    Tokens ks, qs;
    tile::zero(ks);
    tile::zero(qs);
#pragma unroll
    for (int k = 0; k < k_steps; k++) {
      Operands state;
      products_.slice(state, state_, k);
#pragma unroll
      for (int n = 0; n < 2; n++) products_.multiply(ks, n, state, products_.load_keys(n, k, bytes));
#pragma unroll
      for (int n = 0; n < 2; n++) products_.multiply(qs, n, state, products_.load_queries(n, k, bytes));
    }
    constexpr int updates_ahead = 2;
    const auto [before, after] = take_decay<true>(decay);
    Operands x[2], value[2], update[2];
    tile::Operand ahead[updates_ahead + 1];
    Tokens u;
    tile::zero(u);
    products_.residual(x[0], ks, 0, bytes, before);
    products_.template multiply_block<0>(u, 0, x[0], top, bytes);
    first_updates(ahead, bytes);
    products_.template multiply_block<0>(u, 1, x[0], below, bytes);
    products_.convert(value[0], update[0], u, 0, bytes, after);
    add_updates(update[0], 0, k_steps / 2, ahead, bytes);
    products_.residual(x[1], ks, 1, bytes, before);
    add_updates(update[0], k_steps / 2, k_steps - 2, ahead, bytes);
    products_.template multiply_block<0>(u, 1, x[1], bottom, bytes);
    products_.scale_queries(qs, 0, bytes, before);
    add_updates(update[0], k_steps - 2, k_steps, ahead, bytes);
    products_.convert(value[1], update[1], u, 1, bytes, after);
    add_updates(update[1], k_steps, k_steps + 1, ahead, bytes);
    products_.template multiply_block<1>(qs, 0, value[0], top, bytes);
    products_.scale_queries(qs, 1, bytes, before);
    add_updates(update[1], k_steps + 1, k_steps + k_steps / 2, ahead, bytes);
    products_.template multiply_block<1>(qs, 1, value[0], below, bytes);
    products_.template multiply_block<1>(qs, 1, value[1], bottom, bytes);
    const bool more = look(chunk_index + 1, end, decay);
    add_updates(update[1], k_steps + k_steps / 2, 2 * k_steps - 2, ahead, bytes);
    products_.write_output(qs, bytes);
    add_updates(update[1], 2 * k_steps - 2, 2 * k_steps, ahead, bytes);
    leave(chunk_index);
    return more;
  }

  // The same where the state decays at once, which few chunks want: in fewer registers, 16 columns after the others.
  __device__ __forceinline__ void wide_step_that_decays(int chunk_index, float decay) {
    const uint32_t bytes = bytes_of(chunk_index);
#pragma unroll
    for (int m = 0; m < M; m++) {
      tile::Accumulator<1, 4> ks, qs, u;
      tile::zero(ks);
      tile::zero(qs);
      tile::zero(u);
#pragma unroll
      for (int k = 0; k < k_steps; k++) {
        tile::Operand state[1];
        products_.slice(state, state_, k, m);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          products_.multiply(ks, n, state, products_.load_keys(n, k, bytes));
          products_.multiply(qs, n, state, products_.load_queries(n, k, bytes));
        }
      }
      tile::Operand x[2][1], value[2][1], update[2][1];
#pragma unroll
      for (int t = 0; t < 2; t++) products_.residual(x[t], ks, t, bytes, 1.0f, m);
      products_.template multiply_lower<0>(u, x, bytes);
#pragma unroll
      for (int t = 0; t < 2; t++) {
        products_.convert(value[t], update[t], u, t, bytes, 1.0f);
        products_.scale_queries(qs, t, bytes, 1.0f);
      }
      products_.template multiply_lower<1>(qs, value, bytes);
      products_.write_output(qs, bytes, m);
#pragma unroll
      for (int n = 0; n < C.dim_k / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) state_.x[m][n][e] *= decay;
      }
#pragma unroll
      for (int i = 0; i < 2 * k_steps; i++) {
        tile::multiply_add<C.element>(state_, m, i % k_steps, update[i / k_steps][0], products_.load_update(i, bytes));
      }
    }
    leave(chunk_index);
  }

  __device__ __forceinline__ OutputRows output_rows() const {
    return OutputRows(params_, sequence_, head(), first_value());
  }

  // A chunk's output, to where the copying warp finds it; in fp32 to memory.
  template <bool Gathers>
  __device__ __forceinline__ void put(const Tokens& o, int c, uint32_t bytes) const {
    if (Gathers || C.has_tasks() || !params_.o.is_fp32) {
      products_.write_output(o, bytes);
    } else if (c >= range_.emit) {
      store_output_32<C>(o, output_rows(), c * chunk, lane_);
    }
  }

  // The stage may be filled again.
  __device__ __forceinline__ void leave(int i) const {
    ptx::warp_sync();
    if (lane_ == 0) ptx::mbarrier_arrive(full_address(i) + sizeof(Storage::full));
  }

  // The task's place may have the next one.
  __device__ __forceinline__ void take() const {
    ptx::warp_sync();
    if (lane_ == 0) ptx::mbarrier_arrive(address_ + offsetof(Storage, taken));
  }

  // S^T += U^T K, some slices (load_update()), whose operands are loaded Places - 1 slices ahead.
  template <int Places>
  __device__ __forceinline__ void first_updates(tile::Operand (&ahead)[Places], uint32_t bytes) const {
#pragma unroll
    for (int i = 0; i < Places - 1; i++) ahead[i] = products_.load_update(i, bytes);
  }
  template <int Places>
  __device__ __forceinline__ void add_updates(const Operands& update, int first, int end,
                                              tile::Operand (&ahead)[Places], uint32_t bytes) {
#pragma unroll
    for (int i = first; i < end; i++) {
      const int last = i + Places - 1;
      if (last < 2 * k_steps) ahead[last % Places] = products_.load_update(last, bytes);
#pragma unroll
      for (int m = 0; m < M; m++) tile::multiply_add<C.element>(state_, m, i % k_steps, update[m], ahead[i % Places]);
    }
  }

  // The state after chunk c, where it ends at a multiple of checkpoint_every tokens. Chunks of 32 divide it.
  __device__ __forceinline__ void save_checkpoint(int c) {
    const int end = (c + 1) * chunk, every = params_.checkpoint_every;
    if (c < range_.emit || end > sequence_.length || end % every != 0) return;
    const int row = first_checkpoint(params_, sequence_number(), lane_) + end / every - 1;
    if (row < params_.checkpoints.slots) {
      store_state(state_, params_, params_.checkpoints, row, head(), first_value(), lane_);
    }
  }

  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const ChunkRange& range_;
  const int unit_, lane_;
  const uint32_t address_;
  Products products_;
  typename Products::State state_;
  float gathered_ = 1.0f;
};

// A block's chunks.
template <GatedDeltaForwardConfig C, bool First>
__device__ __forceinline__ void run_range(char* shared, const GatedDeltaForwardParams& params, const Sequence& sequence,
                                          const ChunkRange& range, int n, int head, int value_block) {
  static_assert(C.valid());
  static_assert(sizeof(ForwardStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  ForwardStorage<C>& storage = *reinterpret_cast<ForwardStorage<C>*>(shared);
  if (threadIdx.x == 0) storage.owner = range.end < sequence.chunks() ? ~n : n;
  init_barriers<C>(storage);
  if (threadIdx.x / 32 == C.warps) {
    copy_chunks<C>(storage, params, sequence, range, n, head, value_block);
    if (params.teams > 0) ptx::wait_for_kernel_before();  // else the next kernel might start before that has ended
  } else {
    Forward<C>(ptx::shared_address(&storage), threadIdx.x & 31, params, sequence, range, head, value_block)
        .template run<First>();
  }
}

// The kernel may start while the one before it still runs. Beside the preparation it waits for chunks one by one.
__device__ __forceinline__ void wait_for_records(const GatedDeltaForwardParams& params) {
  if (params.teams == 0) ptx::wait_for_kernel_before();
}

// A block's share: a unit is a value head of a sequence's part.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void run_unit(const GatedDeltaForwardParams& params, int unit, int value_block) {
  extern __shared__ __align__(1024) char shared[];
  // Value heads of a key head run side by side, so that their keys and queries are read from memory once. First parts
  // come first: they may have whole sequences to do.
  const int heads_v = params.heads_k * params.group, head = unit % heads_v, lane = threadIdx.x & 31;
  const bool composed = params.part_chunks > 0;
  const Part part = composed ? part_at(params, unit / heads_v, lane) : Part{unit / heads_v % params.sequences, 0, 1, 0};
  if (composed && part.index == 0) return;  // the summaries' kernel has done it
  const Sequence sequence = sequence_at(params, part.n);
  const ChunkRange range = composed ? range_of(params, sequence, part)
                                    : range_of(params, sequence, head, unit / heads_v / params.sequences, lane);
  if (range.empty()) return;
  run_range<C, false>(shared, params, sequence, range, part.n, head, value_block);
}

template <GatedDeltaForwardConfig C>
__device__ __forceinline__ void forward(const GatedDeltaForwardParams& params) {
  wait_for_records(params);
  run_unit<C>(params, blockIdx.x / params.value_blocks, blockIdx.x % params.value_blocks);
}

}  // namespace flashdelta::gated_delta
