// Chunk preparation, a block a chunk of 32 tokens and key head. Of each value head h of the key head, with G the sums
// of the gate from the chunk's start and M_ij = e^(G_i - G_j) for j <= i:
//
//   L_ij = beta_i (k_i . k_j) M_ij for j < i;  T = (I + L)^-1 diag(beta);  P_ij = scale (q_i . k_j) M_ij
//
// and e^G, e^(G_last - G), in records that the sequential kernel reads (storage.cuh). The gate goes in before the
// inverse and e^-G is never formed: G_i - G_j <= 0. Warps share the products K K^T and Q K^T, then each takes value
// heads in turn. With the L2 norm k_i is k_i / sqrt(|k_i|^2 + 1e-6): factors of rows in fp32, K and Q are not rounded
// again. Tokens past the sequence's end are zero with g = 0 and beta = 0, and change nothing.
#pragma once

#include "cuda/gated_delta/copy.cuh"
#include "cuda/gated_delta/gates.cuh"
#include "cuda/gated_delta/inverse.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/pack_finite.cuh"

namespace flashdelta::gated_delta {

template <GatedDeltaPrepareConfig C>
class Prepare {
 public:
  // By C.warps warps that follow one another, which barrier `barrier` is for.
  __device__ __forceinline__ Prepare(PrepareStorage<C>& storage, const GatedDeltaForwardParams& params,
                                     const Sequence& sequence, int64_t number, int head_k, int barrier)
      : storage_(storage),
        params_(params),
        sequence_(sequence),
        number_(number),
        first_token_(static_cast<int>(number - sequence.first_chunk) * chunk),
        head_k_(head_k),
        barrier_(barrier),
        thread_(threadIdx.x % C.threads()),
        warp_(ptx::shfl_idx(thread_ / 32, 0)),
        lane_(threadIdx.x & 31) {}

  __device__ __forceinline__ void run() {
    start_copies();
    int h = warp_;
    Gate gate = gate_of(h);  // under way together with K and Q
    wait_for_copies();
    products();
    sync();
    norms();
    if (in_boxes() && thread_ == 0) ptx::mbarrier_invalidate(ptx::shared_address(&storage_.full));
    sync();
    for (; h < params_.group; h += C.warps) {
      const Gate next = gate_of(h + C.warps);
      head(head_k_ * params_.group + h, gate);
      gate = next;
    }
  }

 private:
  using Keys = typename PrepareStorage<C>::Keys;
  static constexpr int copiers = C.threads() < 128 ? 64 : 128;  // threads, where there is no tensor engine
  static_assert(copiers <= C.threads());
  static constexpr float log2e = 1.4426950408889634f;
  static constexpr float least_link = 0.25f;  // under it, what the next row takes back is not worth its time

  __device__ __forceinline__ void sync() const { ptx::barrier_sync(barrier_, C.threads()); }

  // A token's, lane = token: g in log2, and beta. Of tokens and heads that are not there: 0, which changes nothing.
  struct Gate {
    float log_gate, beta;
  };
  __device__ __forceinline__ Gate gate_of(int h) const {
    const int token = first_token_ + lane_, head_v = head_k_ * params_.group + h;
    if (token >= sequence_.length || h >= params_.group) return {0, 0};
    return {gate_at<C.element>(params_, sequence_, token, head_v) * log2e,
            beta_at<C.element>(params_, sequence_, token, head_v)};
  }

  __device__ __forceinline__ bool in_boxes() const { return comes_in_boxes(params_, sequence_.length - first_token_); }

  __device__ __forceinline__ void start_copies() {
    if (in_boxes()) {
      if (thread_ == 0) copy_boxes();
      sync();  // the mbarrier is there for all
      return;
    }
    if (thread_ < copiers) {
      const auto copy = [&](const GatedDeltaRows& rows, const Keys& tile) {
        tile::TileCopy<Keys, copiers> tiles(rows_at(rows, sequence_, head_k_, 0), rows.token_stride * 2, params_.dim_k,
                                            first_token_, thread_);
        tiles.issue_part(tile.address() + tile::CopyMap<Keys, copiers>(thread_).offset(0, 0),
                         sequence_.length - first_token_);
      };
      copy(params_.k, storage_.tiles.k);
      copy(params_.q, storage_.tiles.q);
    }
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ void copy_boxes() {
    const uint32_t full = ptx::shared_address(&storage_.full);
    ptx::mbarrier_init(full, 1);
    ptx::fence_for_tensor_copies();
    ptx::mbarrier_arrive_expecting(full, 2 * sizeof(Keys));
    const int token = static_cast<int>(sequence_.begin) + first_token_, batch = static_cast<int>(sequence_.batch);
#pragma unroll
    for (int i = 0; i < Keys::panels; i++) {
      const uint32_t panel = i * Keys::panel_bytes;
      ptx::tensor_copy(storage_.tiles.k.address() + panel, &params_.k_map, i * 64, head_k_, token, batch, full);
      ptx::tensor_copy(storage_.tiles.q.address() + panel, &params_.q_map, i * 64, head_k_, token, batch, full);
    }
  }

  __device__ __forceinline__ void wait_for_copies() {
    if (in_boxes()) {
      ptx::mbarrier_sleep(ptx::shared_address(&storage_.full), 0);
    } else {
      ptx::cp_async_wait<0>();
      sync();
    }
  }

  // A warp a block of K K^T and the same of Q K^T, which stay accumulators until every warp has read its tiles; for the
  // L2 norm the diagonal blocks of Q Q^T, by the last warps.
  __device__ __forceinline__ void products() {
    static_assert(C.warps >= block_count);
    const bool has_block = warp_ < block_count;
    const int rows = warp_ == top ? 0 : 1, columns = warp_ == bottom ? 1 : 0;
    Square keys, queries;
    if (has_block) block_products(keys, queries, rows, columns);
    if (params_.l2norm && warp_ >= C.warps - 2) query_lengths(C.warps - 1 - warp_);
    sync();
    if (!has_block) return;
    put(keys, storage_.made.keys);
    put(queries, storage_.made.queries);
  }

  using Square = tile::Accumulator<1, 2>;
  using Left = tile::Reader<Keys, tile::Order::rows_first>;
  using Right = tile::Reader<Keys, tile::Order::cols_first>;

  // Rows 16 rows .. + 15 of K and of Q times rows 16 columns .. + 15 of K.
  __device__ __forceinline__ void block_products(Square& keys, Square& queries, int rows, int columns) {
    const Left k(storage_.tiles.k.address(), rows * 16, lane_), q(storage_.tiles.q.address(), rows * 16, lane_);
    const Right right(storage_.tiles.k.address(), columns * 16, lane_);
    tile::zero(keys);
    tile::zero(queries);
#pragma unroll
    for (int i = 0; i < C.dim_k / 16; i++) {
      const tile::Operand b = right.load(0, i);
      tile::multiply_add<C.element>(keys, 0, 0, k.load(0, i), b);
      tile::multiply_add<C.element>(queries, 0, 0, q.load(0, i), b);
    }
  }

  // The warp's block.
  __device__ __forceinline__ void put(const Square& d, LowerSquare& to) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int n8 = 0; n8 < 2; n8++) {
        float* pair = to.at(warp_, lane_ / 4, n8 * 8 + lane_ % 4 * 2) + half * 8 * LowerSquare::pitch;
        *reinterpret_cast<float2*>(pair) = make_float2(d.x[0][n8][2 * half], d.x[0][n8][2 * half + 1]);
      }
    }
  }

  __device__ __forceinline__ void query_lengths(int rows) {
    const Left left(storage_.tiles.q.address(), rows * 16, lane_);
    const Right right(storage_.tiles.q.address(), rows * 16, lane_);
    Square d;
    tile::zero(d);
#pragma unroll
    for (int i = 0; i < C.dim_k / 16; i++) tile::multiply_add<C.element>(d, 0, 0, left.load(0, i), right.load(0, i));
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = lane_ / 4 + 8 * (e >> 1), column = lane_ % 4 * 2 + (e & 1);
      if (row % 8 == column) storage_.query_norm[rows * 16 + row] = d.x[0][e >> 1][e];
    }
  }

  __device__ __forceinline__ void norms() {
    if (thread_ >= chunk) return;
    const int t = thread_;
    const auto factor = [](float length) { return rsqrtf(length + 1e-6f); };
    const float length = *storage_.made.keys.at(t < 16 ? top : bottom, t % 16, t % 16);
    storage_.key_norm[t] = params_.l2norm ? factor(length) : 1.0f;
    storage_.query_norm[t] = params_.l2norm ? factor(storage_.query_norm[t]) : 1.0f;
  }

  __device__ __forceinline__ void head(int head_v, const Gate& gate) {
    auto& scratch = storage_.made.head[warp_];
    char* record = params_.records + (number_ * (params_.heads_k * params_.group) + head_v) * sizeof(ChunkRecord);
    gates(scratch, *reinterpret_cast<ChunkRecord*>(record), gate);
    ptx::warp_sync();
#pragma unroll
    for (int step = 0; step < 3; step++) lower_and_weights(scratch, record, Piece(step, lane_));
    ptx::warp_sync();
    float x[16];
    invert_diagonal_blocks(x, scratch.inverse, lane_);
    invert_below(scratch.inverse, lane_);
    const float link = error_link(scratch);
    const bool links = ptx::vote_any(fabsf(link) > least_link);
    if (links) round_columns(x, scratch, link);
#pragma unroll
    for (int step = 0; step < 3; step++) store_inverse(scratch, record, Piece(step, lane_), !links);
    ptx::warp_sync();  // the scratch is read: the next head may write it
  }

  // Sums of the gate; lane = token.
  __device__ __forceinline__ void gates(typename PrepareStorage<C>::Head& scratch, ChunkRecord& record,
                                        const Gate& own) {
    float sum = own.log_gate;
    scratch.beta[lane_] = own.beta;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = ptx::shfl_up(sum, distance);
      if (lane_ >= distance) sum += before;
    }
    scratch.log_gate[lane_] = sum;
    const float last = __int_as_float(ptx::shfl_idx(__float_as_int(sum), 31));
    const float gate = ptx::ex2(sum), key_norm = storage_.key_norm[lane_];
    const int place = factor_place(lane_);
    record.key[place] = gate * key_norm;
    record.query[place] = gate * storage_.query_norm[lane_] * params_.scale;
    record.update[place] = ptx::ex2(last - sum) * key_norm;
    const float length =
        *storage_.made.keys.at(lane_ < 16 ? top : bottom, lane_ % 16, lane_ % 16) * key_norm * key_norm;
    float growth = __logf(fmaxf(fabsf(1 - own.beta * length), 1.0f));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) growth += ptx::shfl_xor(growth, distance);
    if (lane_ == 0) {
      record.decay = ptx::ex2(last);
      record.log_bound = last / log2e + growth;
    }
  }

  // Eight neighbouring numbers of a row of a lower square: lanes go along rows, so that stores join.
  struct Piece {
    int block, row16, half;
    __device__ __forceinline__ Piece(int step, int lane) : block(step), row16(lane / 2), half(lane % 2) {}
    __device__ __forceinline__ int row() const { return (block == top ? 0 : 16) + row16; }
    __device__ __forceinline__ int column() const { return (block == bottom ? 16 : 0) + half * 8; }
    // In a tile of T's blocks and P's.
    __device__ __forceinline__ uint32_t offset(int square) const {
      return tile::SharedTile<2 * square_rows, 16>::offset(square * square_rows + block * 16 + row16, half);
    }
  };

  static __device__ __forceinline__ void load_4(float* to, const float* from) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }

  static __device__ __forceinline__ void load_8(float (&to)[8], const float* from) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) load_4(to + i, from + i);
  }

  static __device__ __forceinline__ void load_8(float (&to)[8], LowerSquare& from, const Piece& at) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) load_4(to + i, from.at(at.block, at.row16, at.half * 8 + i));
  }

  static __device__ __forceinline__ void store_8(char* to, const float (&x)[8]) {
    const uint32_t words[4] = {ptx::pack_finite<C.element>(x[0], x[1]), ptx::pack_finite<C.element>(x[2], x[3]),
                               ptx::pack_finite<C.element>(x[4], x[5]), ptx::pack_finite<C.element>(x[6], x[7])};
    ptx::store_global_128(to, words);
  }

  // L to the scratch and P to the record.
  __device__ __forceinline__ void lower_and_weights(typename PrepareStorage<C>::Head& scratch, char* record,
                                                    const Piece& at) {
    const int i = at.row(), j = at.column();
    float gate[8], norm[8], keys[8], weights[8], lower[8];
    load_8(gate, scratch.log_gate + j);
    load_8(norm, storage_.key_norm + j);
    load_8(keys, storage_.made.keys, at);
    load_8(weights, storage_.made.queries, at);
    const float own_gate = scratch.log_gate[i];
    const float key_factor = scratch.beta[i] * storage_.key_norm[i];
    const float query_factor = params_.scale * storage_.query_norm[i];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const float m = ptx::ex2(j + e <= i ? own_gate - gate[e] : -INFINITY) * norm[e];
      lower[e] = key_factor * keys[e] * m;
      weights[e] = query_factor * weights[e] * m;
    }
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
      *reinterpret_cast<float4*>(scratch.inverse.at(at.block, at.row16, at.half * 8 + e)) =
          make_float4(lower[e], lower[e + 1], lower[e + 2], lower[e + 3]);
    }
    store_8(record + at.offset(1), weights);
  }

  // How much of an error of row `lane` of T the next row can take back. An error e of row i changes the state by
  // e_i k_i, decayed; row i + 1 undoes it as far as its key points the same way.
  __device__ __forceinline__ float error_link(const typename PrepareStorage<C>::Head& scratch) {
    const int i = lane_, next = min(i + 1, chunk - 1);
    const float product = *storage_.made.keys.at(i < 15 ? top : i == 15 ? below : bottom, next % 16, i % 16);
    const float length = *storage_.made.keys.at(next < 16 ? top : bottom, next % 16, next % 16);
    const float decay = ptx::ex2(scratch.log_gate[next] - scratch.log_gate[i]);
    const float link = decay * product * storage_.key_norm[i] / (length * storage_.key_norm[next]);
    return i < chunk - 1 && length > 0 ? fminf(fmaxf(link, -1.0f), 1.0f) : 0.0f;
  }

  // T = A diag(beta) to 16 bits, lane = column, each row with what it can take back of the error above it. Rounding
  // entry by entry is a systematic error where keys repeat: the same number is rounded the same way in every row, and
  // the state sums the rows. Where keys do not, the links are small and this is plain rounding. x: the columns of the
  // diagonal blocks.
  __device__ __forceinline__ void round_columns(const float (&x)[16], typename PrepareStorage<C>::Head& scratch,
                                                float link) {
    const float beta = scratch.beta[lane_];
    const bool upper = lane_ < 16;
    float error = 0;
    const int column = lane_ % 16;
#pragma unroll
    for (int row = 0; row < 16; row++) {
      error = round_entry(scratch.inverse.at(upper ? top : bottom, row, column), x[row], row >= column, beta, error,
                          ptx::shfl_idx(__float_as_int(link), upper ? row : row + 16));
    }
    float rest[16];
#pragma unroll
    for (int row = 0; row < 16; row++) rest[row] = upper ? *scratch.inverse.at(below, row, column) : 0.0f;
#pragma unroll
    for (int row = 0; row < 16; row++) {
      error = round_entry(scratch.inverse.at(below, row, column), rest[row], upper, beta, error,
                          ptx::shfl_idx(__float_as_int(link), row + 16));
    }
    ptx::warp_sync();
  }

  // Returns the error that the next row gets.
  static __device__ __forceinline__ float round_entry(float* entry, float x, bool inside, float beta, float error,
                                                      int link) {
    const float exact = fmaf(x, beta, error);
    const float rounded = to_float<C.element>(static_cast<uint16_t>(ptx::pack_finite<C.element>(exact, 0)));
    if (inside) *entry = rounded;
    return inside ? (exact - rounded) * __int_as_float(link) : 0.0f;
  }

  // T to the record; `exact`: the scratch has A, not T rounded.
  __device__ __forceinline__ void store_inverse(typename PrepareStorage<C>::Head& scratch, char* record,
                                                const Piece& at, bool exact) {
    float x[8], beta[8];
    load_8(x, scratch.inverse, at);
    load_8(beta, scratch.beta + at.column());
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] *= exact ? beta[e] : 1.0f;
    store_8(record + at.offset(0), x);
  }

  PrepareStorage<C>& storage_;
  const GatedDeltaForwardParams& params_;
  const Sequence& sequence_;
  const int64_t number_;
  const int first_token_, head_k_, barrier_, thread_, warp_, lane_;
};

template <GatedDeltaPrepareConfig C>
__device__ __forceinline__ void prepare(const GatedDeltaForwardParams& params) {
  static_assert(C.valid());
  static_assert(sizeof(PrepareStorage<C>) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(1024) char shared[];
  ptx::let_next_kernel_start();  // when all blocks here run: its blocks take the SMs that have no more to do, and wait
  const int64_t number = blockIdx.x / params.heads_k;
  const Sequence sequence = sequence_at(params, sequence_of(params, number, gated_delta_chunk, threadIdx.x & 31));
  if (number - sequence.first_chunk >= sequence.chunks()) return;  // room that no chunk needs
  const int head_k = blockIdx.x % params.heads_k;
  Prepare<C>(*reinterpret_cast<PrepareStorage<C>*>(shared), params, sequence, number, head_k, 0).run();
}

}  // namespace flashdelta::gated_delta
