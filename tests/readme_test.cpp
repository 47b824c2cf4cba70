// The README's support table, row by row, against the code: "yes" must run, "no" must be refused as not supported.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <flashdelta/flashdelta.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using flashdelta::tensor;

// Small calls, inputs on the same memory; a feature changes what it is about. A sequence has 16 queries and
// 16 keys, of the delta rule 32 tokens.
std::vector<float> memory(1 << 18, 0.125f), written(1 << 18);
std::vector<int32_t> offsets = {0, 16}, lengths = {16}, rows = {0}, pages = {0};
std::vector<int32_t> token_slots = [] {  // the state after the first token alone
  std::vector<int32_t> slots(32, -1);
  slots[0] = 0;
  return slots;
}();

struct Calls {
  flashdelta::AttentionForward attention;
  flashdelta::GatedDeltaForward delta;
  bool is_attention = true;
};

void shape_attention(Calls& c, flashdelta_dtype dtype, int64_t heads_q, int64_t dim, int64_t dim_v) {
  c.attention.q = tensor(memory.data(), dtype, {1, 16, heads_q, dim});
  c.attention.k = tensor(memory.data(), dtype, {1, 16, 1, dim});
  c.attention.v = tensor(memory.data(), dtype, {1, 16, 1, dim_v});
  c.attention.o = tensor(written.data(), dtype, {1, 16, heads_q, dim_v});
}

void shape_delta(Calls& c, flashdelta_dtype dtype, int64_t heads_v, int64_t dim, int64_t dim_v) {
  c.is_attention = false;
  c.delta.q = c.delta.k = tensor(memory.data(), dtype, {1, 32, 1, dim});
  c.delta.v = tensor(memory.data(), dtype, {1, 32, heads_v, dim_v});
  c.delta.g = c.delta.beta = tensor(memory.data(), FLASHDELTA_FP32, {1, 32, heads_v});
  c.delta.o = tensor(written.data(), dtype, {1, 32, heads_v, dim_v});
}

Calls attention(flashdelta_dtype dtype = FLASHDELTA_BF16, int64_t heads_q = 2, int64_t dim = 64, int64_t dim_v = 64) {
  Calls c;
  shape_attention(c, dtype, heads_q, dim, dim_v);
  return c;
}

Calls delta(flashdelta_dtype dtype = FLASHDELTA_BF16, int64_t heads_v = 2, int64_t dim = 64, int64_t dim_v = 64) {
  Calls c;
  shape_delta(c, dtype, heads_v, dim, dim_v);
  return c;
}

template <typename Change>
Calls changed(Calls c, Change change) {
  change(c);
  return c;
}

flashdelta_tensor without_batch(flashdelta_tensor t) {
  for (int i = 0; i < 3; i++) t.shape[i] = t.shape[i + 1], t.strides[i] = t.strides[i + 1];
  t.ndim = 3;
  return t;
}

flashdelta_tensor state(int64_t heads, int64_t dim, int64_t dim_v, flashdelta_dtype dtype = FLASHDELTA_FP32) {
  return tensor(written.data() + (1 << 16), dtype, {1, heads, dim, dim_v});
}

// What each row of the table stands for.
const std::map<std::string, std::function<Calls()>> features = {
    {"attention forward, bf16 and fp16", [] { return attention(FLASHDELTA_FP16); }},
    {"attention forward, fp32", [] { return attention(FLASHDELTA_FP32); }},
    {"head size 64 and 128", [] { return attention(FLASHDELTA_BF16, 2, 128, 128); }},
    {"head size any multiple of 8 up to 128", [] { return attention(FLASHDELTA_BF16, 2, 72, 40); }},
    {"head size any multiple of 8 up to 512", [] { return attention(FLASHDELTA_BF16, 2, 512, 512); }},
    {"grouped heads of any whole group", [] { return attention(FLASHDELTA_BF16, 7); }},
    {"causal, bottom-right", [] { return changed(attention(), [](Calls& c) { c.attention.causal = 1; }); }},
    {"lse",
     [] {
       return changed(attention(), [](Calls& c) {
         c.attention.lse = tensor(written.data() + (1 << 16), FLASHDELTA_FP32, {1, 2, 16});
       });
     }},
    {"packed lengths (cu_seqlens)",
     [] {
       return changed(attention(), [](Calls& c) {
         auto& a = c.attention;
         for (auto* t : {&a.q, &a.k, &a.v, &a.o}) *t = without_batch(*t);
         a.cu_seqlens_q = a.cu_seqlens_k = tensor(offsets.data(), FLASHDELTA_INT32, {2});
       });
     }},
    {"sliding window",
     [] { return changed(attention(), [](Calls& c) { c.attention.window_left = c.attention.window_right = 4; }); }},
    {"softcap", [] { return changed(attention(), [](Calls& c) { c.attention.softcap = 15; }); }},
    {"sinks",
     [] {
       return changed(attention(), [](Calls& c) { c.attention.sink = tensor(memory.data(), FLASHDELTA_FP32, {2}); });
     }},
    {"seqused_k and cache_batch_idx",
     [] {
       return changed(attention(), [](Calls& c) {
         c.attention.seqused_k = tensor(lengths.data(), FLASHDELTA_INT32, {1});
         c.attention.cache_batch_idx = tensor(rows.data(), FLASHDELTA_INT32, {1});
       });
     }},
    {"paged keys and values",
     [] {
       return changed(attention(), [](Calls& c) {
         c.attention.seqused_k = tensor(lengths.data(), FLASHDELTA_INT32, {1});
         c.attention.page_table = tensor(pages.data(), FLASHDELTA_INT32, {1, 1});
       });
     }},
    {"gated delta forward, bf16 and fp16", [] { return delta(FLASHDELTA_FP16); }},
    {"gated delta forward, fp32", [] { return delta(FLASHDELTA_FP32); }},
    {"K and V any multiple of 8 up to 256", [] { return delta(FLASHDELTA_BF16, 3, 256, 40); }},
    {"q/k L2 norm inside", [] { return changed(delta(), [](Calls& c) { c.delta.qk_l2norm = 1; }); }},
    {"gate from A_log, a, dt_bias; beta from b",
     [] {
       return changed(delta(), [](Calls& c) {
         c.delta.a = c.delta.b = c.delta.g;
         c.delta.g = c.delta.beta = {};
         c.delta.A_log = c.delta.dt_bias = tensor(memory.data(), FLASHDELTA_FP32, {2});
         c.delta.beta_scale = 2;
       });
     }},
    {"initial and final state, [K,V] or [V,K], fp32 or bf16",
     [] {
       return changed(delta(), [](Calls& c) {
         c.delta.state_layout = FLASHDELTA_STATE_VK;
         c.delta.initial_state = c.delta.final_state = state(2, 64, 64, FLASHDELTA_BF16);
       });
     }},
    {"state pool with indices",
     [] {
       return changed(delta(), [](Calls& c) {
         c.delta.initial_state = c.delta.final_state = state(2, 64, 64);
         c.delta.initial_state_indices = tensor(rows.data(), FLASHDELTA_INT32, {1});
       });
     }},
    {"checkpoints every n tokens",
     [] {
       return changed(delta(), [](Calls& c) {
         c.delta.checkpoint_every = 64;
         c.delta.checkpoints = tensor(written.data(), FLASHDELTA_FP32, {0, 2, 64, 64});
       });
     }},
    {"states after each token, accepted tokens",
     [] {
       return changed(delta(), [](Calls& c) {
         c.delta.initial_state = c.delta.final_state = state(2, 64, 64);
         c.delta.token_state_indices = tensor(token_slots.data(), FLASHDELTA_INT32, {1, 32});
         c.delta.num_accepted_tokens = tensor(rows.data(), FLASHDELTA_INT32, {1});
       });
     }},
};

flashdelta_status run(const Calls& c, flashdelta_backend backend) {
  const flashdelta::Execution e(backend);
  size_t bytes = 0;
  flashdelta_status status = c.is_attention ? flashdelta_attention_forward_workspace(&c.attention, &e, &bytes)
                                            : flashdelta_gated_delta_forward_workspace(&c.delta, &e, &bytes);
  if (status != FLASHDELTA_OK) return status;
  flashdelta::HostWorkspace workspace;
  void* w = workspace.reserve(bytes);
  return c.is_attention ? flashdelta_attention_forward(&c.attention, &e, w, bytes)
                        : flashdelta_gated_delta_forward(&c.delta, &e, w, bytes);
}

std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(" *`"), last = s.find_last_not_of(" *`");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

// The rows of the table under the heading "What is supported": feature, then a column a backend.
std::vector<std::vector<std::string>> support_table() {
  std::ifstream readme(FLASHDELTA_SOURCE_DIR "/README.md");
  std::vector<std::vector<std::string>> table;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.rfind("## ", 0) == 0) inside = line == "## What is supported";
    if (!inside || line.rfind("| ", 0) != 0 || line.rfind("| ---", 0) == 0) continue;
    std::vector<std::string> cells;
    size_t begin = 1;
    for (size_t end; (end = line.find('|', begin)) != std::string::npos; begin = end + 1) {
      cells.push_back(trimmed(line.substr(begin, end - begin)));
    }
    table.push_back(cells);
  }
  return table;
}

TEST(Readme, SupportTableIsTrue) {
  const auto table = support_table();
  ASSERT_GE(table.size(), 2u) << "no support table in README.md";
  ASSERT_EQ(table[0], (std::vector<std::string>{"feature", "cpu", "emulator", "cuda"}));
  std::map<std::string, int> seen;
  int checked = 0;
  for (size_t r = 1; r < table.size(); r++) {
    ASSERT_EQ(table[r].size(), 4u);
    const auto feature = features.find(table[r][0]);
    ASSERT_NE(feature, features.end()) << "README.md names a feature that no test knows: " << table[r][0];
    seen[table[r][0]]++;
    const Calls calls = feature->second();
    for (const auto& [column, backend] :
         {std::pair{1u, FLASHDELTA_BACKEND_CPU}, {2u, FLASHDELTA_BACKEND_EMULATOR}, {3u, FLASHDELTA_BACKEND_CUDA}}) {
      const bool here = flashdelta_backend_available(backend) == FLASHDELTA_OK;
      if (table[r][column] == "yes") {
        if (!here) continue;  // said below
        // Host memory is no device memory: a CUDA run is for the GPU tests.
        if (backend == FLASHDELTA_BACKEND_CUDA) continue;
        EXPECT_EQ(run(calls, backend), FLASHDELTA_OK) << table[r][0] << ": " << flashdelta_last_error();
      } else {
        EXPECT_EQ(table[r][column], "no") << table[r][0];
        EXPECT_EQ(run(calls, backend), FLASHDELTA_NOT_SUPPORTED) << table[r][0] << ", column " << column;
      }
      checked++;
    }
  }
  for (const auto& [name, make] : features) EXPECT_EQ(seen[name], 1) << "README.md has no row: " << name;
  std::cout << checked << " cells checked against the code; a backend that is not on this machine has none\n";
}

}  // namespace
