// One attention_forward call on the CPU backend with memory made to hurt: every tensor has gaps between its rows, and
// gaps, unowned tokens, unused pages, outputs and workspace hold NaN patterns. After the run, all that the call does
// not own must still hold them, and what it owns must agree with the float64 oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cpu/cpu.hpp"
#include "reference/reference.hpp"

namespace flashdelta::test {

enum class Keys { dense, packed, paged, cached };

struct AttentionOptions {
  flashdelta_dtype dtype = FLASHDELTA_BF16, o_dtype = FLASHDELTA_NONE;  // NONE: dtype
  std::vector<int64_t> q{}, k{};                                        // lengths, one entry a sequence
  int64_t heads_q = 1, heads_k = 1, head_dim = 64, head_dim_v = 64;
  bool packed_q = false;
  Keys keys = Keys::dense;
  int64_t page_size = 16;
  bool causal = false, sink = false, lse = true;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0, scale = std::numeric_limits<double>::quiet_NaN();
  float gain = 1, offset = 0;  // q = gain * normal + offset, k = gain * normal - offset
  int64_t gap = 8;             // elements between rows, of outer dimensions more
  uint64_t seed = 1;
};

// 0xff in every byte is a NaN in all three float dtypes.
struct PoisonedTensor {
  std::vector<char> memory;
  flashdelta_tensor view{};

  PoisonedTensor() = default;
  PoisonedTensor(flashdelta_dtype dtype, const std::vector<int64_t>& shape, int64_t gap) {
    view.dtype = dtype;
    view.ndim = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (int32_t i = view.ndim - 1; i >= 0; i--) {
      view.shape[i] = shape[static_cast<size_t>(i)];
      view.strides[i] = stride;
      stride = stride * std::max<int64_t>(view.shape[i], 1) + gap;
    }
    memory.assign(static_cast<size_t>(stride * dtype_size(dtype)), static_cast<char>(0xff));
    view.data = memory.data();
  }
  int64_t at(std::initializer_list<int64_t> index) const {
    int64_t offset = 0;
    size_t i = 0;
    for (int64_t n : index) offset += n * view.strides[i++];
    return offset;
  }
};

inline double tolerance(flashdelta_dtype dtype) {
  return dtype == FLASHDELTA_BF16 ? 6e-3 : dtype == FLASHDELTA_FP16 ? 1e-3 : 1e-4;
}

class AttentionCall {
 public:
  explicit AttentionCall(const AttentionOptions& options) : options_(options), random_(options.seed) {
    make_queries();
    make_keys();
    if (options_.sink) {
      sink_ = PoisonedTensor(FLASHDELTA_FP32, {options_.heads_q}, 0);
      for (int64_t h = 0; h < options_.heads_q; h++)
        store_float(sink_.memory.data(), FLASHDELTA_FP32, h, normal_(random_));
    }
    fill_arguments();
  }

  AttentionCall(const AttentionCall&) = delete;

  // Writes queries, keys or values after they were made: value(sequence, token, head, feature, old).
  using Writer = std::function<float(int64_t, int64_t, int64_t, int64_t, float)>;
  void write_q(const Writer& value) { write(q_, options_.q, options_.heads_q, options_.head_dim, true, value); }
  void write_k(const Writer& value) { write(k_, options_.k, options_.heads_k, options_.head_dim, false, value); }
  void write_v(const Writer& value) { write(v_, options_.k, options_.heads_k, options_.head_dim_v, false, value); }
  void write_sink(float value) {
    for (int64_t h = 0; h < options_.heads_q; h++) store_float(sink_.memory.data(), FLASHDELTA_FP32, h, value);
  }

  Status run(const flashdelta_execution& execution) {
    FLASHDELTA_RETURN_IF_ERROR(make_problem(arguments_, &problem_));
    FLASHDELTA_RETURN_IF_ERROR(check_contents(arguments_, problem_));
    const size_t bytes = cpu::attention_forward_workspace(problem_, cpu::thread_count(execution));
    EXPECT_LE(bytes, size_t{48} << 20);
    char* workspace = static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    std::memset(workspace, 0xff, (bytes + 127) / 64 * 64);
    std::fill(o_.memory.begin(), o_.memory.end(), static_cast<char>(0xff));
    std::fill(lse_.memory.begin(), lse_.memory.end(), static_cast<char>(0xff));
    const Status status = cpu::attention_forward(problem_, execution, workspace);
    EXPECT_EQ(static_cast<unsigned char>(workspace[bytes]), 0xff) << "wrote past the workspace";
    std::free(workspace);
    return status;
  }

  Status run(int threads = 2) {
    flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
    execution.num_threads = threads;
    return run(execution);
  }

  // All rows against the oracle, then: nothing but those rows was written.
  void check() const {
    double error = 0, norm = 0;
    std::vector<char> o_rest = o_.memory, lse_rest = lse_.memory;
    for (int64_t b = 0; b < problem_.batch; b++) {
      for (int64_t h = 0; h < problem_.heads_q; h++) {
        for (int64_t i = 0; i < problem_.queries(b).length; i++) check_row(b, h, i, &error, &norm, &o_rest, &lse_rest);
      }
    }
    EXPECT_LE(std::sqrt(error), tolerance(options_.dtype) * std::sqrt(norm));
    const auto is_poison = [](char c) { return static_cast<unsigned char>(c) == 0xff; };
    EXPECT_TRUE(std::all_of(o_rest.begin(), o_rest.end(), is_poison)) << "o: wrote outside the sequences";
    EXPECT_TRUE(std::all_of(lse_rest.begin(), lse_rest.end(), is_poison)) << "lse: wrote outside the sequences";
  }

  float o(int64_t b, int64_t i, int64_t h, int64_t c) const {
    const Span span = problem_.queries(b);
    return load_float(o_.memory.data(), problem_.o.dtype, problem_.o.index(span.outer, span.begin + i, h) + c);
  }
  float lse(int64_t b, int64_t i, int64_t h) const {
    const Span span = problem_.queries(b);
    return problem_.lse_row(span.outer, h)[span.begin + i];
  }
  reference::AttentionRow expected(int64_t b, int64_t i, int64_t h) const {
    return reference::attention_row(problem_, b, i, h);
  }
  const std::vector<char>& o_memory() const { return o_.memory; }
  const std::vector<char>& lse_memory() const { return lse_.memory; }
  flashdelta_attention_forward_args& arguments() { return arguments_; }

 private:
  static int64_t longest(const std::vector<int64_t>& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  }
  static std::vector<int32_t> offsets(const std::vector<int64_t>& lengths) {
    std::vector<int32_t> sums{0};
    for (int64_t length : lengths) sums.push_back(sums.back() + static_cast<int32_t>(length));
    return sums;
  }
  int64_t batch() const { return static_cast<int64_t>(options_.q.size()); }

  void make_queries() {
    const AttentionOptions& o = options_;
    const flashdelta_dtype o_dtype = o.o_dtype == FLASHDELTA_NONE ? o.dtype : o.o_dtype;
    cu_q_ = offsets(o.q);
    if (o.packed_q) {
      const int64_t total = cu_q_.back() + 3;  // three tokens that no sequence owns
      q_ = PoisonedTensor(o.dtype, {total, o.heads_q, o.head_dim}, o.gap);
      o_ = PoisonedTensor(o_dtype, {total, o.heads_q, o.head_dim_v}, o.gap);
      lse_ = PoisonedTensor(FLASHDELTA_FP32, {o.heads_q, total}, o.gap);
    } else {
      q_ = PoisonedTensor(o.dtype, {batch(), longest(o.q), o.heads_q, o.head_dim}, o.gap);
      o_ = PoisonedTensor(o_dtype, {batch(), longest(o.q), o.heads_q, o.head_dim_v}, o.gap);
      lse_ = PoisonedTensor(FLASHDELTA_FP32, {batch(), o.heads_q, longest(o.q)}, o.gap);
    }
    write_q([&](int64_t, int64_t, int64_t, int64_t, float) { return o.gain * normal_(random_) + o.offset; });
  }

  void make_keys() {
    const AttentionOptions& o = options_;
    cu_k_ = offsets(o.k);
    used_.assign(o.k.begin(), o.k.end());
    int64_t outer = batch(), tokens = longest(o.k) + 2;  // room for more than is used
    if (o.keys == Keys::cached) outer = 2 * batch() + 1;
    if (o.keys == Keys::paged) {
      pages_per_sequence_ = (longest(o.k) + o.page_size - 1) / o.page_size + 1;
      outer = batch() * pages_per_sequence_ + 2;
      tokens = o.page_size;
    }
    std::vector<int64_t> shape{outer, tokens, o.heads_k, o.head_dim};
    if (o.keys == Keys::packed) shape = {cu_k_.back() + 3, o.heads_k, o.head_dim};
    k_ = PoisonedTensor(o.dtype, shape, o.gap);
    shape.back() = o.head_dim_v;
    v_ = PoisonedTensor(o.dtype, shape, o.gap);

    std::vector<int32_t> rows(static_cast<size_t>(outer));
    for (size_t i = 0; i < rows.size(); i++) rows[i] = static_cast<int32_t>(i);
    std::shuffle(rows.begin(), rows.end(), random_);
    rows_.assign(rows.begin(), rows.begin() + (o.keys == Keys::paged ? batch() * pages_per_sequence_ : batch()));
    if (o.keys == Keys::paged) {
      for (int64_t b = 0; b < batch(); b++) {  // entries past the used pages are absurd
        const int64_t used = (o.k[static_cast<size_t>(b)] + o.page_size - 1) / o.page_size;
        for (int64_t p = used; p < pages_per_sequence_; p++) {
          rows_[static_cast<size_t>(b * pages_per_sequence_ + p)] =
              p % 2 == 0 ? -7 : std::numeric_limits<int32_t>::max();
        }
      }
    }
    write_k([&](int64_t, int64_t, int64_t, int64_t, float) { return o.gain * normal_(random_) - o.offset; });
    write_v([&](int64_t, int64_t, int64_t, int64_t, float) { return normal_(random_); });
  }

  int64_t key_offset(const PoisonedTensor& t, int64_t b, int64_t j, int64_t h) const {
    const auto row = [&](int64_t i) { return static_cast<int64_t>(rows_[static_cast<size_t>(i)]); };
    switch (options_.keys) {
      case Keys::packed: return t.at({cu_k_[static_cast<size_t>(b)] + j, h});
      case Keys::paged: return t.at({row(b * pages_per_sequence_ + j / options_.page_size), j % options_.page_size, h});
      case Keys::cached: return t.at({row(b), j, h});
      default: return t.at({b, j, h});
    }
  }

  void write(PoisonedTensor& t, const std::vector<int64_t>& lengths, int64_t heads, int64_t dim, bool query,
             const Writer& value) {
    for (int64_t b = 0; b < batch(); b++) {
      for (int64_t j = 0; j < lengths[static_cast<size_t>(b)]; j++) {
        for (int64_t h = 0; h < heads; h++) {
          const int64_t at = !query              ? key_offset(t, b, j, h)
                             : options_.packed_q ? t.at({cu_q_[static_cast<size_t>(b)] + j, h})
                                                 : t.at({b, j, h});
          for (int64_t c = 0; c < dim; c++) {
            const float old = load_float(t.memory.data(), options_.dtype, at + c);
            store_float(t.memory.data(), options_.dtype, at + c, value(b, j, h, c, old));
          }
        }
      }
    }
  }

  void fill_arguments() {
    flashdelta_attention_forward_args& a = arguments_;
    a = {};
    a.struct_size = sizeof a;
    a.q = q_.view;
    a.k = k_.view;
    a.v = v_.view;
    a.o = o_.view;
    if (options_.lse) a.lse = lse_.view;
    if (options_.sink) a.sink = sink_.view;
    const auto ints = [](auto& values, flashdelta_dtype dtype, std::vector<int64_t> shape) {
      flashdelta_tensor t{};
      t.data = values.data();
      t.dtype = dtype;
      t.ndim = static_cast<int32_t>(shape.size());
      for (size_t i = 0; i < shape.size(); i++) t.shape[i] = shape[i];
      t.strides[0] = shape.size() == 2 ? shape[1] : 1;
      if (shape.size() == 2) t.strides[1] = 1;
      return t;
    };
    if (options_.packed_q) a.cu_seqlens_q = ints(cu_q_, FLASHDELTA_INT32, {batch() + 1});
    if (options_.keys == Keys::packed) a.cu_seqlens_k = ints(cu_k_, FLASHDELTA_INT32, {batch() + 1});
    if (options_.keys != Keys::packed) a.seqused_k = ints(used_, FLASHDELTA_INT64, {batch()});
    if (options_.keys == Keys::cached) a.cache_batch_idx = ints(rows_, FLASHDELTA_INT32, {batch()});
    if (options_.keys == Keys::paged) a.page_table = ints(rows_, FLASHDELTA_INT32, {batch(), pages_per_sequence_});
    a.scale = options_.scale;
    a.softcap = options_.softcap;
    a.window_left = options_.window_left;
    a.window_right = options_.window_right;
    a.causal = options_.causal ? 1 : 0;
  }

  void check_row(int64_t b, int64_t h, int64_t i, double* error, double* norm, std::vector<char>* o_rest,
                 std::vector<char>* lse_rest) const {
    const Span span = problem_.queries(b);
    const reference::AttentionRow row = expected(b, i, h);
    for (int64_t c = 0; c < problem_.head_dim_v; c++) {
      const double want = row.o[static_cast<size_t>(c)], got = o(b, i, h, c);
      ASSERT_EQ(std::isnan(got), std::isnan(want)) << "o: sequence " << b << " head " << h << " row " << i;
      *error += (got - want) * (got - want);
      *norm += want * want;
    }
    const int64_t size = dtype_size(problem_.o.dtype);
    const auto o_begin = o_rest->begin() + problem_.o.index(span.outer, span.begin + i, h) * size;
    std::fill(o_begin, o_begin + problem_.head_dim_v * size, static_cast<char>(0xff));
    if (problem_.lse == nullptr) return;
    const double want = row.lse, got = lse(b, i, h);
    if (std::isinf(want)) {
      EXPECT_EQ(got, want) << "lse: sequence " << b << " head " << h << " row " << i;
    } else {
      EXPECT_NEAR(got, want, 2e-3 + 1e-5 * std::abs(want)) << "lse: sequence " << b << " head " << h << " row " << i;
    }
    const auto lse_at = reinterpret_cast<const char*>(problem_.lse_row(span.outer, h) + span.begin + i);
    const auto lse_begin = lse_rest->begin() + (lse_at - lse_.memory.data());
    std::fill(lse_begin, lse_begin + 4, static_cast<char>(0xff));
  }

  AttentionOptions options_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  PoisonedTensor q_, k_, v_, o_, lse_, sink_;
  std::vector<int32_t> cu_q_, cu_k_, rows_;  // rows_: page table or cache rows
  std::vector<int64_t> used_;
  int64_t pages_per_sequence_ = 0;
  flashdelta_attention_forward_args arguments_{};
  AttentionProblem problem_;
};

}  // namespace flashdelta::test
