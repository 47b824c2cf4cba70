// A gated delta call with memory of its own, for tests: inputs from a seed, strides with gaps, and every byte that is
// no input 0xFF, which is a NaN in each float dtype and an absurd number in the integer ones.
#pragma once

#include <omp.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cpu/cpu.hpp"
#include "reference/random.hpp"
#include "reference/reference.hpp"

namespace flashdelta::test {

// A view with gaps between its rows. `order` lists the dimensions from the outermost in memory; the last one is
// always innermost.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&&) = default;  // a copy's view would point at the original's bytes
  Buffer& operator=(Buffer&&) = default;
  Buffer(flashdelta_dtype dtype, std::vector<int64_t> shape, int64_t gap, std::vector<int> order = {}) {
    view_.dtype = dtype;
    view_.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape);
    if (order.empty()) {
      order.resize(shape.size());
      std::iota(order.begin(), order.end(), 0);
    }
    int64_t stride = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
      view_.strides[*d] = stride;
      stride = stride * std::max<int64_t>(shape[static_cast<size_t>(*d)], 1) + gap;
    }
    // Room before the first element for what an index of -1 would write.
    front_ = shape.empty() ? 0 : (view_.strides[0] + 15) / 16 * 16;
    bytes_.assign(static_cast<size_t>((front_ + stride + gap) * dtype_size(dtype)), 0xFF);
    view_.data = bytes_.data() + front_ * dtype_size(dtype);
  }

  const flashdelta_tensor& view() const { return view_; }
  explicit operator bool() const { return view_.dtype != FLASHDELTA_NONE; }
  int64_t size() const {
    return std::accumulate(view_.shape, view_.shape + view_.ndim, int64_t{1}, std::multiplies<>());
  }

  // Memory offset of element i in row-major order of the shape.
  int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = view_.ndim - 1; d >= 0; d--) {
      at += i % view_.shape[d] * view_.strides[d];
      i /= view_.shape[d];
    }
    return at;
  }
  // Of element i in bytes().
  size_t byte_offset(int64_t i) const { return static_cast<size_t>((front_ + offset(i)) * dtype_size(view_.dtype)); }
  double get(int64_t i) const { return load_float(view_.data, view_.dtype, offset(i)); }
  void set(int64_t i, double x) { store_float(view_.data, view_.dtype, offset(i), static_cast<float>(x)); }
  void set_int(int64_t i, int64_t x) {
    if (view_.dtype == FLASHDELTA_INT64) {
      static_cast<int64_t*>(view_.data)[offset(i)] = x;
    } else {
      static_cast<int32_t*>(view_.data)[offset(i)] = static_cast<int32_t>(x);
    }
  }
  template <class F>
  void fill(F f) {
    for (int64_t i = 0; i < size(); i++) set(i, f(i));
  }

  // The elements that have been set, anew: those of tokens past the last stay NaN.
  template <class F>
  void refill(F f) {
    for (int64_t i = 0; i < size(); i++) {
      if (!untouched(i)) set(i, f(i));
    }
  }

  // The bytes of element i still as they were made.
  bool untouched(int64_t i) const {
    const auto width = static_cast<size_t>(dtype_size(view_.dtype));
    const uint8_t* p = bytes_.data() + byte_offset(i);
    return std::all_of(p, p + width, [](uint8_t byte) { return byte == 0xFF; });
  }
  // No byte between the elements has been written.
  bool gaps_untouched() const {
    const auto width = static_cast<size_t>(dtype_size(view_.dtype));
    std::vector<bool> owned(bytes_.size() / width, false);
    for (int64_t i = 0; i < size(); i++) owned[byte_offset(i) / width] = true;
    for (size_t i = 0; i < bytes_.size(); i++) {
      if (!owned[i / width] && bytes_[i] != 0xFF) return false;
    }
    return true;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  flashdelta_tensor view_{};
  int64_t front_ = 0;
  std::vector<uint8_t> bytes_;
};

struct Options {
  flashdelta_dtype dtype = FLASHDELTA_BF16, o_dtype = FLASHDELTA_BF16;
  flashdelta_dtype gate_dtype = FLASHDELTA_FP32, state_dtype = FLASHDELTA_FP32;
  std::vector<int64_t> lengths = {70};
  bool packed = true;  // else a dense batch of lengths.size() rows of lengths[0] tokens
  int64_t tokens_after = 3;
  int64_t heads_k = 1, group = 2, dim_k = 16, dim_v = 16;
  bool raw_gate = false, raw_beta = false, l2norm = false, value_major = false;
  double beta_scale = 1, scale = NAN;
  bool initial = true, final = true, in_place = false, initial_pool = false, final_pool = false;
  bool token_states = false, accepted = false;
  std::vector<int64_t> skipped;  // sequences with a negative index; a pool is needed
  int64_t checkpoint_every = 0;
  int chunk = 0;
  int64_t gap = 8;
  int64_t state_gap = -1;  // -1: as gap
  int64_t max_seqlen = 0;
  bool head_major = false;  // q, k, v, o lie in memory as [B, H, T, ..]
  flashdelta_context_parallel context_parallel = FLASHDELTA_CONTEXT_PARALLEL_EXACT;
  uint64_t seed = 1;

  int64_t heads_v() const { return heads_k * group; }
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
  bool skips(int64_t n) const { return std::find(skipped.begin(), skipped.end(), n) != skipped.end(); }
};

struct Run {
  int threads = 1;
  int32_t (*progress)(void*, int64_t, int64_t) = nullptr;
  void* user = nullptr;
};

class Call {
 public:
  explicit Call(const Options& x) : options(x) {
    make_inputs();
    make_states();
  }

  // Descriptors to problem, with everything checked. The buffers' contents may still change afterwards.
  Status bind(GatedDeltaProblem* problem) {
    flashdelta_gated_delta_forward_args args{};
    args.struct_size = sizeof(args);
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.o = o.view();
    args.g = g.view(), args.beta = beta.view(), args.A_log = A_log.view(), args.a = a.view();
    args.dt_bias = dt_bias.view(), args.b = b.view();
    args.initial_state = initial.view();
    args.final_state = options.in_place ? initial.view() : final.view();
    args.checkpoints = checkpoints.view();
    args.cu_seqlens = cu_seqlens.view();
    args.initial_state_indices = initial_indices.view();
    args.final_state_indices = final_indices.view();
    args.token_state_indices = token_indices.view();
    args.num_accepted_tokens = accepted.view();
    args.max_seqlen = options.max_seqlen;
    args.host_cu_seqlens = host_lengths.empty() ? nullptr : host_lengths.data();
    args.scale = options.scale;
    args.beta_scale = options.beta_scale;
    args.decay_threshold = -9;
    args.checkpoint_every = options.checkpoint_every;
    args.chunk = options.chunk;
    args.qk_l2norm = options.l2norm;
    args.state_layout = options.value_major ? FLASHDELTA_STATE_VK : FLASHDELTA_STATE_KV;
    args.context_parallel = options.context_parallel;
    FLASHDELTA_RETURN_IF_ERROR(make_problem(args, problem));
    return check_contents(args, *problem);
  }

  // Runs in a workspace of exactly the size asked for, its bytes NaN, and sees that nothing behind it is written.
  Status run(const Run& how = {}) {
    GatedDeltaProblem problem;
    FLASHDELTA_RETURN_IF_ERROR(bind(&problem));
    flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
    execution.num_threads = how.threads;
    execution.progress = how.progress;
    execution.progress_user = how.user;
    const size_t bytes = cpu::gated_delta_forward_workspace(problem, how.threads);
    constexpr size_t kGuard = 4096;
    std::unique_ptr<uint8_t, decltype(&std::free)> workspace(
        static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + kGuard)), &std::free);
    std::memset(workspace.get(), 0xFF, bytes + kGuard);
    const Status status = cpu::gated_delta_forward(problem, execution, workspace.get());
    for (size_t i = 0; i < kGuard; i++) {
      if (workspace.get()[bytes + i] != 0xFF) return {FLASHDELTA_INTERNAL_ERROR, "wrote behind its workspace"};
    }
    return status;
  }

  Buffer& final_state() { return options.in_place ? initial : final; }

  Options options;
  Buffer q, k, v, o, g, beta, A_log, a, dt_bias, b;
  Buffer initial, final, checkpoints;
  Buffer cu_seqlens, initial_indices, final_indices, token_indices, accepted;
  std::vector<int64_t> host_lengths;  // cu_seqlens; empty: not told

 private:
  double normal(std::string_view stream, int64_t i) const { return Random(options.seed, stream).normal(i); }
  double uniform(std::string_view stream, int64_t i) const { return Random(options.seed, stream).uniform(i); }

  void make_inputs() {
    const Options& x = options;
    const int64_t total = std::accumulate(x.lengths.begin(), x.lengths.end(), int64_t{0});
    const int64_t batch = x.packed ? 1 : x.sequences();
    const int64_t tokens = x.packed ? total + x.tokens_after : x.lengths[0];
    const std::vector<int> order = x.head_major ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{};
    q = Buffer(x.dtype, {batch, tokens, x.heads_k, x.dim_k}, x.gap, order);
    k = Buffer(x.dtype, {batch, tokens, x.heads_k, x.dim_k}, x.gap, order);
    v = Buffer(x.dtype, {batch, tokens, x.heads_v(), x.dim_v}, x.gap, order);
    o = Buffer(x.o_dtype, {batch, tokens, x.heads_v(), x.dim_v}, x.gap, order);
    // Of packed tokens the last tokens_after stay NaN.
    const int64_t used = x.packed ? total : batch * tokens;
    const double width = x.l2norm ? 1.0 : 1 / std::sqrt(static_cast<double>(x.dim_k));
    for (int64_t i = 0; i < used * x.heads_k * x.dim_k; i++) {
      q.set(i, normal("q", i) * width);
      k.set(i, normal("k", i) * width);
    }
    for (int64_t i = 0; i < used * x.heads_v() * x.dim_v; i++) v.set(i, normal("v", i));
    make_gates(batch, tokens, used);
    if (!x.packed) return;
    cu_seqlens = Buffer(x.seed % 2 ? FLASHDELTA_INT32 : FLASHDELTA_INT64, {x.sequences() + 1}, 0);
    cu_seqlens.set_int(0, 0);
    int64_t end = 0;
    for (int64_t n = 0; n < x.sequences(); n++) {
      end += x.lengths[static_cast<size_t>(n)];
      cu_seqlens.set_int(n + 1, end);
    }
  }

  void make_gates(int64_t batch, int64_t tokens, int64_t used) {
    const Options& x = options;
    const std::vector<int64_t> shape = {batch, tokens, x.heads_v()};
    const int64_t count = used * x.heads_v();
    if (x.raw_gate) {
      A_log = Buffer(x.gate_dtype, {x.heads_v()}, 0);
      dt_bias = Buffer(x.gate_dtype, {x.heads_v()}, 0);
      a = Buffer(x.gate_dtype, shape, x.gap);
      A_log.fill([&](int64_t i) { return uniform("A_log", i) * 2.7; });
      dt_bias.fill([&](int64_t i) { return normal("dt_bias", i) - 3; });
      for (int64_t i = 0; i < count; i++) a.set(i, normal("a", i));
    } else {
      g = Buffer(x.gate_dtype, shape, x.gap);
      for (int64_t i = 0; i < count; i++) g.set(i, -std::abs(normal("g", i)) * 0.2);
    }
    Buffer& write = x.raw_beta ? b : beta;
    write = Buffer(x.gate_dtype, shape, x.gap);
    for (int64_t i = 0; i < count; i++) write.set(i, x.raw_beta ? normal("b", i) * 2 : uniform("beta", i));
  }

  std::vector<int64_t> state_shape(int64_t slots) const {
    const Options& x = options;
    return {slots, x.heads_v(), x.value_major ? x.dim_v : x.dim_k, x.value_major ? x.dim_k : x.dim_v};
  }

  // Slots of a pool lie in the opposite order of the sequences, with an unused one between each two.
  void make_states() {
    const Options& x = options;
    const int64_t gap = x.state_gap < 0 ? x.gap : x.state_gap;
    const int64_t n = x.sequences();
    const int64_t longest = n == 0 ? 0 : *std::max_element(x.lengths.begin(), x.lengths.end());
    const int64_t token_slots = longest + 1;
    const bool pool = x.initial_pool || x.final_pool || x.token_states;
    const int64_t slots = x.token_states ? n * token_slots + n : pool ? 2 * n : n;
    if (x.initial) {
      initial = Buffer(x.state_dtype, state_shape(slots), gap);
      initial.fill([&](int64_t i) { return normal("state", i); });
    }
    if (x.final && !x.in_place) final = Buffer(x.state_dtype, state_shape(slots), gap);
    const auto index = [&](int64_t i) { return x.skips(i) ? -1 - i : 2 * (n - 1 - i) + 1; };
    if (x.token_states ? x.initial && !x.accepted : x.initial_pool) {
      initial_indices = Buffer(FLASHDELTA_INT32, {n}, 0);
      const auto slot = [&](int64_t i) { return x.token_states && !x.skips(i) ? n * token_slots + i : index(i); };
      for (int64_t i = 0; i < n; i++) initial_indices.set_int(i, slot(i));
    }
    if (x.final_pool && !x.token_states) {
      final_indices = Buffer(FLASHDELTA_INT64, {n}, 0);
      for (int64_t i = 0; i < n; i++) final_indices.set_int(i, index(i));
    }
    if (x.token_states) make_token_states(n, token_slots);
    if (x.checkpoint_every != 0) {
      int64_t rows = 0;
      for (int64_t length : x.lengths) rows += length / x.checkpoint_every;
      checkpoints = Buffer(x.state_dtype, state_shape(rows + 1), gap);
    }
  }

  // Slot n * token_slots + t for token t of sequence n, but none for every third token.
  void make_token_states(int64_t n, int64_t token_slots) {
    token_indices = Buffer(FLASHDELTA_INT32, {n, token_slots}, 5);
    for (int64_t i = 0; i < n * token_slots; i++) token_indices.set_int(i, i % token_slots % 3 == 2 ? -1 : i);
    if (options.accepted) {
      accepted = Buffer(FLASHDELTA_INT32, {n}, 0);
      // From below the least to above the most; both are clamped.
      for (int64_t i = 0; i < n; i++) accepted.set_int(i, i % 3 == 0 ? 0 : i % 3 == 1 ? 2 : token_slots + 1000);
    }
  }
};

}  // namespace flashdelta::test
