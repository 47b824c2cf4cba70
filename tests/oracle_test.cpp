// What must be true of the oracle by the definitions alone, on random problems.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "cases/inputs.hpp"
#include "core/problem.hpp"
#include "reference/reference.hpp"
#include "support.hpp"

namespace flashdelta::test {
namespace {

constexpr flashdelta_dtype fp32 = FLASHDELTA_FP32;
constexpr double infinity = std::numeric_limits<double>::infinity();

double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double worst = x.size() == y.size() ? 0 : infinity;
  for (size_t i = 0; i < std::min(x.size(), y.size()); i++) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

// ---- Softmax attention ----

struct AttentionShape {
  int64_t queries, keys, heads_q, heads_k, dim, dim_v;
  uint64_t seed;
};

TensorMap attention_tensors(const AttentionShape& s) {
  return {{"q", normal_tensor(fp32, {1, s.queries, s.heads_q, s.dim}, Random(s.seed, "q"))},
          {"k", normal_tensor(fp32, {1, s.keys, s.heads_k, s.dim}, Random(s.seed, "k"))},
          {"v", normal_tensor(fp32, {1, s.keys, s.heads_k, s.dim_v}, Random(s.seed, "v"))}};
}

AttentionShape any_attention_shape() {
  const int64_t heads_k = *rc::gen::inRange<int64_t>(1, 3);
  return {*rc::gen::inRange<int64_t>(1, 12),
          *rc::gen::inRange<int64_t>(0, 17),
          heads_k * *rc::gen::inRange<int64_t>(1, 4),
          heads_k,
          8,
          16,
          *rc::gen::arbitrary<uint64_t>()};
}

CallOptions any_mask() {
  CallOptions options;
  options.causal = *rc::gen::arbitrary<bool>();
  options.window_left = *rc::gen::inRange<int64_t>(-1, 8);
  options.window_right = *rc::gen::inRange<int64_t>(-1, 8);
  return options;
}

// All rows, [row][head], of the one sequence.
std::vector<reference::AttentionRow> rows_of(const TensorMap& tensors, const CallOptions& options) {
  const Call call = call_of(Operation::attention_forward, tensors, options);
  AttentionProblem problem;
  EXPECT_TRUE(make_problem(call.attention, &problem).ok());
  std::vector<reference::AttentionRow> rows;
  for (int64_t b = 0; b < problem.batch; b++) {
    for (int64_t i = 0; i < problem.queries(b).length; i++) {
      for (int64_t h = 0; h < problem.heads_q; h++) rows.push_back(reference::attention_row(problem, b, i, h));
    }
  }
  return rows;
}

RC_GTEST_PROP(AttentionOracle, weights_sum_to_one_less_the_sink, ()) {
  const AttentionShape shape = any_attention_shape();
  TensorMap tensors = attention_tensors(shape);
  fill(tensors.at("v"), 1);
  CallOptions options = any_mask();
  options.softcap = *rc::gen::element(0.0, 3.0);
  const bool sink = *rc::gen::arbitrary<bool>();
  if (sink) tensors["sink"] = normal_tensor(fp32, {shape.heads_q}, Random(shape.seed, "sink"));
  const auto rows = rows_of(tensors, options);
  for (size_t n = 0; n < rows.size(); n++) {
    const double held = sink ? tensors.at("sink").get(static_cast<int64_t>(n) % shape.heads_q) : -infinity;
    // Where no key is seen, lse is the sink and nothing is left for the keys; without a sink it is -inf.
    const double want = rows[n].lse == -infinity ? 0 : 1 - std::exp(held - rows[n].lse);
    RC_ASSERT(distance(rows[n].o, std::vector<double>(16, want)) < 1e-12);
  }
}

RC_GTEST_PROP(AttentionOracle, sees_the_keys_that_the_definition_names, ()) {
  AttentionShape shape = any_attention_shape();
  shape.keys = std::min<int64_t>(shape.keys, 16);
  TensorMap tensors = attention_tensors(shape);
  fill(tensors.at("q"), 0);
  const HostTensor v = tensors.at("v");
  fill(v, 0);
  for (int64_t j = 0; j < shape.keys; j++) {  // key j leaves its head's mark in feature j
    for (int64_t h = 0; h < shape.heads_k; h++) {
      v.set((j * shape.heads_k + h) * 16 + j, static_cast<float>(1 + h));
    }
  }
  const CallOptions options = any_mask();
  const auto rows = rows_of(tensors, options);
  for (size_t n = 0; n < rows.size(); n++) {
    const int64_t p = static_cast<int64_t>(n) / shape.heads_q + shape.keys - shape.queries;
    const int64_t right = options.causal ? 0 : options.window_right;
    std::vector<double> want(16, 0.0);
    for (int64_t j = 0; j < shape.keys; j++) {
      const bool seen = (options.window_left < 0 || j >= p - options.window_left) && (right < 0 || j <= p + right);
      want[static_cast<size_t>(j)] = seen ? 1 : 0;
    }
    const double count = std::accumulate(want.begin(), want.end(), 0.0);
    const auto head_k = static_cast<int64_t>(n) % shape.heads_q / (shape.heads_q / shape.heads_k);
    for (double& x : want) x *= static_cast<double>(1 + head_k) / std::max(count, 1.0);
    RC_ASSERT(distance(rows[n].o, want) < 1e-12);
    RC_ASSERT((count > 0 ? std::abs(rows[n].lse - std::log(count)) < 1e-12 : rows[n].lse == -infinity));
  }
}

RC_GTEST_PROP(AttentionOracle, causal_is_a_right_window_of_zero, ()) {
  const TensorMap tensors = attention_tensors(any_attention_shape());
  CallOptions causal = any_mask(), window = causal;
  causal.causal = true;
  window.causal = false;
  window.window_right = 0;
  const auto x = rows_of(tensors, causal), y = rows_of(tensors, window);
  for (size_t n = 0; n < x.size(); n++) RC_ASSERT((x[n].o == y[n].o && x[n].lse == y[n].lse));
}

RC_GTEST_PROP(AttentionOracle, halves_of_the_keys_merge_by_lse, ()) {
  AttentionShape shape = any_attention_shape();
  shape.keys = *rc::gen::inRange<int64_t>(2, 17);
  const TensorMap whole = attention_tensors(shape);
  const int64_t cut = *rc::gen::inRange<int64_t>(1, shape.keys);
  const auto part = [&](const char* name, int64_t begin, int64_t end) {
    const HostTensor& from = whole.at(name);
    const int64_t row = from.numel() / shape.keys;
    return make_tensor(fp32, {1, end - begin, from.shape()[2], from.shape()[3]},
                       [&](int64_t i) { return from.get(begin * row + i); });
  };
  TensorMap left = whole, right = whole;
  for (const char* name : {"k", "v"}) {
    left[name] = part(name, 0, cut);
    right[name] = part(name, cut, shape.keys);
  }
  const auto all = rows_of(whole, {}), x = rows_of(left, {}), y = rows_of(right, {});
  for (size_t n = 0; n < all.size(); n++) {
    const double wx = std::exp(x[n].lse - all[n].lse), wy = std::exp(y[n].lse - all[n].lse);
    RC_ASSERT(std::abs(wx + wy - 1) < 1e-12);
    std::vector<double> merged;
    for (size_t c = 0; c < x[n].o.size(); c++) merged.push_back(wx * x[n].o[c] + wy * y[n].o[c]);
    RC_ASSERT(distance(merged, all[n].o) < 1e-12);
  }
}

RC_GTEST_PROP(AttentionOracle, dense_packed_and_paged_keys_are_the_same_keys, ()) {
  const AttentionShape shape = any_attention_shape();
  const TensorMap dense = attention_tensors(shape);
  TensorMap packed = dense, paged = dense;
  const int64_t page = *rc::gen::inRange<int64_t>(1, 6), pages = (shape.keys + page - 1) / page;
  for (const char* name : {"k", "v"}) {
    const HostTensor& from = dense.at(name);
    const int64_t heads = from.shape()[2], dim = from.shape()[3];
    packed[name] = make_tensor(fp32, {shape.keys, heads, dim}, [&](int64_t i) { return from.get(i); });
    // Pages in reverse; what no key fills is NaN.
    paged[name] = HostTensor(fp32, {pages, page, heads, dim});
    poison(paged.at(name));
    for (int64_t j = 0; j < shape.keys; j++) {
      const int64_t to = (pages - 1 - j / page) * page + j % page;
      for (int64_t i = 0; i < heads * dim; i++) paged.at(name).set(to * heads * dim + i, from.get(j * heads * dim + i));
    }
  }
  packed["cu_seqlens_k"] = int_tensor(FLASHDELTA_INT32, {0, shape.keys});
  HostTensor table(FLASHDELTA_INT32, {1, pages});
  for (int64_t i = 0; i < pages; i++) static_cast<int32_t*>(table.data())[i] = static_cast<int32_t>(pages - 1 - i);
  paged["page_table"] = table;
  paged["seqused_k"] = int_tensor(FLASHDELTA_INT64, {shape.keys});
  const CallOptions options = any_mask();
  const auto want = rows_of(dense, options);
  for (const TensorMap& form : {packed, paged}) {
    const auto got = rows_of(form, options);
    RC_ASSERT(got.size() == want.size());
    for (size_t n = 0; n < want.size(); n++) RC_ASSERT((got[n].o == want[n].o && got[n].lse == want[n].lse));
  }
}

TEST(AttentionOracle, sink_takes_its_share) {  // Modular #6198
  TensorMap tensors = attention_tensors({3, 64, 2, 1, 8, 8, 1});
  fill(tensors.at("q"), 0);
  fill(tensors.at("v"), 1);
  tensors["sink"] = HostTensor(fp32, {2});
  fill(tensors.at("sink"), 5);
  for (const auto& row : rows_of(tensors, {})) {
    EXPECT_NEAR(row.o.front(), 0.3013, 1e-4);
    EXPECT_NEAR(row.lse, std::log(64 + std::exp(5.0)), 1e-12);
  }
}

// ---- Gated delta rule ----

struct DeltaShape {
  int64_t tokens, heads_v, heads_k, dim_k, dim_v;
  uint64_t seed;
};

DeltaShape any_delta_shape() {
  const int64_t heads_k = *rc::gen::inRange<int64_t>(1, 3);
  return {*rc::gen::inRange<int64_t>(1, 20), heads_k * *rc::gen::inRange<int64_t>(1, 4), heads_k, 8, 16,
          *rc::gen::arbitrary<uint64_t>()};
}

TensorMap delta_tensors(const DeltaShape& s) {
  const Random g(s.seed, "g"), beta(s.seed, "beta");
  return {{"q", normal_tensor(fp32, {1, s.tokens, s.heads_k, s.dim_k}, Random(s.seed, "q"), 0.3)},
          {"k", normal_tensor(fp32, {1, s.tokens, s.heads_k, s.dim_k}, Random(s.seed, "k"), 0.3)},
          {"v", normal_tensor(fp32, {1, s.tokens, s.heads_v, s.dim_v}, Random(s.seed, "v"))},
          {"g", make_tensor(fp32, {1, s.tokens, s.heads_v}, [&](int64_t i) { return -g.uniform(i); })},
          {"beta", make_tensor(fp32, {1, s.tokens, s.heads_v}, [&](int64_t i) { return beta.uniform(i); })},
          {"initial_state", normal_tensor(fp32, {1, s.heads_v, s.dim_k, s.dim_v}, Random(s.seed, "state"))}};
}

std::vector<reference::GatedDeltaHead> heads_of(const TensorMap& tensors, const CallOptions& options = {},
                                                reference::Columns columns = {}) {
  const Call call = call_of(Operation::gated_delta_forward, tensors, options);
  GatedDeltaProblem problem;
  EXPECT_TRUE(make_problem(call.gated_delta, &problem).ok());
  std::vector<reference::GatedDeltaHead> heads;
  for (int64_t h = 0; h < problem.heads_v; h++) {
    heads.push_back(reference::gated_delta_head(problem, 0, h, columns));
  }
  return heads;
}

// Tokens begin .. end - 1 of every tensor that has tokens.
TensorMap tokens_of(const TensorMap& tensors, int64_t begin, int64_t end) {
  TensorMap part = tensors;
  for (const char* name : {"q", "k", "v", "g", "beta"}) {
    const HostTensor& from = tensors.at(name);
    std::vector<int64_t> shape = from.shape();
    const int64_t row = from.numel() / shape[1];
    shape[1] = end - begin;
    part[name] = make_tensor(fp32, shape, [&](int64_t i) { return from.get(begin * row + i); });
  }
  return part;
}

HostTensor state_of(const std::vector<reference::GatedDeltaHead>& heads, std::vector<int64_t> shape) {
  const auto size = static_cast<int64_t>(heads.front().state.size());
  return make_tensor(fp32, std::move(shape), [&](int64_t i) {
    return heads[static_cast<size_t>(i / size)].state[static_cast<size_t>(i % size)];
  });
}

RC_GTEST_PROP(GatedDeltaOracle, two_parts_are_the_whole, ()) {
  DeltaShape shape = any_delta_shape();
  shape.tokens++;
  const TensorMap whole = delta_tensors(shape);
  const int64_t cut = *rc::gen::inRange<int64_t>(1, shape.tokens);
  const auto all = heads_of(whole), first = heads_of(tokens_of(whole, 0, cut));
  TensorMap rest = tokens_of(whole, cut, shape.tokens);
  rest["initial_state"] = state_of(first, whole.at("initial_state").shape());
  const auto second = heads_of(rest);
  for (size_t h = 0; h < all.size(); h++) {
    std::vector<double> o = first[h].o;
    o.insert(o.end(), second[h].o.begin(), second[h].o.end());
    RC_ASSERT(distance(o, all[h].o) < 1e-6);  // the state between is held in fp32
    RC_ASSERT(distance(second[h].state, all[h].state) < 1e-6);
  }
}

// S_end = M S_start + H with M the product of exp(g) (I - beta k k^T), and H what comes of a zero state.
RC_GTEST_PROP(GatedDeltaOracle, a_segment_is_an_affine_map, ()) {
  const DeltaShape s = any_delta_shape();
  const TensorMap tensors = delta_tensors(s);
  TensorMap from_zero = tensors;
  from_zero.erase("initial_state");
  const auto end = heads_of(tensors), h_part = heads_of(from_zero);
  const int64_t n = s.dim_k;
  for (int64_t head = 0; head < s.heads_v; head++) {
    std::vector<double> state;
    for (int64_t i = 0; i < n * s.dim_v; i++) {
      state.push_back(tensors.at("initial_state").get(head * n * s.dim_v + i));
    }
    for (int64_t t = 0; t < s.tokens; t++) {  // state = exp(g) (I - beta k k^T) state
      const double decay = std::exp(static_cast<double>(tensors.at("g").get(t * s.heads_v + head)));
      const double beta = tensors.at("beta").get(t * s.heads_v + head);
      const int64_t k = (t * s.heads_k + head / (s.heads_v / s.heads_k)) * n;
      std::vector<double> next(state.size(), 0.0);
      for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
          const double kk = static_cast<double>(tensors.at("k").get(k + i)) * tensors.at("k").get(k + j);
          const double m = decay * ((i == j ? 1 : 0) - beta * kk);
          for (int64_t c = 0; c < s.dim_v; c++) {
            next[static_cast<size_t>(i * s.dim_v + c)] += m * state[static_cast<size_t>(j * s.dim_v + c)];
          }
        }
      }
      state = next;
    }
    for (size_t i = 0; i < state.size(); i++) state[i] += h_part[static_cast<size_t>(head)].state[i];
    RC_ASSERT(distance(state, end[static_cast<size_t>(head)].state) < 1e-11);
  }
}

RC_GTEST_PROP(GatedDeltaOracle, a_reset_forgets_everything_before, ()) {
  const DeltaShape shape = any_delta_shape();
  const TensorMap tensors = delta_tensors(shape);
  const int64_t at = *rc::gen::inRange<int64_t>(0, shape.tokens);
  for (int64_t h = 0; h < shape.heads_v; h++) tensors.at("g").set(at * shape.heads_v + h, -INFINITY);
  TensorMap after = tokens_of(tensors, at, shape.tokens);
  after.erase("initial_state");
  const auto all = heads_of(tensors), fresh = heads_of(after);
  for (size_t h = 0; h < all.size(); h++) {
    RC_ASSERT(all[h].state == fresh[h].state);
    const std::vector<double> tail(all[h].o.begin() + at * shape.dim_v, all[h].o.end());
    RC_ASSERT(tail == fresh[h].o);
  }
}

RC_GTEST_PROP(GatedDeltaOracle, a_unit_key_with_beta_one_is_answered_by_its_value, ()) {
  DeltaShape shape = any_delta_shape();
  shape.heads_k = shape.heads_v;
  TensorMap tensors = delta_tensors(shape);
  fill(tensors.at("beta"), 1);
  CallOptions options;
  options.scale = 1.0;
  options.l2norm = true;
  tensors["q"] = tensors.at("k");
  const auto heads = heads_of(tensors, options);
  for (size_t h = 0; h < heads.size(); h++) {
    std::vector<double> v;
    for (int64_t t = 0; t < shape.tokens; t++) {
      for (int64_t c = 0; c < shape.dim_v; c++) {
        v.push_back(tensors.at("v").get((t * shape.heads_v + static_cast<int64_t>(h)) * shape.dim_v + c));
      }
    }
    RC_ASSERT(distance(heads[h].o, v) < 2e-3);  // the norm's 1e-6 beside squares that sum to about 0.7
  }
}

TEST(GatedDeltaOracle, the_norm_adds_its_epsilon_to_the_sum) {  // llama.cpp #28068
  TensorMap tensors = delta_tensors({1, 1, 1, 8, 8, 1});
  tensors.erase("initial_state");
  fill(tensors.at("k"), static_cast<float>(std::sqrt(1e-6 / 8)));  // squares that sum to epsilon: |k|^2 is 1/2
  fill(tensors.at("q"), static_cast<float>(std::sqrt(1e-6 / 8)));
  fill(tensors.at("beta"), 1);
  CallOptions options;
  options.l2norm = true;
  options.scale = 1.0;
  const auto head = heads_of(tensors, options).front();
  for (int64_t c = 0; c < 8; c++) EXPECT_NEAR(head.o[static_cast<size_t>(c)], tensors.at("v").get(c) / 2, 1e-6);
}

RC_GTEST_PROP(GatedDeltaOracle, raw_gate_and_beta_are_the_formulas, ()) {
  const DeltaShape shape = any_delta_shape();
  TensorMap raw = delta_tensors(shape), plain = raw;
  const std::vector<int64_t> per_token{1, shape.tokens, shape.heads_v};
  raw.erase("g");
  raw.erase("beta");
  raw["a"] = normal_tensor(fp32, per_token, Random(shape.seed, "a"), 3);
  raw["b"] = normal_tensor(fp32, per_token, Random(shape.seed, "b"), 3);
  raw["A_log"] = normal_tensor(fp32, {shape.heads_v}, Random(shape.seed, "A_log"));
  raw["dt_bias"] = normal_tensor(fp32, {shape.heads_v}, Random(shape.seed, "dt_bias"));
  CallOptions options;
  options.beta_scale = *rc::gen::element(1.0, 2.0);
  plain["g"] = make_tensor(fp32, per_token, [&](int64_t i) {
    const int64_t h = i % shape.heads_v;
    const double x = static_cast<double>(raw.at("a").get(i)) + raw.at("dt_bias").get(h);
    return -std::exp(static_cast<double>(raw.at("A_log").get(h))) * std::log(1 + std::exp(x));
  });
  plain["beta"] = make_tensor(fp32, per_token, [&](int64_t i) {
    return options.beta_scale / (1 + std::exp(-static_cast<double>(raw.at("b").get(i))));
  });
  const auto x = heads_of(raw, options), y = heads_of(plain);
  for (size_t h = 0; h < x.size(); h++) RC_ASSERT(distance(x[h].o, y[h].o) < 1e-4);  // g and beta rounded to fp32
}

RC_GTEST_PROP(GatedDeltaOracle, columns_are_independent, ()) {
  const DeltaShape shape = any_delta_shape();
  const TensorMap tensors = delta_tensors(shape);
  const int64_t first = *rc::gen::inRange<int64_t>(0, shape.dim_v);
  const int64_t count = *rc::gen::inRange<int64_t>(1, shape.dim_v - first + 1);
  const auto all = heads_of(tensors), part = heads_of(tensors, {}, {first, count});
  for (size_t h = 0; h < all.size(); h++) {
    for (size_t i = 0; i < part[h].o.size(); i++) {
      const auto t = static_cast<int64_t>(i) / count, c = static_cast<int64_t>(i) % count;
      RC_ASSERT(part[h].o[i] == all[h].o[static_cast<size_t>(t * shape.dim_v + first + c)]);
    }
  }
}

RC_GTEST_PROP(GatedDeltaOracle, a_pool_slot_is_a_state_in_either_layout, ()) {
  const DeltaShape s = any_delta_shape();
  const TensorMap plain = delta_tensors(s);
  TensorMap pool = plain;
  pool["initial_state"] = HostTensor(fp32, {4, s.heads_v, s.dim_v, s.dim_k});
  poison(pool.at("initial_state"));
  const int64_t slot = *rc::gen::inRange<int64_t>(0, 4);
  for (int64_t h = 0; h < s.heads_v; h++) {
    for (int64_t i = 0; i < s.dim_k * s.dim_v; i++) {
      const int64_t row = i / s.dim_v, column = i % s.dim_v;
      pool.at("initial_state")
          .set(((slot * s.heads_v + h) * s.dim_v + column) * s.dim_k + row,
               plain.at("initial_state").get(h * s.dim_k * s.dim_v + i));
    }
  }
  pool["initial_state_indices"] = int_tensor(FLASHDELTA_INT32, {slot});
  CallOptions value_major;
  value_major.state_layout = FLASHDELTA_STATE_VK;
  const auto x = heads_of(plain), y = heads_of(pool, value_major);
  for (size_t h = 0; h < x.size(); h++) RC_ASSERT((x[h].o == y[h].o && x[h].state == y[h].state));
}

}  // namespace
}  // namespace flashdelta::test
