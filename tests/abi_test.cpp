// The C boundary: defaults, refusals that name the argument, statuses, views from DLPack, the workspace contract.
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <flashdelta/flashdelta.hpp>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

using flashdelta::tensor;

// A small valid call whose fields a test then spoils.
struct Attention {
  std::vector<float> q = std::vector<float>(2 * 5 * 4 * 16, 0.5f), k = std::vector<float>(2 * 7 * 2 * 16, 0.25f),
                     v = std::vector<float>(2 * 7 * 2 * 24, 1.0f), o = std::vector<float>(2 * 5 * 4 * 24),
                     lse = std::vector<float>(2 * 4 * 5);
  flashdelta::AttentionForward args;
  flashdelta::Execution execution{FLASHDELTA_BACKEND_CPU};

  Attention() {
    args.q = tensor(q.data(), FLASHDELTA_FP32, {2, 5, 4, 16});
    args.k = tensor(k.data(), FLASHDELTA_FP32, {2, 7, 2, 16});
    args.v = tensor(v.data(), FLASHDELTA_FP32, {2, 7, 2, 24});
    args.o = tensor(o.data(), FLASHDELTA_FP32, {2, 5, 4, 24});
    args.lse = tensor(lse.data(), FLASHDELTA_FP32, {2, 4, 5});
  }
  flashdelta_status check() const { return flashdelta_attention_forward_check(&args, &execution); }
};

struct GatedDelta {
  std::vector<float> q = std::vector<float>(1 * 6 * 2 * 16, 0.1f), v = std::vector<float>(1 * 6 * 4 * 24, 0.1f),
                     g = std::vector<float>(6 * 4, -0.1f), o = std::vector<float>(1 * 6 * 4 * 24),
                     state = std::vector<float>(3 * 4 * 16 * 24), per_head = std::vector<float>(4);
  std::vector<int32_t> cu = {0, 2, 2, 6};
  flashdelta::GatedDeltaForward args;
  flashdelta::Execution execution{FLASHDELTA_BACKEND_CPU};

  GatedDelta() {
    args.q = tensor(q.data(), FLASHDELTA_FP32, {1, 6, 2, 16});
    args.k = args.q;
    args.v = tensor(v.data(), FLASHDELTA_FP32, {1, 6, 4, 24});
    args.g = tensor(g.data(), FLASHDELTA_FP32, {1, 6, 4});
    args.beta = args.g;
    args.o = tensor(o.data(), FLASHDELTA_FP32, {1, 6, 4, 24});
    args.cu_seqlens = tensor(cu.data(), FLASHDELTA_INT32, {4});
    args.final_state = tensor(state.data(), FLASHDELTA_FP32, {3, 4, 16, 24});
  }
  flashdelta_status check() const { return flashdelta_gated_delta_forward_check(&args, &execution); }
};

// Each refusal is one line that starts with the argument's name and holds every piece of text.
template <typename Call>
void expect_refused(std::function<void(Call&)> spoil, std::string_view argument, std::vector<std::string> pieces) {
  Call call;
  ASSERT_EQ(call.check(), FLASHDELTA_OK) << flashdelta_last_error();
  spoil(call);
  EXPECT_EQ(call.check(), FLASHDELTA_INVALID_ARGUMENT);
  const std::string said = flashdelta_last_error();
  EXPECT_EQ(said.rfind(std::string(argument) + ": expected ", 0), 0u) << said;
  for (const std::string& piece : pieces) EXPECT_NE(said.find(piece), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
}

TEST(Abi, DefaultsAreThoseOfTheHeader) {
  flashdelta_attention_forward_args a;
  std::memset(&a, 0xff, sizeof a);
  flashdelta_attention_forward_init(&a);
  EXPECT_EQ(a.struct_size, sizeof a);
  EXPECT_TRUE(std::isnan(a.scale));
  EXPECT_EQ(a.window_left, -1);
  EXPECT_EQ(a.window_right, -1);
  EXPECT_EQ(a.softcap, 0);
  EXPECT_EQ(a.sink.dtype, FLASHDELTA_NONE);
  flashdelta_gated_delta_forward_args g;
  std::memset(&g, 0xff, sizeof g);
  flashdelta_gated_delta_forward_init(&g);
  EXPECT_EQ(g.struct_size, sizeof g);
  EXPECT_TRUE(std::isnan(g.scale));
  EXPECT_EQ(g.beta_scale, 1);
  EXPECT_EQ(g.decay_threshold, -9);
  EXPECT_EQ(g.context_parallel, FLASHDELTA_CONTEXT_PARALLEL_EXACT);
  flashdelta_attention_forward_init(nullptr);
  flashdelta_gated_delta_forward_init(nullptr);
}

TEST(Abi, RefusalsOfAttentionNameTheArgument) {
  using A = Attention;
  const auto refuse = expect_refused<A>;
  refuse([](A& c) { c.args.struct_size -= 8; }, "struct_size", {});
  refuse([](A& c) { c.args.q = {}; }, "q", {"none"});
  refuse([](A& c) { c.args.q.dtype = FLASHDELTA_INT32; }, "q", {"bf16 or fp16 or fp32", "int32"});
  refuse([](A& c) { c.args.k.dtype = FLASHDELTA_BF16; }, "k", {"fp32", "bf16"});
  refuse([](A& c) { c.args.q.ndim = 3; }, "q", {"4 dimensions", "3"});
  refuse([](A& c) { c.args.q.ndim = 99; }, "q", {"99"});
  refuse([](A& c) { c.args.q.shape[3] = 12; }, "q", {"multiple of 8", "12"});
  refuse([](A& c) { c.args.q.shape[1] = -1; }, "q", {"not negative"});
  refuse([](A& c) { c.args.q.shape[0] = int64_t{1} << 61; }, "q", {"2^60"});
  refuse([](A& c) { c.args.q.strides[0] = int64_t{1} << 62; }, "q", {"2^60", "4611686018427387904"});
  refuse([](A& c) { c.args.q.strides[1] = -64; }, "q", {"negative"});
  refuse([](A& c) { c.args.q.strides[3] = 2; }, "q", {"stride 1", "2"});
  refuse([](A& c) { c.args.q.data = nullptr; }, "q", {"null"});
  refuse([](A& c) { c.args.q.data = reinterpret_cast<char*>(c.q.data()) + 1; }, "q", {"aligned"});
  refuse([](A& c) { c.args.o.strides[2] = 8; }, "o", {"overlap"});
  refuse([](A& c) { c.args.o.strides[1] = 0; }, "o", {"overlap"});
  refuse([](A& c) { c.args.q.shape[2] = 3; }, "q", {"multiple of k's 2", "3"});
  refuse([](A& c) { c.args.v.shape[1] = 6; }, "v", {"[2, 7, 2, 16]", "[2, 6, 2, 24]"});
  refuse([](A& c) { c.args.k.shape[0] = c.args.v.shape[0] = 1; }, "k", {"batch of 2", "1"});
  refuse([](A& c) { c.args.o.shape[3] = 16; }, "o", {"[2, 5, 4, 24]", "[2, 5, 4, 16]"});
  refuse([](A& c) { c.args.o.data = c.q.data(); }, "o", {"q's"});
  refuse([](A& c) { c.args.lse.shape[1] = 2; }, "lse", {"[2, 4, 5]", "[2, 2, 5]"});
  refuse([](A& c) { c.args.causal = 2; }, "causal", {"2"});
  refuse([](A& c) { c.args.softcap = -1; }, "softcap", {"-1"});
  refuse([](A& c) { c.args.softcap = NAN; }, "softcap", {"nan"});
  refuse([](A& c) { c.args.scale = INFINITY; }, "scale", {"infinity"});
  refuse([](A& c) { c.args.window_left = -2; }, "window_left", {"-2"});
  refuse([](A& c) { c.args.max_seqlen_q = -1; }, "max_seqlen_q", {"-1"});
  refuse([](A& c) { c.execution.struct_size = 4; }, "execution.struct_size", {"4"});
  refuse([](A& c) { c.execution.arch = 75; }, "execution.arch", {"75"});
  refuse([](A& c) { c.execution.num_threads = -1; }, "execution.num_threads", {"-1"});
  refuse([](A& c) { c.execution.backend = static_cast<flashdelta_backend>(9); }, "execution.backend", {"9"});
}

TEST(Abi, LengthsInHostMemoryAreCheckedInFull) {
  static std::vector<int32_t> used, pages;
  static std::vector<int64_t> rows;
  const auto refuse = expect_refused<Attention>;
  refuse(
      [](Attention& c) {
        used = {7, 8};
        c.args.seqused_k = tensor(used.data(), FLASHDELTA_INT32, {2});
      },
      "seqused_k[1]", {"7 keys", "8"});
  refuse(
      [](Attention& c) {
        rows = {0, 2};
        c.args.cache_batch_idx = tensor(rows.data(), FLASHDELTA_INT64, {2});
      },
      "cache_batch_idx[1]", {"0 to 1", "2"});
  refuse(
      [](Attention& c) {  // 7-token pages; the second sequence uses one page and names one that is not there
        used = {7, 3};
        pages = {0, -5, 9, 1};
        c.args.seqused_k = tensor(used.data(), FLASHDELTA_INT32, {2});
        c.args.page_table = tensor(pages.data(), FLASHDELTA_INT32, {2, 2});
      },
      "page_table[1][0]", {"0 to 1", "9"});
  refuse(
      [](Attention& c) {
        c.args.page_table = tensor(c.q.data(), FLASHDELTA_INT32, {2, 1});
      },
      "seqused_k", {"page_table", "none"});
}

TEST(Abi, RefusalsOfTheDeltaRuleNameTheArgument) {
  using G = GatedDelta;
  const auto refuse = expect_refused<G>;
  refuse([](G& c) { c.args.v.shape[2] = 3; }, "v", {"multiple of k's 2", "3"});
  refuse([](G& c) { c.args.g = {}; }, "g", {"A_log", "neither"});
  refuse([](G& c) { c.args.a = c.args.g; }, "g", {"both"});
  refuse([](G& c) { c.args.a = std::exchange(c.args.g, {}); }, "A_log", {"all of"});
  refuse([](G& c) { c.args.beta = {}; }, "beta", {"neither"});
  refuse([](G& c) { c.args.b = c.args.beta; }, "beta", {"both"});
  refuse([](G& c) { c.args.beta_scale = 3; }, "beta_scale", {"3"});
  refuse([](G& c) { c.args.beta_scale = 2; }, "beta_scale", {"beside beta"});
  refuse([](G& c) { c.args.chunk = 48; }, "chunk", {"48"});
  refuse([](G& c) { c.args.checkpoint_every = 100; }, "checkpoint_every", {"100"});
  refuse([](G& c) { c.args.checkpoint_every = 64; }, "checkpoints", {"none"});
  refuse([](G& c) { c.args.decay_threshold = 0; }, "decay_threshold", {"0"});
  refuse([](G& c) { c.args.state_layout = FLASHDELTA_STATE_VK; }, "final_state", {"24, 16", "16, 24"});
  refuse([](G& c) { c.args.context_parallel = static_cast<flashdelta_context_parallel>(7); }, "context_parallel",
         {"7"});
  refuse([](G& c) { c.args.max_seqlen = 3; }, "max_seqlen", {"length 4", "3"});
  refuse([](G& c) { c.cu = {1, 2, 2, 6}; }, "cu_seqlens[0]", {"0", "1"});
  refuse([](G& c) { c.cu = {0, 3, 2, 6}; }, "cu_seqlens[2]", {"3", "got 2"});
  refuse([](G& c) { c.cu = {0, 2, 2, 7}; }, "cu_seqlens[3]", {"6 tokens", "7"});
  refuse(
      [](G& c) {
        c.args.initial_state = tensor(c.q.data(), FLASHDELTA_BF16, {3, 4, 16, 24});
      },
      "final_state", {"bf16", "fp32"});
}

TEST(Abi, NoSlotIsWrittenTwice) {
  static std::vector<int32_t> slots;
  const auto refuse = expect_refused<GatedDelta>;
  const auto with = [](std::vector<int32_t> values) {
    return [values](GatedDelta& c) {
      slots = values;
      c.args.final_state_indices = tensor(slots.data(), FLASHDELTA_INT32, {3});
    };
  };
  refuse(with({0, 1, 0}), "final_state_indices[2]", {"final_state_indices[0]", "got 0"});
  refuse(with({0, 1, 3}), "final_state_indices[2]", {"3 slots", "got 3"});
  GatedDelta ok;
  with({2, -1, 0})(ok);
  EXPECT_EQ(ok.check(), FLASHDELTA_OK) << flashdelta_last_error();
  refuse(
      [](GatedDelta& c) {  // in place: sequence 0 starts from the slot that sequence 2 ends in
        slots = {1, 0, 2, 2, 1, 0};
        c.args.initial_state = c.args.final_state;
        c.args.initial_state_indices = tensor(slots.data(), FLASHDELTA_INT32, {3});
        c.args.final_state_indices = tensor(slots.data() + 3, FLASHDELTA_INT32, {3});
      },
      "initial_state_indices[0]", {"sequence 1", "got 1"});
}

TEST(Abi, GradientsAreNeverComputed) {
  flashdelta_attention_backward_args a;
  flashdelta_attention_backward_init(&a);
  flashdelta_gated_delta_backward_args g;
  flashdelta_gated_delta_backward_init(&g);
  const flashdelta::Execution e;
  size_t bytes = 77;
  EXPECT_EQ(flashdelta_attention_backward(&a, &e, nullptr, 0), FLASHDELTA_NOT_SUPPORTED);
  EXPECT_NE(std::string(flashdelta_last_error()).find("attention_backward"), std::string::npos);
  EXPECT_NE(std::string(flashdelta_last_error()).find("only the forward"), std::string::npos);
  EXPECT_EQ(flashdelta_attention_backward_workspace(&a, &e, &bytes), FLASHDELTA_NOT_SUPPORTED);
  EXPECT_EQ(flashdelta_gated_delta_backward(&g, &e, nullptr, 0), FLASHDELTA_NOT_SUPPORTED);
  EXPECT_EQ(flashdelta_gated_delta_backward_workspace(&g, &e, &bytes), FLASHDELTA_NOT_SUPPORTED);
  EXPECT_EQ(bytes, 77u);
}

TEST(Abi, WorkspaceIsAskedForAndChecked) {
  Attention c;
  const size_t bytes = c.args.workspace_bytes(c.execution);
  ASSERT_GT(bytes, 0u);
  flashdelta::HostWorkspace workspace;
  char* memory = static_cast<char*>(workspace.reserve(bytes + 256));
  EXPECT_EQ(flashdelta_attention_forward(&c.args, &c.execution, memory, bytes - 1), FLASHDELTA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(flashdelta_attention_forward(&c.args, &c.execution, memory + 8, bytes), FLASHDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(flashdelta_attention_forward(&c.args, &c.execution, nullptr, bytes), FLASHDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(flashdelta_attention_forward(&c.args, &c.execution, memory, bytes), FLASHDELTA_OK);
  for (float x : c.o) EXPECT_FLOAT_EQ(x, 1.0f);  // the mean of ones
}

TEST(Abi, NullsAndStatuses) {
  Attention c;
  EXPECT_EQ(flashdelta_attention_forward_check(nullptr, &c.execution), FLASHDELTA_INVALID_ARGUMENT);
  EXPECT_STREQ(flashdelta_last_error(), "args: expected a pointer, got null");
  EXPECT_EQ(flashdelta_attention_forward_check(&c.args, nullptr), FLASHDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(flashdelta_attention_forward_workspace(&c.args, &c.execution, nullptr), FLASHDELTA_INVALID_ARGUMENT);
  std::string other = "unset";
  std::thread([&] { other = flashdelta_last_error(); }).join();
  EXPECT_EQ(other, "");  // a message belongs to its thread
  EXPECT_STREQ(flashdelta_status_name(FLASHDELTA_NOT_SUPPORTED), "NOT_SUPPORTED");
  EXPECT_STREQ(flashdelta_status_name(static_cast<flashdelta_status>(99)), "UNKNOWN");
  EXPECT_STREQ(flashdelta_version(), "0.1.0");
  EXPECT_EQ(flashdelta_backend_available(FLASHDELTA_BACKEND_CPU), FLASHDELTA_OK);
}

TEST(Abi, ExceptionsCarryStatusAndSentence) {
  Attention c;
  c.args.softcap = -2;
  try {
    c.args.check(c.execution);
    FAIL() << "no exception";
  } catch (const flashdelta::Error& e) {
    EXPECT_EQ(e.code(), FLASHDELTA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find("softcap"), std::string::npos);
  }
  EXPECT_THROW(tensor(nullptr, FLASHDELTA_FP32, {1, -1}), flashdelta::Error);
  EXPECT_THROW(tensor(nullptr, FLASHDELTA_FP32, {int64_t{1} << 40, int64_t{1} << 40}), flashdelta::Error);
}

TEST(Abi, DlpackViews) {
  std::array<uint16_t, 64> data{};
  std::array<int64_t, 2> shape{3, 8}, strides{16, 1};
  DLTensor d{};
  d.data = data.data();
  d.device = {kDLCPU, 0};
  d.ndim = 2;
  d.dtype = {kDLBfloat, 16, 1};
  d.shape = shape.data();
  d.byte_offset = 32;
  flashdelta_tensor t{};
  int32_t device = -1, id = -1;
  ASSERT_EQ(flashdelta_tensor_from_dlpack(&d, &t, &device, &id), FLASHDELTA_OK);
  EXPECT_EQ(t.data, data.data() + 16);
  EXPECT_EQ(t.dtype, FLASHDELTA_BF16);
  EXPECT_EQ(t.strides[0], 8);  // null strides: contiguous
  EXPECT_EQ(device, static_cast<int32_t>(kDLCPU));
  d.strides = strides.data();
  ASSERT_EQ(flashdelta_tensor_from_dlpack(&d, &t, nullptr, nullptr), FLASHDELTA_OK);
  EXPECT_EQ(t.strides[0], 16);
  for (const auto& [type, dtype] : {std::pair{DLDataType{kDLFloat, 16, 1}, FLASHDELTA_FP16},
                                    {DLDataType{kDLFloat, 32, 1}, FLASHDELTA_FP32},
                                    {DLDataType{kDLInt, 32, 1}, FLASHDELTA_INT32},
                                    {DLDataType{kDLInt, 64, 1}, FLASHDELTA_INT64}}) {
    d.dtype = type;
    ASSERT_EQ(flashdelta_tensor_from_dlpack(&d, &t, nullptr, nullptr), FLASHDELTA_OK);
    EXPECT_EQ(t.dtype, dtype);
  }
  d.dtype = {kDLFloat, 32, 4};
  EXPECT_EQ(flashdelta_tensor_from_dlpack(&d, &t, nullptr, nullptr), FLASHDELTA_INVALID_ARGUMENT);
  d.dtype = {kDLUInt, 8, 1};
  EXPECT_EQ(flashdelta_tensor_from_dlpack(&d, &t, nullptr, nullptr), FLASHDELTA_INVALID_ARGUMENT);
  EXPECT_STREQ(flashdelta_last_error(),
               "dl_tensor.dtype: expected bfloat16, float16, float32, int32 or int64, got uint8");
  EXPECT_EQ(flashdelta_tensor_from_dlpack(nullptr, &t, nullptr, nullptr), FLASHDELTA_INVALID_ARGUMENT);
}

}  // namespace
