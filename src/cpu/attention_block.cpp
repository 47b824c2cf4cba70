// O^T += V^T P^T with P^T = exp2(K Q^T - m): everything is held transposed, query rows in the lanes. K and V tiles then
// serve as they lie in memory, as the broadcast operand of matmul; only Q and o are transposed, once a block.
#include "cpu/attention_block.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/attention_softmax.hpp"
#include "cpu/simd.hpp"

namespace flashdelta::cpu {
namespace {

constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Tiles between two looks at the progress callback.
constexpr int64_t kTilesPerTick = 64;

// scratch.q = (factor * Q)^T, with zeros in the padding columns.
void load_queries(const AttentionBlock& block, const Scratch& scratch) {
  const AttentionProblem& p = block.problem;
  const int64_t d = p.head_dim, columns = block.columns();
  for (int64_t r = 0; r < block.rows; r++) {
    const char* row = p.q.row(block.queries.outer, block.queries.begin + block.token(r), block.head_q(r));
    load_rows(row, p.q.dtype, 0, 1, d, scratch.tile + r * d, d);
  }
  // The softcap's divisor goes in here; its factor, after the tanh, in base 2.
  scale(static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2e), scratch.tile, block.rows * d);
  std::fill(scratch.tile + block.rows * d, scratch.tile + columns * d, 0.0f);
  transpose(scratch.tile, d, columns, d, scratch.q, block.stride());
}

// Keys first .. first + count - 1 of `source` (k or v) as fp32 rows.
void load_keys(const AttentionBlock& block, const Rows& source, int64_t dim, int64_t first, int64_t count,
               float* tile) {
  const AttentionProblem& p = block.problem;
  for (int64_t done = 0; done < count;) {
    const int64_t j = first + done;
    const int64_t run = p.page_size == 0 ? count : std::min(count - done, p.page_size - j % p.page_size);
    const TokenAt at = p.key_at(block.sequence, block.keys, j);
    load_rows(source.row(at.outer, at.token, block.head_k), source.dtype, source.token_stride, run, dim,
              tile + done * dim, dim);
    done += run;
  }
}

// -inf where a query may not look. The rows that see key j are a run, because visibility moves with the token.
void mask_tile(const AttentionBlock& block, int64_t first, int64_t count, float* scores) {
  const AttentionProblem& p = block.problem;
  const int64_t offset = block.keys.length - block.queries.length;
  const int64_t token_begin = block.token(0), token_end = block.token(block.rows - 1) + 1;
  const auto row_of = [&](int64_t token) {
    return std::clamp<int64_t>(std::clamp(token, token_begin, token_end) * p.group() - block.first_row, 0, block.rows);
  };
  for (int64_t i = 0; i < count; i++) {
    const int64_t j = first + i;
    const int64_t begin = p.window_right < 0 ? 0 : row_of(j - p.window_right - offset);
    const int64_t end = p.window_left < 0 ? block.rows : row_of(j + p.window_left - offset + 1);
    float* row = scores + i * block.stride();
    std::fill(row, row + begin, kLowest);
    std::fill(row + std::max(begin, end), row + block.columns(), kLowest);
  }
}

// Whether every row of the block sees all of these keys.
bool fully_visible(const AttentionBlock& block, int64_t first, int64_t count) {
  return block.visible(block.rows - 1).first <= first && block.visible(0).last >= first + count;
}

void attend_tile(const AttentionBlock& block, int64_t first, int64_t count, bool first_tile, const Scratch& scratch,
                 const Accumulator& result) {
  const AttentionProblem& p = block.problem;
  const int64_t columns = block.columns(), stride = block.stride();
  load_keys(block, p.k, p.head_dim, first, count, scratch.tile);
  matmul(count, columns, p.head_dim, {scratch.tile, p.head_dim, 1}, scratch.q, stride, scratch.scores, stride, false);
  if (p.softcap > 0) {
    softcap_tile(scratch.scores, stride, count, columns, static_cast<float>(p.softcap * kLog2e));
  }
  if (!fully_visible(block, first, count)) mask_tile(block, first, count, scratch.scores);
  const bool rescale = softmax_tile(scratch.scores, stride, count, columns, result.m, result.l, scratch.rescale);
  if (rescale && !first_tile) scale_columns(result.o, stride, p.head_dim_v, columns, scratch.rescale);
  load_keys(block, p.v, p.head_dim_v, first, count, scratch.tile);
  matmul(p.head_dim_v, columns, count, {scratch.tile, 1, p.head_dim_v}, scratch.scores, stride, result.o, stride,
         !first_tile);
}

// Above this running maximum (base 2) the rounding of an fp32 score shows in its exponential: half an ulp of the score,
// some ten times over a long dot product, against the accuracy that the input's dtype is held to.
float largest_score(flashdelta_dtype dtype) {
  switch (dtype) {
    case FLASHDELTA_BF16: return 8192.0f;
    case FLASHDELTA_FP16: return 2048.0f;
    default: return 256.0f;
  }
}

// What one row becomes: o *= factor.
struct Closing {
  double factor, lse;
  bool exact;  // fp32 did not do
};

Closing close_row(const AttentionBlock& block, int64_t row, float m, float l) {
  const AttentionProblem& p = block.problem;
  const double sink = p.sink ? static_cast<double>(p.sink[block.head_q(row)]) : kLowest;
  const auto seen = block.visible(row);
  if (seen.first == seen.last) return {0, sink, false};
  if (!(l > 0 && std::isfinite(l) && std::abs(m) <= largest_score(p.q.dtype))) return {0, 0, true};
  const double top = std::max(static_cast<double>(m), sink * kLog2e);
  const double weight = std::exp2(static_cast<double>(m) - top);
  const double denominator = static_cast<double>(l) * weight + (p.sink ? std::exp2(sink * kLog2e - top) : 0.0);
  return {weight / denominator, (top + std::log2(denominator)) * kLn2, false};
}

}  // namespace

void attend(const AttentionBlock& block, int64_t part, int64_t parts, const Scratch& scratch, const Accumulator& result,
            Progress& progress) {
  const int64_t columns = block.columns(), stride = block.stride();
  std::fill(result.m, result.m + columns, kLowest);
  std::fill(result.l, result.l + columns, 0.0f);
  const int64_t first = block.visible(0).first, visible = block.visible(block.rows - 1).last - first;
  const int64_t tiles = (visible + kBlockKeys - 1) / kBlockKeys, tiles_per_part = (tiles + parts - 1) / parts;
  const int64_t begin = part * tiles_per_part, end = std::min(begin + tiles_per_part, tiles);
  if (begin >= end) {
    std::fill(result.o, result.o + block.problem.head_dim_v * stride, 0.0f);
    return;
  }
  load_queries(block, scratch);
  for (int64_t t = begin; t < end; t++) {
    if ((t - begin) % kTilesPerTick == kTilesPerTick - 1 && !progress.add(0)) return;
    const int64_t at = t * kBlockKeys;
    attend_tile(block, first + at, std::min(kBlockKeys, visible - at), t == begin, scratch, result);
  }
}

void merge(const AttentionBlock& block, const Accumulator& into, const Accumulator& from, const Scratch& scratch) {
  for (int64_t c = 0; c < block.columns(); c++) {
    const float m = std::max(into.m[c], from.m[c]);
    const float shift = m == kLowest ? 0.0f : m;
    scratch.rescale[c] = std::exp2(into.m[c] - shift);
    scratch.merge[c] = std::exp2(from.m[c] - shift);
    into.m[c] = m;
    into.l[c] = into.l[c] * scratch.rescale[c] + from.l[c] * scratch.merge[c];
  }
  merge_columns(into.o, scratch.rescale, from.o, scratch.merge, block.stride(), block.problem.head_dim_v,
                block.columns());
}

void finish(const AttentionBlock& block, const Accumulator& result, const Scratch& scratch, Progress& progress) {
  const AttentionProblem& p = block.problem;
  const int64_t dv = p.head_dim_v;
  transpose(result.o, block.stride(), dv, block.rows, scratch.tile, dv);
  for (int64_t r = 0; r < block.rows && !progress.cancelled(); r++) {
    float* o = scratch.tile + r * dv;
    Closing closing = close_row(block, r, result.m[r], result.l[r]);
    if (closing.factor == 0) {
      std::fill(o, o + dv, 0.0f);
    } else {
      scale(static_cast<float>(closing.factor), o, dv);
    }
    if (closing.exact || !all_finite(o, dv)) closing.lse = attend_exactly(block, r, scratch, o, progress);
    const int64_t token = block.queries.begin + block.token(r), head = block.head_q(r);
    store_rows(o, 0, 1, dv, p.o.row(block.queries.outer, token, head), p.o.dtype, 0);
    if (p.lse != nullptr) p.lse_row(block.queries.outer, head)[token] = static_cast<float>(closing.lse);
  }
}

}  // namespace flashdelta::cpu
