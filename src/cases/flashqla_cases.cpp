// The forward list of FlashQLA's tests: heads, lengths and packing, each from a state and from zero, in both layouts.
// Gates decay by up to A = 16. As cases for every machine they have one key head, its group of value heads and at most
// 4096 tokens, lengths cut in proportion; as full-size ones they are what the list says.
#include <algorithm>
#include <numeric>

#include "cases/inputs.hpp"

namespace flashdelta {
namespace {

constexpr int64_t most_tokens = 4096;

struct Row {
  const char* name;
  int64_t heads_k, heads_v;
  std::vector<int64_t> lengths;
  int64_t tail = -1;  // rows beyond the last sequence; -1: dense
};

std::vector<int64_t> between(const std::vector<int64_t>& offsets) {
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < offsets.size(); i++) lengths.push_back(offsets[i] - offsets[i - 1]);
  return lengths;
}

// `count` lengths from `longest` down to 1, all different where there is room, in no order.
std::vector<int64_t> varied(int64_t count, int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; i++) lengths.push_back(longest - i * 7919 % longest);
  return lengths;
}

std::vector<Row> rows() {
  return {
      {"1x4096_4_4", 4, 4, {4096}},
      {"1x4096_2_8", 2, 8, {4096}},
      {"1x4096_4_16", 4, 16, {4096}},
      {"3x4096_4_4", 4, 4, varied(3, 4096), 0},
      {"six_to_4096_16_32", 16, 32, between({0, 410, 841, 1135, 2126, 2512, 4096}), 0},
      {"two_of_1000_16_64", 16, 64, between({0, 211, 985}), 15},
      {"1x32768_4_4", 4, 4, {32768}},
      {"1x32768_8_8", 8, 8, {32768}},
      {"1x32768_16_16", 16, 16, {32768}},
      {"11x33_4_4", 4, 4, varied(11, 33), 0},
      {"7x4321_4_4", 4, 4, varied(7, 4321), 0},
      {"3x16789_4_4", 4, 4, varied(3, 16789), 0},
      {"5x8192_4_4", 4, 4, varied(5, 8192), 0},
      {"10x1024_4_4", 4, 4, varied(10, 1024), 0},
      {"20x512_4_4", 4, 4, varied(20, 512), 0},
      {"two_to_128_4_4", 4, 4, between({0, 47, 128}), 0},
      {"five_to_4096_4_4", 4, 4, between({0, 517, 883, 1010, 3767, 4096}), 0},
      {"six_to_16384_4_4", 4, 4, between({0, 4096, 6893, 7665, 8192, 12288, 16384}), 0},
      {"three_of_256_4_4", 4, 4, between({0, 73, 115, 209}), 47},
  };
}

// What was scaled is in the source, as in every case.
Case scaled(Case one, const Row& row) {
  const int64_t total = std::accumulate(one.lengths_q.begin(), one.lengths_q.end(), int64_t{0});
  one.heads_k = 1;
  one.heads_q = row.heads_v / row.heads_k;
  one.source += fmt::format(" (1/{} for {}/{} heads", one.heads_q, row.heads_k, row.heads_v);
  if (const int64_t part = (total + most_tokens - 1) / most_tokens; part > 1) {
    for (int64_t& length : one.lengths_q) length = std::max<int64_t>(length / part, 1);
    one.source += fmt::format(", lengths / {}", part);
  }
  one.source += ")";
  return one;
}

Case case_of(const Row& row, bool value_major, bool initial) {
  Case one;
  one.name = fmt::format("gdn_flashqla_{}_{}{}", row.name, value_major ? "vk" : "kv", initial ? "_h0" : "");
  one.source = "FlashQLA's forward list";
  one.operation = Operation::gated_delta_forward;
  one.inputs = gated_delta_inputs;
  one.lengths_q = row.lengths;
  one.heads_q = row.heads_v;
  one.heads_k = row.heads_k;
  one.variant = "gate=wide";
  if (row.tail >= 0) one.variant += fmt::format(" packed tail={}", row.tail);
  if (initial) one.variant += " h0";
  if (value_major) one.options.state_layout = FLASHDELTA_STATE_VK;
  return one;
}

}  // namespace

std::vector<Case> flashqla_cases(bool full_size) {
  std::vector<Case> all;
  for (const Row& row : rows()) {
    for (bool value_major : {false, true}) {
      for (bool initial : {false, true}) {
        const Case one = case_of(row, value_major, initial);
        all.push_back(full_size ? one : scaled(one, row));
      }
    }
  }
  return all;
}

}  // namespace flashdelta
