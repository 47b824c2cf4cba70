// Inputs of softmax attention. Words of a variant:
//   packed, packed_q, packed_k   packed queries, keys (packed: both); else dense, where lengths must be equal
//   page=N                       paged keys, pages of N tokens in shuffled order, three more pages than are used
//   seqused                      seqused_k, with room for 5 more keys a sequence; cache: cache_batch_idx, two more rows
//   tail=N                       N rows beyond the last packed sequence; int64: lengths and indices in int64
//   sink, sink=X, sink_16        a sink a head, normal or X, in fp32 or (sink_16) the input's dtype
//   gain=X, offset=X             q is gain * normal + offset, k gain * normal - offset
//   logits=zero, v=one           q is 0; v is 1
// Rows that no sequence owns are NaN, entries of page_table past the used ones absurd.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cases/inputs.hpp"

namespace flashdelta {
namespace {

constexpr int64_t dense_default = 5;  // length of a dense dimension without sequences
constexpr int64_t room = 5;

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? dense_default : *std::max_element(lengths.begin(), lengths.end());
}

class AttentionMaker {
 public:
  AttentionMaker(const Case& self, uint64_t seed)
      : case_(self),
        seed_(seed),
        variant_(self.variant),
        batch_(static_cast<int64_t>(self.lengths_q.size())),
        ints_(variant_.has("int64") ? FLASHDELTA_INT64 : FLASHDELTA_INT32) {}

  TensorMap make() {
    make_queries();
    if (variant_.has("page")) {
      make_paged_keys();
    } else if (variant_.has("packed") || variant_.has("packed_k")) {
      make_packed_keys();
    } else {
      make_dense_keys();
    }
    if (variant_.has("seqused") || variant_.has("page")) map_["seqused_k"] = int_tensor(ints_, case_.lengths_k);
    make_sink();
    return map_;
  }

 private:
  void make_queries() {
    std::vector<int64_t> shape{batch_, longest(case_.lengths_q), case_.heads_q, case_.head_dim};
    std::vector<bool> owned(static_cast<size_t>(shape[0] * shape[1]), true);
    if (variant_.has("packed") || variant_.has("packed_q")) {
      const std::vector<int64_t> offsets = offsets_of(case_.lengths_q);
      map_["cu_seqlens_q"] = int_tensor(ints_, offsets);
      owned.assign(static_cast<size_t>(offsets.back()), true);
      owned.resize(owned.size() + tail(), false);
      shape = {static_cast<int64_t>(owned.size()), case_.heads_q, case_.head_dim};
    }
    const double gain = variant_.text("logits", "") == "zero" ? 0 : variant_.number("gain", 1);
    map_["q"] = normal_tensor(case_.dtype, shape, Random(seed_, "q"), gain, variant_.number("offset", 0));
    poison_rows(map_["q"], owned, case_.heads_q * case_.head_dim);
  }

  size_t tail() const { return static_cast<size_t>(variant_.number("tail", 0)); }

  // k and v over rows of `outer` (one or two dimensions); owned has one entry a token.
  void fill_keys(std::vector<int64_t> outer, const std::vector<bool>& owned) {
    outer.push_back(case_.heads_k);
    std::vector<int64_t> k_shape = outer, v_shape = outer;
    k_shape.push_back(case_.head_dim);
    v_shape.push_back(case_.head_dim_v);
    map_["k"] = normal_tensor(case_.dtype, k_shape, Random(seed_, "k"), variant_.number("gain", 1),
                              -variant_.number("offset", 0));
    map_["v"] = variant_.text("v", "") == "one" ? make_tensor(case_.dtype, v_shape, [](int64_t) { return 1.0; })
                                                : normal_tensor(case_.dtype, v_shape, Random(seed_, "v"));
    poison_rows(map_["k"], owned, case_.heads_k * case_.head_dim);
    poison_rows(map_["v"], owned, case_.heads_k * case_.head_dim_v);
  }

  void make_dense_keys() {
    int64_t rows = batch_;
    std::vector<int64_t> row_of(static_cast<size_t>(batch_));
    std::iota(row_of.begin(), row_of.end(), 0);
    if (variant_.has("cache")) {  // in reverse; the first and the last row are nobody's
      rows += 2;
      for (int64_t b = 0; b < batch_; b++) row_of[static_cast<size_t>(b)] = batch_ - b;
      map_["cache_batch_idx"] = int_tensor(ints_, row_of);
    }
    const int64_t tokens = longest(case_.lengths_k) + (variant_.has("seqused") ? room : 0);
    std::vector<bool> owned(static_cast<size_t>(rows * tokens), false);
    for (size_t b = 0; b < row_of.size(); b++) {
      const auto first = owned.begin() + row_of[b] * tokens;
      std::fill(first, first + case_.lengths_k[b], true);
    }
    fill_keys({rows, tokens}, owned);
  }

  void make_packed_keys() {
    const std::vector<int64_t> offsets = offsets_of(case_.lengths_k, variant_.has("seqused") ? room : 0);
    map_["cu_seqlens_k"] = int_tensor(ints_, offsets);
    std::vector<bool> owned(static_cast<size_t>(offsets.back()) + tail(), false);
    for (size_t b = 0; b < case_.lengths_k.size(); b++) {
      std::fill_n(owned.begin() + offsets[b], case_.lengths_k[b], true);
    }
    fill_keys({static_cast<int64_t>(owned.size())}, owned);
  }

  void make_paged_keys() {
    const auto page_size = static_cast<int64_t>(variant_.number("page", 16));
    const auto pages_of = [&](int64_t length) { return (length + page_size - 1) / page_size; };
    int64_t pages = 3;
    for (int64_t length : case_.lengths_k) pages += pages_of(length);
    std::vector<int64_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    const Random random(seed_, "pages");
    std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return random.bits(x) < random.bits(y); });

    const int64_t columns = pages_of(longest(case_.lengths_k)) + 1;
    HostTensor table(FLASHDELTA_INT32, {batch_, columns});
    auto* entries = static_cast<int32_t*>(table.data());
    std::vector<bool> owned(static_cast<size_t>(pages * page_size), false);
    size_t next = 0;
    for (int64_t b = 0; b < batch_; b++) {
      const int64_t length = case_.lengths_k[static_cast<size_t>(b)];
      for (int64_t i = 0; i < columns; i++) {
        int32_t& entry = entries[b * columns + i];
        entry = i % 2 == 0 ? std::numeric_limits<int32_t>::max() : -1;
        if (i >= pages_of(length)) continue;
        entry = static_cast<int32_t>(order[next++]);
        std::fill_n(owned.begin() + entry * page_size, std::min(page_size, length - i * page_size), true);
      }
    }
    map_["page_table"] = table;
    fill_keys({pages, page_size}, owned);
  }

  void make_sink() {
    if (!variant_.has("sink") && !variant_.has("sink_16")) return;
    const flashdelta_dtype dtype = variant_.has("sink_16") ? case_.dtype : FLASHDELTA_FP32;
    const std::string value = variant_.text("sink", "");
    const double fixed = variant_.number("sink", 0);
    const Random random(seed_, "sink");
    map_["sink"] =
        make_tensor(dtype, {case_.heads_q}, [&](int64_t i) { return value.empty() ? random.normal(i) : fixed; });
  }

  const Case& case_;
  uint64_t seed_;
  Variant variant_;
  int64_t batch_;
  flashdelta_dtype ints_;
  TensorMap map_;
};

}  // namespace

TensorMap attention_inputs(const Case& self, uint64_t seed) { return AttentionMaker(self, seed).make(); }

}  // namespace flashdelta
