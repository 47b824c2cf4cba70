#include "cpu/attention_plan.hpp"

#include <algorithm>

namespace flashdelta::cpu {
namespace {

constexpr size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Keys that one block can see at most.
int64_t visible_keys(const AttentionProblem& p) {
  if (p.window_left < 0 || p.window_right < 0) return p.max_k;
  const int64_t tokens = kBlockRows / p.group() + 2;
  const int64_t window = p.window_left + p.window_right;  // each at most 2^61
  return window >= p.max_k ? p.max_k : std::min(p.max_k, window + tokens);
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionProblem& p, int threads_allowed)
    : head_dim_(p.head_dim), head_dim_v_(p.head_dim_v) {
  const int64_t total_q = p.cu_seqlens_q ? p.dense_q : p.batch * p.dense_q;
  slots = p.batch == 0 || total_q == 0 ? 0 : total_q * p.group() / kBlockRows + p.batch;
  const int64_t blocks = std::max<int64_t>(slots * p.heads_k, 1);
  splits = std::max<int64_t>(std::min(kUnitsWanted / blocks, visible_keys(p) / kSplitKeys), 1);
  units = slots * p.heads_k * splits;

  // max_q bounds a sequence's rows; a short one has narrower panels.
  const int64_t rows = p.max_q >= kBlockRows ? kBlockRows : std::min(kBlockRows, p.max_q * p.group());
  stride_ = column_stride(padded_columns(rows));
  const auto floats = [](int64_t count) { return align64(static_cast<size_t>(count) * sizeof(float)); };
  accumulator_floats_ = floats((head_dim_v_ + 2) * stride_) / sizeof(float);
  const int64_t tile = kBlockRows * std::max(head_dim_, head_dim_v_);
  scratch_bytes_ = floats((head_dim_ + kBlockKeys + 2) * stride_) + floats(tile) +
                   floats(2 * (head_dim_ + head_dim_v_)) + accumulator_floats_ * sizeof(float);
  parts_bytes_ = splits > 1 ? static_cast<size_t>(units) * accumulator_floats_ * sizeof(float) : 0;
  const auto most = static_cast<int64_t>((kWorkspaceLimit - parts_bytes_) / scratch_bytes_);
  threads = static_cast<int>(std::clamp<int64_t>(threads_allowed, 1, std::max<int64_t>(std::min(most, units), 1)));
  bytes = units == 0 ? 0 : parts_bytes_ + static_cast<size_t>(threads) * scratch_bytes_;
}

Accumulator AttentionPlan::part(void* workspace, int64_t unit) const {
  float* m = static_cast<float*>(workspace) + static_cast<size_t>(unit) * accumulator_floats_;
  return {m, m + stride_, m + 2 * stride_};
}

Scratch AttentionPlan::scratch(void* workspace, int thread) const {
  char* next = static_cast<char*>(workspace) + parts_bytes_ + static_cast<size_t>(thread) * scratch_bytes_;
  const auto take = [&next](int64_t floats) {
    auto* at = reinterpret_cast<float*>(next);
    next += align64(static_cast<size_t>(floats) * sizeof(float));
    return at;
  };
  Scratch s{};
  s.q = take((head_dim_ + kBlockKeys + 2) * stride_);
  s.scores = s.q + head_dim_ * stride_;
  s.rescale = s.scores + kBlockKeys * stride_;
  s.merge = s.rescale + stride_;
  s.tile = take(kBlockRows * std::max(head_dim_, head_dim_v_));
  s.wide_q = reinterpret_cast<double*>(take(2 * (head_dim_ + head_dim_v_)));
  s.wide_o = s.wide_q + head_dim_;
  s.result.m = take((head_dim_v_ + 2) * stride_);
  s.result.l = s.result.m + stride_;
  s.result.o = s.result.m + 2 * stride_;
  return s;
}

}  // namespace flashdelta::cpu
