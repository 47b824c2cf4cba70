// The CPU's attention_forward against the float64 oracle: every option, hostile memory, extreme scores, threads,
// cancellation and memory.
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <rapidcheck.h>
#include <sys/mman.h>

#include <numeric>

#include "cpu_attention_call.hpp"

namespace flashdelta::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void run_and_check(const AttentionOptions& options, int threads = 2) {
  AttentionCall call(options);
  const Status status = call.run(threads);
  ASSERT_TRUE(status.ok()) << status.message;
  call.check();
}

TEST(CpuAttention, LengthsAroundTheBlocks) {
  for (int64_t n : {0, 1, 9, 63, 65, 95, 96, 97, 127, 129, 192, 193}) {
    SCOPED_TRACE(n);
    run_and_check({.q = {n}, .k = {n}, .head_dim = 40, .head_dim_v = 24, .causal = true});
    run_and_check({.q = {7}, .k = {n}, .head_dim = 16, .head_dim_v = 16});
    run_and_check({.q = {n}, .k = {50}, .head_dim = 16, .head_dim_v = 16, .causal = true});
  }
  run_and_check({.q = {1001}, .k = {503}, .head_dim = 8, .head_dim_v = 8});
  run_and_check({.q = {503}, .k = {1001}, .head_dim = 8, .head_dim_v = 8, .causal = true});
}

TEST(CpuAttention, HeadSizes) {
  const std::pair<int64_t, int64_t> sizes[] = {{8, 8},     {72, 72},   {96, 104},  {104, 40}, {160, 160}, {192, 128},
                                               {224, 224}, {256, 256}, {512, 512}, {8, 512},  {512, 8}};
  for (const auto& [d, dv] : sizes) {
    for (flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32}) {
      SCOPED_TRACE(fmt::format("{} {} {}", d, dv, dtype_name(dtype)));
      run_and_check({.dtype = dtype, .q = {33}, .k = {65}, .head_dim = d, .head_dim_v = dv, .causal = true});
    }
  }
}

TEST(CpuAttention, OutputMayBeFp32) {
  run_and_check({.o_dtype = FLASHDELTA_FP32, .q = {20}, .k = {30}});
  run_and_check({.dtype = FLASHDELTA_FP16, .o_dtype = FLASHDELTA_FP32, .q = {20}, .k = {30}, .lse = false});
}

TEST(CpuAttention, GroupsOfAnySize) {
  const std::pair<int64_t, int64_t> heads[] = {{3, 1}, {5, 1}, {6, 1}, {7, 1}, {24, 4}, {9, 3}, {130, 1}};
  for (const auto& [hq, hk] : heads) {
    SCOPED_TRACE(hq);
    run_and_check(
        {.q = {41}, .k = {45}, .heads_q = hq, .heads_k = hk, .head_dim = 24, .head_dim_v = 32, .causal = true});
    run_and_check({.q = {1}, .k = {45}, .heads_q = hq, .heads_k = hk, .head_dim = 24, .head_dim_v = 32});
  }
}

TEST(CpuAttention, Windows) {
  const std::pair<int64_t, int64_t> windows[] = {
      {0, 0}, {0, -1}, {-1, 0}, {5, 3}, {31, -1}, {-1, 7}, {200, 1}, {1000, 900}, {0, int64_t{1} << 60}};
  for (const auto& [left, right] : windows) {
    for (const auto& [tq, tk] : {std::pair{150, 150}, {40, 230}, {230, 40}}) {
      SCOPED_TRACE(fmt::format("window {} {} lengths {} {}", left, right, tq, tk));
      run_and_check({.q = {tq},
                     .k = {tk},
                     .heads_q = 3,
                     .head_dim = 16,
                     .head_dim_v = 16,
                     .window_left = left,
                     .window_right = right});
    }
  }
  run_and_check({.q = {150}, .k = {150}, .head_dim = 16, .head_dim_v = 16, .causal = true, .window_left = 0});
}

TEST(CpuAttention, SoftcapAndSink) {
  run_and_check({.q = {80}, .k = {80}, .heads_q = 2, .causal = true, .softcap = 15, .gain = 3});
  run_and_check({.dtype = FLASHDELTA_FP32, .q = {80}, .k = {80}, .softcap = 2, .gain = 10});
  run_and_check({.q = {60}, .k = {60}, .heads_q = 3, .causal = true, .sink = true});
  run_and_check({.q = {60}, .k = {20}, .heads_q = 3, .causal = true, .sink = true, .softcap = 5, .gain = 2});
}

// modular #6198: with all scores 0 and v = 1, o = n / (n + exp(sink)).
TEST(CpuAttention, SinkIsInTheDenominatorAlone) {
  AttentionCall call({.dtype = FLASHDELTA_FP32, .q = {3}, .k = {4}, .head_dim = 8, .head_dim_v = 8, .sink = true});
  call.write_q([](auto...) { return 0.0f; });
  call.write_v([](auto...) { return 1.0f; });
  for (float sink : {0.0f, 2.0f, -kInf, 500.0f, kInf}) {
    call.write_sink(sink);
    ASSERT_TRUE(call.run().ok());
    EXPECT_NEAR(call.o(0, 2, 0, 5), 4 / (4 + std::exp(sink)), 1e-6);
    EXPECT_FLOAT_EQ(call.lse(0, 2, 0), sink > 100 ? sink : std::log(4 + std::exp(sink)));
  }
}

TEST(CpuAttention, RowsThatSeeNoKey) {
  AttentionCall call({.q = {20, 20}, .k = {5, 0}, .heads_q = 2, .causal = true});
  ASSERT_TRUE(call.run().ok());
  call.check();
  for (int64_t i = 0; i < 15; i++) {
    EXPECT_EQ(call.o(0, i, 1, 3), 0.0f);
    EXPECT_EQ(call.lse(0, i, 1), -kInf);
  }
  EXPECT_TRUE(std::isfinite(call.lse(0, 15, 1)));
  EXPECT_EQ(call.lse(1, 19, 0), -kInf);
}

TEST(CpuAttention, NothingAtAll) {
  run_and_check({.q = {}, .k = {}});
  run_and_check({.q = {}, .k = {}, .packed_q = true, .keys = Keys::packed});
  run_and_check({.q = {0, 0}, .k = {4, 0}, .packed_q = true, .keys = Keys::packed});
  run_and_check({.q = {0}, .k = {0}});
  run_and_check({.q = {}, .k = {}, .packed_q = true, .keys = Keys::paged});
}

TEST(CpuAttention, EveryKeyLayout) {
  for (Keys keys : {Keys::dense, Keys::packed, Keys::paged, Keys::cached}) {
    SCOPED_TRACE(static_cast<int>(keys));
    run_and_check({.q = {0, 5, 64, 17, 0, 100},
                   .k = {3, 0, 64, 190, 0, 100},
                   .heads_q = 6,
                   .heads_k = 2,
                   .head_dim = 32,
                   .head_dim_v = 16,
                   .packed_q = true,
                   .keys = keys,
                   .causal = true});
    run_and_check({.dtype = FLASHDELTA_FP32,
                   .q = {7, 7, 7},
                   .k = {100, 0, 9},
                   .heads_q = 2,
                   .heads_k = 2,
                   .head_dim = 16,
                   .head_dim_v = 24,
                   .keys = keys,
                   .window_left = 20,
                   .window_right = 2});
  }
  for (int64_t page_size : {1, 3, 16, 100, 256}) {
    SCOPED_TRACE(page_size);
    run_and_check({.q = {1, 1, 1}, .k = {200, 16, 33}, .heads_q = 4, .keys = Keys::paged, .page_size = page_size});
  }
}

// FA #2562's lengths, at a small head size and a hundredth of the scale's heads.
TEST(CpuAttention, RepeatedOffsets) {
  run_and_check({.q = {0, 1208, 840, 0},
                 .k = {2538, 1742, 840, 3072},
                 .head_dim = 8,
                 .head_dim_v = 8,
                 .packed_q = true,
                 .keys = Keys::packed,
                 .causal = true});
  run_and_check({.dtype = FLASHDELTA_FP16,
                 .q = {76, 34, 146},
                 .k = {1, 1, 1},
                 .head_dim = 32,
                 .head_dim_v = 32,
                 .packed_q = true,
                 .keys = Keys::packed,
                 .causal = true,
                 .gain = 3});
}

TEST(CpuAttention, RandomCalls) {
  const auto ok = rc::check("agrees with the oracle", [] {
    const auto range = [](int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); };
    AttentionOptions o;
    o.dtype = *rc::gen::element(FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32);
    o.o_dtype = *rc::gen::element(FLASHDELTA_NONE, FLASHDELTA_FP32);
    const int64_t batch = range(0, 4), heads_k = range(1, 3);
    o.heads_k = heads_k;
    o.heads_q = heads_k * range(1, 5);
    o.head_dim = 8 * range(1, 12);
    o.head_dim_v = 8 * range(1, 12);
    o.packed_q = *rc::gen::arbitrary<bool>();
    const int64_t tq = range(0, 60);
    for (int64_t b = 0; b < batch; b++) {
      o.q.push_back(o.packed_q ? range(0, 60) : tq);
      o.k.push_back(range(0, 220));
    }
    o.keys = *rc::gen::element(Keys::dense, Keys::packed, Keys::paged, Keys::cached);
    o.page_size = range(1, 40);
    o.causal = *rc::gen::arbitrary<bool>();
    o.sink = *rc::gen::arbitrary<bool>();
    o.lse = *rc::gen::arbitrary<bool>();
    o.window_left = range(0, 1) == 0 ? -1 : range(0, 150);
    o.window_right = range(0, 1) == 0 ? -1 : range(0, 150);
    o.softcap = range(0, 2) == 0 ? 10.0 : 0.0;
    o.gain = *rc::gen::element(0.5f, 1.0f, 3.0f);
    o.gap = range(0, 9);
    o.seed = *rc::gen::arbitrary<uint64_t>();
    AttentionCall call(o);
    const Status status = call.run(static_cast<int>(range(1, 4)));
    RC_ASSERT(status.ok());
    call.check();
    RC_ASSERT(!testing::Test::HasFailure());
  });
  EXPECT_TRUE(ok);
}

std::vector<int64_t> targets() {
  std::vector<int64_t> all{HWY_SCALAR};
  for (int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) != 0) all.push_back(target);
  }
  return all;
}

class CpuAttentionTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::GetChosenTarget().Update(GetParam()); }
  void TearDown() override { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

TEST_P(CpuAttentionTarget, AgreesWithTheOracle) {
  run_and_check({.q = {70},
                 .k = {130},
                 .heads_q = 6,
                 .heads_k = 2,
                 .head_dim = 72,
                 .head_dim_v = 40,
                 .causal = true,
                 .sink = true,
                 .softcap = 20,
                 .gain = 2});
  run_and_check({.dtype = FLASHDELTA_FP32, .q = {1}, .k = {130}, .heads_q = 3, .window_left = 60});
  run_and_check({.dtype = FLASHDELTA_FP16, .q = {40}, .k = {10}, .causal = true});
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuAttentionTarget, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

// ---- Scores that fp32 does not like ----

// FI #4267, #4450, #4451: all scores under -5e4.
TEST(CpuAttention, VeryNegativeScores) {
  run_and_check({.q = {40}, .k = {40}, .gain = 2, .offset = 82});
  run_and_check({.dtype = FLASHDELTA_FP16, .q = {40}, .k = {100}, .causal = true, .gain = 2, .offset = 82});
  run_and_check({.dtype = FLASHDELTA_FP32, .q = {40}, .k = {100}, .heads_q = 2, .gain = 1, .offset = 82});
}

TEST(CpuAttention, RampsOfScores) {
  for (float step : {1e4f, -1e4f}) {
    AttentionCall call(
        {.dtype = FLASHDELTA_FP32, .q = {30}, .k = {300}, .head_dim = 8, .head_dim_v = 8, .causal = true, .scale = 1});
    call.write_q([](int64_t, int64_t, int64_t, int64_t c, float) { return c == 0 ? 1.0f : 0.0f; });
    call.write_k(
        [&](int64_t, int64_t j, int64_t, int64_t c, float) { return c == 0 ? step * static_cast<float>(j) : 0.0f; });
    ASSERT_TRUE(call.run().ok());
    call.check();
  }
}

// Products beyond fp32's range: float64 has them, so there is an answer and it is no NaN.
TEST(CpuAttention, ScoresBeyondFp32) {
  for (float size : {1e20f, 1e30f, 3e38f}) {
    for (bool alternate : {false, true}) {
      SCOPED_TRACE(size);
      AttentionCall call({.q = {20}, .k = {150}, .heads_q = 2, .head_dim = 16, .head_dim_v = 16, .causal = true});
      call.write_q([&](int64_t, int64_t, int64_t, int64_t, float x) { return x > 0 ? size : -size; });
      call.write_k([&](int64_t, int64_t, int64_t, int64_t c, float x) {
        return alternate ? (c % 2 == 0 ? size : -size) : (x > 0 ? size : -size);
      });
      ASSERT_TRUE(call.run().ok());
      for (int64_t i = 0; i < 20; i++) {
        for (int64_t c = 0; c < 16; c++) EXPECT_TRUE(std::isfinite(call.o(0, i, 1, c)));
        EXPECT_EQ(call.lse(0, i, 1), static_cast<float>(call.expected(0, i, 1).lse));
      }
    }
  }
}

TEST(CpuAttention, ValuesNearTheEndOfFp32) {
  AttentionCall call({.q = {5}, .k = {300}, .head_dim = 8, .head_dim_v = 8});
  call.write_q([](auto...) { return 0.0f; });
  call.write_v([](auto...) { return 3e38f; });
  ASSERT_TRUE(call.run().ok());
  EXPECT_NEAR(call.o(0, 3, 0, 3), 3e38, 0.01e38);
}

// A key that a row may not see cannot hurt it, even in the same tile.
TEST(CpuAttention, HiddenInfinitiesAndNansStayHidden) {
  AttentionCall call({.dtype = FLASHDELTA_FP32, .q = {60}, .k = {60}, .heads_q = 2, .causal = true});
  const auto hurt = [](int64_t, int64_t j, int64_t, int64_t, float x) {
    return j == 40 ? std::nanf("") : j == 50 ? kInf : x;
  };
  call.write_k(hurt);
  call.write_v(hurt);
  ASSERT_TRUE(call.run().ok());
  for (int64_t i = 0; i < 60; i++) EXPECT_EQ(std::isnan(call.o(0, i, 1, 7)), i >= 40) << i;
}

// ---- Threads, memory, cancellation ----

TEST(CpuAttention, SameBitsOnAnyNumberOfThreads) {
  const AttentionOptions many{.q = {130, 1, 70},
                              .k = {250, 90, 70},
                              .heads_q = 4,
                              .heads_k = 2,
                              .packed_q = true,
                              .keys = Keys::packed,
                              .causal = true};
  const AttentionOptions split{
      .q = {1, 1}, .k = {9000, 4321}, .heads_q = 3, .head_dim = 32, .keys = Keys::paged, .sink = true};
  for (const AttentionOptions& options : {many, split}) {
    AttentionCall call(options);
    ASSERT_TRUE(call.run(1).ok());
    call.check();
    const auto o = call.o_memory(), lse = call.lse_memory();
    for (int threads : {2, 3, 16}) {
      ASSERT_TRUE(call.run(threads).ok());
      EXPECT_EQ(call.o_memory(), o) << threads;
      EXPECT_EQ(call.lse_memory(), lse) << threads;
    }
  }
}

TEST(CpuAttention, SplitKeysAgreeWithTheOracle) {
  run_and_check({.q = {3}, .k = {5000}, .heads_q = 2, .head_dim = 16, .head_dim_v = 32, .causal = true});
  run_and_check({.q = {300}, .k = {2500}, .head_dim = 8, .head_dim_v = 8, .causal = true, .sink = true});
  run_and_check({.q = {2}, .k = {9000}, .head_dim = 8, .head_dim_v = 8, .window_left = 5000, .window_right = 0});
  run_and_check(
      {.dtype = FLASHDELTA_FP16, .q = {2, 2}, .k = {4000, 3}, .head_dim = 8, .head_dim_v = 8, .gain = 2, .offset = 90});
}

TEST(CpuAttention, WorkspaceIsBoundedAtAnyLength) {
  AttentionProblem p;
  p.batch = 1;
  p.heads_q = 64;
  p.heads_k = 8;
  for (int64_t dim : {8, 128, 512}) {
    for (int64_t length : {int64_t{1}, int64_t{100}, int64_t{1} << 20, int64_t{1} << 40}) {
      for (int64_t queries : {int64_t{1}, length}) {
        for (int threads : {1, 2, 64, 4096}) {
          p.head_dim = p.head_dim_v = dim;
          p.dense_q = p.max_q = queries;
          p.dense_k = p.max_k = length;
          EXPECT_LE(cpu::attention_forward_workspace(p, threads), size_t{48} << 20);
        }
      }
    }
  }
}

TEST(CpuAttention, ProgressReachesItsTotalAndStops) {
  struct Calls {
    int64_t last = 0, total = -1, stop_at;
    int count = 0;
  };
  const auto callback = [](void* user, int64_t done, int64_t total) -> int32_t {
    auto* calls = static_cast<Calls*>(user);
    calls->count++;
    calls->last = done;
    calls->total = total;
    return done >= calls->stop_at ? 1 : 0;
  };
  AttentionCall call({.q = {400}, .k = {400}, .heads_q = 4, .heads_k = 4, .head_dim = 8, .head_dim_v = 8});
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  execution.progress = callback;
  Calls whole{.stop_at = std::numeric_limits<int64_t>::max()}, stopped{.stop_at = 3};
  execution.progress_user = &whole;
  ASSERT_TRUE(call.run(execution).ok());
  EXPECT_EQ(whole.last, whole.total);
  EXPECT_GT(whole.total, 3);
  execution.progress_user = &stopped;
  EXPECT_EQ(call.run(execution).code, FLASHDELTA_CANCELLED);
  EXPECT_EQ(stopped.count, 3);
}

TEST(CpuAttention, OneLongBlockCanBeStopped) {
  int looks = 0;
  AttentionCall call({.q = {1}, .k = {40000}, .head_dim = 8, .head_dim_v = 8});
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  execution.progress_user = &looks;
  execution.progress = [](void* user, int64_t, int64_t) -> int32_t { return ++*static_cast<int*>(user) >= 2 ? 1 : 0; };
  EXPECT_EQ(call.run(execution).code, FLASHDELTA_CANCELLED);
  EXPECT_EQ(looks, 2);
}

// ---- Strides ----

TEST(CpuAttention, BroadcastInputs) {
  AttentionCall call({.q = {30, 30}, .k = {30, 30}, .heads_q = 4, .heads_k = 4, .keys = Keys::cached, .causal = true});
  for (flashdelta_tensor* t : {&call.arguments().k, &call.arguments().v}) t->strides[2] = 0;  // one head serves all
  ASSERT_TRUE(call.run().ok());
  call.check();
}

// FA #2611, comfy-kitchen #178: offsets beyond 2^31 elements. The memory is reserved, not used.
TEST(CpuAttention, StridesBeyond32Bits) {
  const int64_t tokens = 3, dim = 8, stride = (int64_t{1} << 32) + 24;
  const auto bytes = static_cast<size_t>((tokens * stride) * 2);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
  auto* x = static_cast<uint16_t*>(memory);
  // q, k, v, o lie beside each other in each far-apart token row.
  const auto view = [&](int64_t offset) {
    flashdelta_tensor t{x + offset, FLASHDELTA_BF16, 4, {1, tokens, 1, dim}, {0, stride, 0, 1}};
    return t;
  };
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t c = 0; c < 3 * dim; c++) x[t * stride + c] = float_to_bf16(std::sin(static_cast<float>(t * 100 + c)));
  }
  flashdelta_attention_forward_args args{};
  args.struct_size = sizeof args;
  args.q = view(0);
  args.k = view(dim);
  args.v = view(2 * dim);
  args.o = view(3 * dim);
  args.scale = std::numeric_limits<double>::quiet_NaN();
  args.window_left = args.window_right = -1;
  AttentionProblem problem;
  ASSERT_TRUE(make_problem(args, &problem).ok());
  std::vector<char> workspace(cpu::attention_forward_workspace(problem, 1) + 64);
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  auto* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  ASSERT_TRUE(cpu::attention_forward(problem, execution, aligned).ok());
  for (int64_t t = 0; t < tokens; t++) {
    const auto expected = reference::attention_row(problem, 0, t, 0);
    for (int64_t c = 0; c < dim; c++) {
      EXPECT_NEAR(bf16_to_float(x[t * stride + 3 * dim + c]), expected.o[static_cast<size_t>(c)], 6e-3);
    }
  }
  munmap(memory, bytes);
}

}  // namespace
}  // namespace flashdelta::test
