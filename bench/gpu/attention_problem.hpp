// One attention forward problem in host memory, poisoned where nothing may be read or written, with its float64 answer.
// Used to call kernels directly, below the library.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/attention/forward_params.h"
#include "cuda/attention/rows.hpp"
#include "device/attention_forward.hpp"

namespace flashdelta::bench {

struct AttentionShape {
  std::vector<int> lengths_q, lengths_k;  // one entry a sequence; dense where all are equal and packed is false
  int heads_k = 1, group = 1, head_dim = 64, head_dim_v = 64;
  bool packed = false, offsets_64 = false, fp32_output = false;
  int window_left = -1, window_right = -1;
  double scale = 1;         // times 1 / sqrt(head_dim)
  float magnitude = 1;      // of q
  float ramp = 0;           // key j's first feature grows by this much a token, so that logits climb
  double softcap = 0;       // rows with general alone
  bool contiguous = false;  // else poison lies between heads and between tokens

  std::string text() const {
    return fmt::format("{} q {} k {} heads {}/{} d {}/{} window {},{}", packed ? "packed" : "dense",
                       fmt::join(lengths_q, ","), fmt::join(lengths_k, ","), heads_k * group, heads_k, head_dim,
                       head_dim_v, window_left, window_right);
  }
};

class AttentionProblem16 {
 public:
  AttentionProblem16(const AttentionShape& shape, Element element, uint64_t seed)
      : shape_(shape), element_(element), random_(seed) {
    for (int n : shape.lengths_q) cu_q_.push_back(cu_q_.back() + n);
    for (int n : shape.lengths_k) cu_k_.push_back(cu_k_.back() + n);
    fill(q_, cu_q_.back(), shape.heads_k * shape.group, shape.head_dim, shape.magnitude, 0);
    fill(k_, cu_k_.back(), shape.heads_k, shape.head_dim, 1, shape.ramp);
    fill(v_, cu_k_.back(), shape.heads_k, shape.head_dim_v, 1, 0);
    o_.assign((cu_q_.back() + spare_tokens) * o_token_stride() * (shape.fp32_output ? 2 : 1), poison);
    lse_.assign(static_cast<size_t>(shape.heads_k * shape.group) * lse_head_stride(), poison_float());
  }

  // The buffers a kernel may touch, in the order of `params`' pointers.
  std::vector<uint16_t>& q() { return q_.data; }
  std::vector<uint16_t>& k() { return k_.data; }
  std::vector<uint16_t>& v() { return v_.data; }
  std::vector<uint16_t>& o() { return o_; }
  std::vector<float>& lse() { return lse_; }
  std::vector<char> offsets(const std::vector<int64_t>& cu) const {
    std::vector<char> bytes;
    for (int64_t x : cu) {
      const auto narrow = static_cast<int32_t>(x);
      const char* from = shape_.offsets_64 ? reinterpret_cast<const char*>(&x) : reinterpret_cast<const char*>(&narrow);
      bytes.insert(bytes.end(), from, from + (shape_.offsets_64 ? 8 : 4));
    }
    return bytes;
  }
  std::vector<char> offsets_q() const { return offsets(cu_q_); }
  std::vector<char> offsets_k() const { return offsets(cu_k_); }

  // Pointers stay null: they are the caller's. Config: what has block_q, block_kv, head_dim and head_dim_v.
  template <class Config>
  AttentionForwardParams params(const Config& config, int heads_in_flight) const {
    const int heads_q = shape_.heads_k * shape_.group;
    AttentionForwardParams p{};
    const auto strides = [&](const Tensor& t, int length, int64_t& batch, int64_t& token, int64_t& head) {
      token = t.token_stride, head = t.head_stride, batch = length * token;
    };
    p.length_q = static_cast<int32_t>(shape_.packed ? cu_q_.back() : shape_.lengths_q[0]);
    p.length_k = static_cast<int32_t>(shape_.packed ? cu_k_.back() : shape_.lengths_k[0]);
    strides(q_, p.length_q, p.q_batch_stride, p.q_token_stride, p.q_head_stride);
    strides(k_, p.length_k, p.k_batch_stride, p.k_token_stride, p.k_head_stride);
    strides(v_, p.length_k, p.v_batch_stride, p.v_token_stride, p.v_head_stride);
    p.o_token_stride = o_token_stride(), p.o_head_stride = shape_.head_dim_v;
    p.o_batch_stride = p.length_q * p.o_token_stride;
    p.lse_head_stride = shape_.packed ? lse_head_stride() : p.length_q;
    p.lse_batch_stride = p.lse_head_stride * heads_q;
    p.cu_seqlens_q_is_64 = p.cu_seqlens_k_is_64 = shape_.offsets_64;
    p.batch = static_cast<int32_t>(shape_.lengths_q.size());
    p.rows_k = shape_.packed ? 1 : p.batch;
    p.heads_k = shape_.heads_k, p.group = shape_.group;
    p.head_dim = shape_.head_dim, p.head_dim_v = shape_.head_dim_v;
    p.window_left = shape_.window_left, p.window_right = shape_.window_right;
    p.o_is_fp32 = shape_.fp32_output;
    p.scale_log2 = static_cast<float>(scale() * 1.4426950408889634);
    if (shape_.softcap > 0) {
      p.scale_log2 = 1;
      p.softcap_in = static_cast<float>(scale() / shape_.softcap);
      p.softcap_log2 = static_cast<float>(shape_.softcap * 1.4426950408889634);
    }
    p.softmax_scale = p.scale_log2 == 0 ? 1.f : std::fabs(p.scale_log2);
    const bool whole_rows = p.head_dim == config.head_dim && p.head_dim_v == config.head_dim_v;
    p.whole_tile = whole_rows ? config.block_kv : std::numeric_limits<int32_t>::max();
    const int64_t longest = *std::max_element(shape_.lengths_q.begin(), shape_.lengths_q.end());
    p.q_tiles = static_cast<int32_t>((longest * p.group + config.block_q - 1) / config.block_q);
    p.longest_first = p.window_right >= 0;
    const int32_t pairs = p.heads_k * p.batch;
    p.heads_in_flight = heads_in_flight > 0
                            ? std::min(heads_in_flight, pairs)
                            : static_cast<int32_t>(flashdelta::heads_in_flight(p.longest_first != 0, pairs));
    p.late_tiles = static_cast<int32_t>(late_tiles(p.longest_first != 0, p.q_tiles));
    return p;
  }
  int64_t blocks(const AttentionForwardParams& p) const { return int64_t{p.q_tiles} * p.heads_k * p.batch; }

  struct Row {
    std::vector<double> o;
    double lse = -std::numeric_limits<double>::infinity();
  };
  Row reference(int sequence, int token, int head) const {
    const int64_t keys = cu_k_[sequence + 1] - cu_k_[sequence], queries = cu_q_[sequence + 1] - cu_q_[sequence];
    const int64_t at = token + keys - queries;
    const int64_t first = shape_.window_left < 0 ? 0 : std::max<int64_t>(0, at - shape_.window_left);
    const int64_t last = shape_.window_right < 0 ? keys : std::min(keys, at + shape_.window_right + 1);
    Row row{std::vector<double>(shape_.head_dim_v, 0)};
    if (first >= last) return row;
    std::vector<double> s(last - first);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = first; j < last; j++) {
      double dot = 0;
      for (int d = 0; d < shape_.head_dim; d++) {
        dot += double(value(q_, cu_q_[sequence] + token, head, d)) *
               value(k_, cu_k_[sequence] + j, head / shape_.group, d);
      }
      s[j - first] = dot * scale();
      if (shape_.softcap > 0) s[j - first] = shape_.softcap * std::tanh(s[j - first] / shape_.softcap);
      largest = std::max(largest, s[j - first]);
    }
    for (double& x : s) sum += x = std::exp(x - largest);
    for (int64_t j = first; j < last; j++) {
      for (int d = 0; d < shape_.head_dim_v; d++) {
        row.o[d] += s[j - first] / sum * value(v_, cu_k_[sequence] + j, head / shape_.group, d);
      }
    }
    row.lse = largest + std::log(sum);
    return row;
  }

  struct Errors {
    double o = 0, lse = 0;  // relative L2; largest difference over 2e-3 + 1e-5 |lse|
    int64_t touched_padding = 0, wrong_infinities = 0;
  };
  // stride: every stride-th row is compared; padding is always looked at.
  Errors errors(int stride = 1) const {
    Errors e;
    double difference = 0, norm = 0;
    int64_t n = 0;
    for (size_t b = 0; b < shape_.lengths_q.size(); b++) {
      for (int t = 0; t < shape_.lengths_q[b]; t++) {
        for (int h = 0; h < shape_.heads_k * shape_.group; h++) {
          if (n++ % stride == 0) compare(static_cast<int>(b), t, h, &e, &difference, &norm);
        }
      }
    }
    e.o = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    if (!(difference >= 0)) e.o = std::numeric_limits<double>::infinity();
    e.touched_padding = touched_padding();
    return e;
  }

 private:
  static constexpr uint16_t poison = 0x7fff;  // NaN in bf16, fp16 and, doubled, fp32
  static constexpr int spare_tokens = 3;

  struct Tensor {
    std::vector<uint16_t> data;
    int64_t token_stride = 0, head_stride = 0;
  };

  static float poison_float() { return std::bit_cast<float>(0x7fff7fffu); }
  double scale() const { return shape_.scale / std::sqrt(double(shape_.head_dim)); }
  int64_t o_token_stride() const {
    return int64_t{shape_.heads_k} * shape_.group * shape_.head_dim_v + spare_features();
  }
  int spare_features() const { return shape_.contiguous ? 0 : 16; }
  int64_t lse_head_stride() const { return cu_q_.back() + spare_tokens; }

  void fill(Tensor& t, int64_t tokens, int heads, int features, float magnitude, float ramp) {
    t.head_stride = features + spare_features() / 2, t.token_stride = heads * t.head_stride + spare_features();
    t.data.assign((tokens + spare_tokens) * t.token_stride, poison);
    for (int64_t i = 0; i < tokens; i++) {
      for (int h = 0; h < heads; h++) {
        for (int d = 0; d < features; d++) {
          const float x = normal() * magnitude + (d == 0 ? ramp * static_cast<float>(i) : 0);
          t.data[i * t.token_stride + h * t.head_stride + d] =
              element_ == Element::bf16 ? float_to_bf16(x) : float_to_fp16(x);
        }
      }
    }
  }

  // Variance 1, near enough normal: the sum of four uniform numbers.
  float normal() {
    const uint64_t bits = random_();
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += static_cast<int>(bits >> (16 * i) & 0xffff);
    return (static_cast<float>(sum) / 65536 - 2) * 1.7320508f;
  }

  float decode(uint16_t x) const { return element_ == Element::bf16 ? bf16_to_float(x) : fp16_to_float(x); }
  float value(const Tensor& t, int64_t token, int head, int d) const {
    return decode(t.data[token * t.token_stride + head * t.head_stride + d]);
  }
  float output(int64_t index) const {
    if (!shape_.fp32_output) return decode(o_[index]);
    float x;
    std::memcpy(&x, &o_[index * 2], 4);
    return x;
  }

  void compare(int b, int t, int h, Errors* e, double* difference, double* norm) const {
    const Row row = reference(b, t, h);
    const int64_t at = (cu_q_[b] + t) * o_token_stride() + int64_t{h} * shape_.head_dim_v;
    for (int d = 0; d < shape_.head_dim_v; d++) {
      const double x = output(at + d) - row.o[d];
      *difference += x * x;
      *norm += row.o[d] * row.o[d];
    }
    const float lse = lse_[lse_index(b, t, h)];
    if (std::isinf(row.lse) || std::isinf(lse)) {
      e->wrong_infinities += !(lse == static_cast<float>(row.lse));
    } else {
      const double x = std::abs(lse - row.lse) / (2e-3 + 1e-5 * std::abs(row.lse));
      e->lse = x <= e->lse ? e->lse : std::isnan(x) ? std::numeric_limits<double>::infinity() : x;
    }
  }

  int64_t lse_index(int b, int t, int h) const {
    if (shape_.packed) return h * lse_head_stride() + cu_q_[b] + t;
    const int64_t length = shape_.lengths_q[0];
    return (int64_t{b} * shape_.heads_k * shape_.group + h) * length + t;
  }

  int64_t touched_padding() const {
    int64_t touched = 0;
    const int64_t width = int64_t{shape_.heads_k} * shape_.group * shape_.head_dim_v;
    const int scalar = shape_.fp32_output ? 2 : 1;
    for (size_t i = 0; i < o_.size(); i++) {
      const int64_t token = static_cast<int64_t>(i) / scalar / o_token_stride();
      const int64_t feature = static_cast<int64_t>(i) / scalar % o_token_stride();
      if ((token >= cu_q_.back() || feature >= width) && o_[i] != poison) touched++;
    }
    const int64_t heads = int64_t{shape_.heads_k} * shape_.group;
    const int64_t used = shape_.packed ? cu_q_.back() : lse_head_stride();
    for (int64_t h = 0; shape_.packed && h < heads; h++) {
      for (int64_t t = used; t < lse_head_stride(); t++) touched += !std::isnan(lse_[h * lse_head_stride() + t]);
    }
    for (size_t i = cu_q_.back() * heads; !shape_.packed && i < lse_.size(); i++) touched += !std::isnan(lse_[i]);
    return touched;
  }

  AttentionShape shape_;
  Element element_;
  std::mt19937_64 random_;
  std::vector<int64_t> cu_q_{0}, cu_k_{0};
  Tensor q_, k_, v_;
  std::vector<uint16_t> o_;
  std::vector<float> lse_;
};

// What every row must get right: tile edges, unequal lengths, groups, empty sequences, windows, scales of any sign.
inline std::vector<AttentionShape> hostile_shapes(int head_dim, int head_dim_v) {
  std::vector<AttentionShape> shapes;
  const auto add = [&](AttentionShape s) {
    s.head_dim = head_dim, s.head_dim_v = head_dim_v;
    shapes.push_back(std::move(s));
  };
  for (int right : {-1, 0}) {
    for (int n : {1, 63, 64, 65, 129}) add({{n}, {n}, 2, 1, 0, 0, false, false, false, -1, right});
    add({{1}, {129}, 1, 4, 0, 0, false, false, false, -1, right});
    add({{100}, {33}, 1, 3, 0, 0, false, false, false, -1, right});
    add({{33}, {300}, 1, 8, 0, 0, false, false, false, -1, right});
    add({{77, 77}, {190, 190}, 2, 4, 0, 0, false, false, true, -1, right});
    add({{0, 65, 1, 0, 130, 0}, {5, 65, 0, 0, 70, 9}, 2, 3, 0, 0, true, false, false, -1, right});
    add({{3, 0, 128}, {130, 64, 257}, 1, 1, 0, 0, true, true, true, -1, right});
  }
  add({{1}, {0}, 1, 1, 0, 0});
  add({{150}, {150}, 1, 2, 0, 0, false, false, false, 40, 0});
  add({{150}, {200}, 1, 1, 0, 0, false, false, false, 10, 70});
  add({{90}, {90}, 1, 1, 0, 0, false, false, false, 0, 0});
  add({{70}, {140}, 1, 1, 0, 0, false, false, false, -1, 0, -1});
  add({{70}, {140}, 1, 1, 0, 0, false, false, false, -1, 0, 0});
  add({{70}, {140}, 1, 1, 0, 0, false, false, false, -1, 0, 1e-30});
  add({{70}, {140}, 1, 1, 0, 0, false, false, false, -1, -1, 1, 16});
  add({{70}, {140}, 1, 1, 0, 0, false, false, false, -1, -1, 1, 8, 2});
  return shapes;
}

}  // namespace flashdelta::bench
