// Inputs of the gated delta rule; case.lengths_q are the sequences, heads_q is HV. Words of a variant:
//   packed             packed sequences; else dense, where lengths must be equal. tail=N: N rows beyond the last
//   gate=NAME          qwen (default), strong, wide, zero, mixed, reset, bench, narrow, or a number
//   raw_gate           A_log, a, dt_bias
//   beta=NAME          sigmoid (default), one, zero, two, zero_end (0 in the last half), or a number; raw_beta: b
//   scalars_16         gate and beta tensors in the input's dtype; else fp32
//   keys=NAME          unit (default), repeat, correlated, long (norm 2), raw (not normalised, for l2norm), tiny
//   v_gain=X           scales v
//   h0, h0_16          an initial state in fp32, bf16
//   pool               initial_state_indices; final_pool: final_state_indices too; skip: some are negative
//   tokens             token_state_indices; accepted: num_accepted_tokens too
//   int64              lengths and indices in int64
// Rows that no sequence owns, a skipped sequence's rows and slots that nobody starts from are NaN.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cases/inputs.hpp"

namespace flashdelta {
namespace {

constexpr int64_t dense_default = 5;  // T of a dense case without sequences
constexpr int64_t spare_slots = 3;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

class GatedDeltaMaker {
 public:
  GatedDeltaMaker(const Case& self, uint64_t seed)
      : case_(self),
        seed_(seed),
        variant_(self.variant),
        ints_(variant_.has("int64") ? FLASHDELTA_INT64 : FLASHDELTA_INT32),
        scalars_(variant_.has("scalars_16") ? self.dtype : FLASHDELTA_FP32),
        sequences_(static_cast<int64_t>(self.lengths_q.size())) {}

  TensorMap make() {
    place_tokens();
    const std::string keys = variant_.text("keys", "unit");
    map_["q"] = make_rows("q", keys == "raw" || keys == "tiny" ? keys : "unit");
    map_["k"] = make_rows("k", keys);
    map_["v"] = normal_tensor(case_.dtype, {batch_, tokens_, case_.heads_q, case_.head_dim_v}, Random(seed_, "v"),
                              variant_.number("v_gain", 1));
    make_gate();
    make_beta();
    make_states();
    for (const char* name : {"q", "k", "v", "g", "a", "beta", "b"}) {
      const auto found = map_.find(name);
      if (found == map_.end()) continue;
      const int64_t rows = std::max<int64_t>(batch_ * tokens_, 1);
      poison_rows(found->second, owned_, found->second.numel() / rows);
    }
    return map_;
  }

 private:
  bool skipped(int64_t n) const { return variant_.has("skip") && n % 3 == 1; }

  void place_tokens() {
    std::vector<int64_t> begins;
    if (variant_.has("packed")) {
      begins = offsets_of(case_.lengths_q);
      map_["cu_seqlens"] = int_tensor(ints_, begins);
      tokens_ = begins.back() + static_cast<int64_t>(variant_.number("tail", 0));
      batch_ = 1;
    } else {
      batch_ = sequences_;
      tokens_ = case_.lengths_q.empty() ? dense_default : case_.lengths_q.front();
      for (int64_t n = 0; n < batch_; n++) begins.push_back(n * tokens_);
    }
    owned_.assign(static_cast<size_t>(batch_ * tokens_), false);
    for (int64_t n = 0; n < sequences_; n++) {
      const auto i = static_cast<size_t>(n);
      if (!skipped(n)) std::fill_n(owned_.begin() + begins[i], case_.lengths_q[i], true);
    }
  }

  // q or k, [B, T, HK, K].
  HostTensor make_rows(const char* name, const std::string& form) {
    const Random random(seed_, name);
    HostTensor tensor(case_.dtype, {batch_, tokens_, case_.heads_k, case_.head_dim});
    const int64_t rows = batch_ * tokens_ * case_.heads_k, size = case_.head_dim;
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
      std::vector<double> x(static_cast<size_t>(size));
      double sum = 0;
      for (int64_t c = 0; c < size; c++) {
        const double first = random.normal((r % case_.heads_k) * size + c);  // the first token's
        const double own = random.normal(r * size + c);
        double& value = x[static_cast<size_t>(c)];
        value = form == "repeat" ? first : form == "correlated" ? 0.95 * first + 0.3 * own : own;
        sum += value * value;
      }
      double factor = 1 / std::sqrt(sum + 1e-6);
      if (form == "raw") factor = 1;
      if (form == "tiny") factor = 1e-4;
      if (form == "long") factor *= 2;
      for (int64_t c = 0; c < size; c++) {
        tensor.set(r * size + c, static_cast<float>(factor * x[static_cast<size_t>(c)]));
      }
    }
    return tensor;
  }

  template <typename Value>
  HostTensor make_scalars(Value value) {
    return make_tensor(scalars_, {batch_, tokens_, case_.heads_q},
                       [&](int64_t i) { return value(i, i / case_.heads_q, i % case_.heads_q); });
  }

  void make_gate() {
    const Random random(seed_, "gate"), head_random(seed_, "head gate");
    const auto rate = [=](int64_t head) { return 2.77 * head_random.uniform(head); };
    if (variant_.has("raw_gate")) {
      const int64_t heads = case_.heads_q;
      map_["A_log"] = make_tensor(scalars_, {heads}, rate);
      map_["dt_bias"] = make_tensor(scalars_, {heads}, [&](int64_t i) { return -4 + 0.5 * head_random.normal(i); });
      map_["a"] = make_scalars([&](int64_t i, int64_t, int64_t) { return random.normal(i); });
      return;
    }
    const std::string form = variant_.text("gate", "qwen");
    const double fixed = variant_.number("gate", 0);
    map_["g"] = make_scalars([&](int64_t i, int64_t token, int64_t head) {
      if (form == "qwen") return -std::exp(rate(head)) * softplus(0.5 * random.normal(i) - 4);
      if (form == "strong") return -16 * softplus(0.5 * random.normal(i) + 1);
      if (form == "wide") return -16 * head_random.uniform(head) * softplus(0.5 * random.normal(i) + 1);
      if (form == "mixed") return head % 2 == 0 ? 0.0 : -30.0;
      if (form == "reset") return token % 23 == 17 ? -std::numeric_limits<double>::infinity() : -0.1;
      if (form == "bench") return std::log(sigmoid(random.normal(i))) / 16;
      if (form == "narrow") return -0.012 - 0.022 * random.uniform(i);
      return fixed;  // "zero" reads as 0
    });
  }

  void make_beta() {
    const Random random(seed_, "beta");
    if (variant_.has("raw_beta")) {
      map_["b"] = make_scalars([&](int64_t i, int64_t, int64_t) { return 1.5 * random.normal(i); });
      return;
    }
    const std::string form = variant_.text("beta", "sigmoid");
    const double fixed = variant_.number("beta", 0);
    map_["beta"] = make_scalars([&](int64_t i, int64_t token, int64_t) {
      if (form == "one") return 1.0;
      if (fixed != 0) return fixed;
      if (form == "zero" || (form == "zero_end" && 2 * token >= batch_ * tokens_)) return 0.0;
      return (form == "two" ? 2 : 1) * sigmoid(random.normal(i));
    });
  }

  void make_states() {
    const bool bf16 = variant_.has("h0_16"), initial = bf16 || variant_.has("h0");
    std::vector<bool> used(static_cast<size_t>(sequences_), true);
    if (variant_.has("tokens")) {
      make_token_indices(&used);
    } else if (variant_.has("pool")) {
      const int64_t slots = sequences_ + spare_slots;
      std::vector<int64_t> from, to;
      used.assign(static_cast<size_t>(slots), false);
      for (int64_t n = 0; n < sequences_; n++) {
        from.push_back(skipped(n) ? -1 : slots - 1 - n);
        to.push_back(skipped(n) ? -7 : n);
        if (!skipped(n)) used[static_cast<size_t>(from.back())] = true;
      }
      map_["initial_state_indices"] = int_tensor(ints_, from);
      if (variant_.has("final_pool")) map_["final_state_indices"] = int_tensor(ints_, to);
    }
    if (!initial) return;
    std::vector<int64_t> shape{static_cast<int64_t>(used.size()), case_.heads_q, case_.head_dim, case_.head_dim_v};
    if (case_.options.state_layout == FLASHDELTA_STATE_VK) std::swap(shape[2], shape[3]);
    map_["initial_state"] = normal_tensor(bf16 ? FLASHDELTA_BF16 : FLASHDELTA_FP32, shape, Random(seed_, "state"));
    poison_rows(map_["initial_state"], used, case_.heads_q * case_.head_dim * case_.head_dim_v);
  }

  // A slot for the state after each token but for the last token of the first sequence; a skipped sequence has none.
  // used: the slots of initial_state that hold a state.
  void make_token_indices(std::vector<bool>* used) {
    const int64_t columns =
        case_.lengths_q.empty() ? dense_default : *std::max_element(case_.lengths_q.begin(), case_.lengths_q.end());
    const bool accepted = variant_.has("accepted");
    const int64_t slots = sequences_ * columns + spare_slots;
    if (accepted) used->assign(static_cast<size_t>(slots), false);
    std::vector<int64_t> indices, accept;
    for (int64_t n = 0; n < sequences_; n++) {
      for (int64_t t = 0; t < columns; t++) {
        const int64_t slot = slots - 1 - (n * columns + t);
        const bool none = skipped(n) || (n == 0 && t + 1 == columns);
        indices.push_back(none ? -1 : slot);
        if (accepted && !none) (*used)[static_cast<size_t>(slot)] = true;
      }
      accept.push_back(n % (columns + 1));  // 0 counts as 1
    }
    const HostTensor flat = int_tensor(ints_, indices);
    HostTensor table(ints_, {sequences_, columns});
    std::memcpy(table.data(), flat.data(), flat.bytes());
    map_["token_state_indices"] = table;
    if (accepted) map_["num_accepted_tokens"] = int_tensor(ints_, accept);
  }

  const Case& case_;
  uint64_t seed_;
  Variant variant_;
  flashdelta_dtype ints_, scalars_;
  int64_t sequences_, batch_ = 0, tokens_ = 0;
  std::vector<bool> owned_;  // by token, batch and all
  TensorMap map_;
};

}  // namespace

TensorMap gated_delta_inputs(const Case& self, uint64_t seed) { return GatedDeltaMaker(self, seed).make(); }

}  // namespace flashdelta
