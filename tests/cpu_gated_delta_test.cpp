// The CPU's gated delta rule against the float64 recurrence, and against itself where the bits must agree.
#include <hwy/highway.h>
#include <rapidcheck.h>

#include <thread>

#include "cpu/simd.hpp"
#include "cpu_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

TEST(CpuGatedDelta, Plain) { expect_right(Options{}); }

TEST(CpuGatedDelta, HeadSizesAndGroups) {
  const struct {
    int64_t heads_k, group, dim_k, dim_v;
  } shapes[] = {{1, 1, 8, 8}, {2, 3, 128, 128}, {1, 5, 24, 200}, {3, 1, 256, 8}, {1, 2, 256, 256}, {1, 7, 72, 40}};
  for (const auto& shape : shapes) {
    Options x;
    x.heads_k = shape.heads_k, x.group = shape.group, x.dim_k = shape.dim_k, x.dim_v = shape.dim_v;
    x.lengths = {37, 1, 64};
    x.dtype = x.o_dtype = FLASHDELTA_FP32;
    expect_right(x);
    x.value_major = true;
    expect_right(x, 1);
  }
}

TEST(CpuGatedDelta, RandomCalls) {
  const bool passed = rc::check("a call answers as the recurrence does", [] {
    Options x;
    const auto yes = [] { return *rc::gen::arbitrary<bool>(); };
    x.seed = *rc::gen::inRange<uint64_t>(0, 1 << 30);
    x.dtype = *rc::gen::element(FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32);
    x.o_dtype = yes() ? x.dtype : FLASHDELTA_FP32;
    x.gate_dtype = yes() ? x.dtype : FLASHDELTA_FP32;
    x.state_dtype = yes() ? FLASHDELTA_BF16 : FLASHDELTA_FP32;
    x.heads_k = *rc::gen::inRange(1, 3);
    x.group = *rc::gen::inRange(1, 5);
    x.dim_k = 8 * *rc::gen::inRange(1, 9);
    x.dim_v = 8 * *rc::gen::inRange(1, 9);
    x.packed = yes();
    x.lengths.clear();
    const int n = *rc::gen::inRange(1, 5);
    for (int i = 0; i < n; i++) {
      x.lengths.push_back(x.packed || i == 0 ? *rc::gen::element(0, 1, 2, 7, 31, 32, 33, 64, 65, 130) : x.lengths[0]);
    }
    x.raw_gate = yes(), x.raw_beta = yes(), x.l2norm = yes(), x.value_major = yes();
    x.beta_scale = x.raw_beta && yes() ? 2 : 1;
    x.scale = yes() ? NAN : 0.7;
    x.initial = yes(), x.final = yes();
    x.in_place = x.initial && x.final && yes();
    x.token_states = x.final && *rc::gen::inRange(0, 4) == 0;
    x.accepted = x.token_states && x.initial && yes();
    x.initial_pool = x.initial && yes();
    x.final_pool = x.final && (yes() || (x.initial_pool && !x.in_place && yes()));
    if (x.in_place && !x.token_states) x.final_pool = x.initial_pool;
    if (!x.token_states && x.initial && !x.initial_pool) x.final_pool = false;
    if (x.initial_pool || x.final_pool) x.skipped = {*rc::gen::inRange<int64_t>(0, n)};
    x.checkpoint_every = x.token_states ? 0 : *rc::gen::element(0, 0, 64, 128);
    x.chunk = *rc::gen::element(0, 32, 64);
    x.gap = *rc::gen::element(0, 1, 8);
    x.head_major = yes();
    expect_right(x, *rc::gen::inRange(1, 4));
    RC_ASSERT(!::testing::Test::HasFailure());
  });
  EXPECT_TRUE(passed);
}

TEST(CpuGatedDelta, EmptySequencesAnywhere) {
  for (bool value_major : {false, true}) {
    Options x;
    x.lengths = {0, 40, 0, 0, 100, 0};
    x.value_major = value_major;
    x.state_dtype = FLASHDELTA_BF16;
    expect_right(x);
    x.initial = false;
    expect_right(x);
    x.lengths = {0};
    expect_right(x);
    x.lengths = {};
    expect_right(x);
  }
}

TEST(CpuGatedDelta, AnEmptySequencesFinalStateIsItsInitialStateToTheBit) {
  Options x;
  x.lengths = {0, 3};
  x.state_dtype = FLASHDELTA_FP32;
  Call call(x);
  ASSERT_TRUE(call.run().ok());
  for (int64_t i = 0; i < call.final.size() / 2; i++) ASSERT_EQ(call.final.get(i), call.initial.get(i));
}

TEST(CpuGatedDelta, NegativeIndicesSkip) {
  Options x;
  x.lengths = {40, 3, 70, 0, 9};
  x.initial_pool = true;
  x.skipped = {0, 3, 4};
  for (bool in_place : {false, true}) {
    x.in_place = in_place;
    expect_right(x);
  }
}

TEST(CpuGatedDelta, StatesAfterEachToken) {
  Options x;
  x.token_states = true;
  x.lengths = {4, 1, 8, 3};
  for (bool accepted : {false, true}) {
    for (bool in_place : {false, true}) {
      for (bool value_major : {false, true}) {
        x.accepted = accepted, x.in_place = in_place, x.value_major = value_major;
        expect_right(x);
      }
    }
  }
}

TEST(CpuGatedDelta, ContextParallelModesAreOne) {
  Options x;
  x.lengths = {200};
  Call off(x);
  x.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
  Call decay_start(x);
  expect_right(off);
  ASSERT_TRUE(decay_start.run().ok());
  expect_same_bits(off, decay_start);
}

TEST(CpuGatedDelta, ABroadcastHeadMayHaveStrideZero) {
  Options x;
  x.group = 3;
  Call call(x);
  Call plain(x);
  for (int64_t i = 0; i < call.v.size(); i++) plain.v.set(i, call.v.get(i / x.dim_v / 3 * 3 * x.dim_v + i % x.dim_v));
  ASSERT_TRUE(plain.run().ok());
  GatedDeltaProblem p;
  ASSERT_TRUE(call.bind(&p).ok());
  p.v.head_stride = 0;
  std::vector<uint8_t> workspace(cpu::gated_delta_forward_workspace(p, 1) + 64);
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  uint8_t* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
  ASSERT_TRUE(cpu::gated_delta_forward(p, execution, aligned).ok());
  EXPECT_EQ(call.o.bytes(), plain.o.bytes());
}

// ---- Bits ----

Options mixed_options() {
  Options x;
  x.lengths = {130, 0, 1, 64, 300, 33};
  x.heads_k = 2, x.group = 3, x.dim_k = 24, x.dim_v = 136;
  x.raw_gate = x.raw_beta = x.l2norm = true;
  x.checkpoint_every = 64;
  return x;
}

TEST(CpuGatedDelta, BitsDoNotDependOnThreads) {
  Call one(mixed_options());
  ASSERT_TRUE(one.run({1}).ok());
  for (int threads : {2, 3, 7, 64}) {
    Call many(mixed_options());
    ASSERT_TRUE(many.run({threads}).ok());
    expect_same_bits(one, many);
  }
}

// A single head on many threads is cut into columns of V: here 5 tasks of 40 to 32 columns.
TEST(CpuGatedDelta, BitsDoNotDependOnTheCutOfColumns) {
  Options x;
  x.lengths = {150};
  x.group = 1, x.dim_k = 40, x.dim_v = 200;
  x.dtype = x.o_dtype = FLASHDELTA_FP32;
  for (bool value_major : {false, true}) {
    x.value_major = value_major;
    Call whole(x), cut(x);
    ASSERT_TRUE(whole.run({1}).ok());
    expect_right(cut, 8);
    expect_same_bits(whole, cut);
  }
}

TEST(CpuGatedDelta, CallsAtTheSameTimeDoNotMeet) {
  Call alone(mixed_options());
  ASSERT_TRUE(alone.run({2}).ok());
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; i++) calls.push_back(std::make_unique<Call>(mixed_options()));
  std::vector<std::thread> threads;
  for (auto& call : calls) threads.emplace_back([&call] { (void)call->run({2}); });
  for (auto& thread : threads) thread.join();
  for (auto& call : calls) expect_same_bits(alone, *call);
}

// The state at a checkpoint is what a call that ends there returns.
TEST(CpuGatedDelta, CheckpointsAreTheStatesOfTruncatedCalls) {
  for (int chunk : {0, 32, 64}) {
    Options x;
    x.lengths = {290};
    x.chunk = chunk;
    x.checkpoint_every = 64;
    Call whole(x);
    ASSERT_TRUE(whole.run({2}).ok());
    const int64_t each = x.heads_v() * x.dim_k * x.dim_v;
    for (int64_t row = 0; row < 4; row++) {
      Options part = x;
      part.lengths = {64 * (row + 1)};
      part.checkpoint_every = 0;
      Call truncated(part);
      ASSERT_TRUE(truncated.run({2}).ok());
      for (int64_t i = 0; i < each; i++) ASSERT_EQ(whole.checkpoints.get(row * each + i), truncated.final.get(i));
    }
  }
}

// Runs the first `first` tokens of `whole`, then the rest from the state that came out.
void run_in_two(Call& whole, int64_t first, Call* second) {
  Options x = whole.options;
  const int64_t total = x.lengths[0];
  x.lengths = {first};
  x.tokens_after = 0;
  Call begin(x);  // a seed gives the same numbers from the first token on, whatever the length
  ASSERT_TRUE(begin.run().ok());
  x.lengths = {total - first};
  *second = Call(x);
  const auto move = [&](Buffer& to, const Buffer& from) {
    const int64_t offset = first * (to.size() / std::max<int64_t>(to.view().shape[1], 1));
    to.fill([&](int64_t i) { return from.get(offset + i); });
  };
  move(second->q, whole.q), move(second->k, whole.k), move(second->v, whole.v);
  move(second->g, whole.g), move(second->beta, whole.beta);
  second->initial.fill([&](int64_t i) { return begin.final.get(i); });
  ASSERT_TRUE(second->run().ok());
}

TEST(CpuGatedDelta, TwoCallsWithTheStateHandedOverAreOne) {
  Options x;
  x.lengths = {190};
  x.dtype = x.o_dtype = FLASHDELTA_FP32;
  Call whole(x);
  ASSERT_TRUE(whole.run().ok());
  for (int64_t first : {1, 50, 64, 128, 189}) {
    Call second(x);
    run_in_two(whole, first, &second);
    Error error;
    for (int64_t i = 0; i < whole.final.size(); i++) {
      error.add(second.final.get(i), whole.final.get(i));
      if (first % 64 != 0) continue;
      ASSERT_EQ(second.final.get(i), whole.final.get(i)) << "split at a chunk's end";
    }
    EXPECT_LE(error.relative(), 1e-6);
  }
}

TEST(CpuGatedDelta, CausalAndApart) {
  Options x;
  x.lengths = {40, 90, 20};
  x.heads_k = 2;
  Call clean(x), dirty(x);
  ASSERT_TRUE(clean.run().ok());
  const int64_t token = 40 + 50, head = 1;  // sequence 1, key head 1: value heads 2 and 3
  for (int64_t c = 0; c < x.dim_k; c++) dirty.k.set((token * x.heads_k + head) * x.dim_k + c, NAN);
  ASSERT_TRUE(dirty.run().ok());
  for (int64_t i = 0; i < 150 * x.heads_v() * x.dim_v; i++) {
    const int64_t t = i / x.dim_v / x.heads_v(), h = i / x.dim_v % x.heads_v();
    const bool reached = h / x.group == head && t >= token && t < 130;
    ASSERT_EQ(std::isnan(dirty.o.get(i)), reached) << "token " << t << ", head " << h;
    ASSERT_TRUE(reached || dirty.o.get(i) == clean.o.get(i)) << "token " << t << ", head " << h;
  }
}

// ---- Workspace, progress ----

TEST(CpuGatedDelta, WorkspaceIsBoundedAndOfOneSizeAtAnyLength) {
  for (int64_t dim : {8, 128, 256}) {
    for (int threads : {1, 2, 64, 1024}) {
      GatedDeltaProblem p;
      p.sequences = 3;
      p.heads_k = 16, p.heads_v = 48, p.dim_k = p.dim_v = dim;
      p.tokens = p.max_tokens = 1 << 10;
      const size_t bytes = cpu::gated_delta_forward_workspace(p, threads);
      EXPECT_LE(bytes, size_t{48} << 20);
      p.tokens = p.max_tokens = int64_t{1} << 40;
      EXPECT_EQ(cpu::gated_delta_forward_workspace(p, threads), bytes);
      p.sequences = int64_t{1} << 40;
      EXPECT_LE(cpu::gated_delta_forward_workspace(p, threads), size_t{48} << 20);
    }
  }
}

struct Watch {
  std::vector<int64_t> done;
  int64_t total = 0, stop_after = 1 << 20;

  static int32_t on_progress(void* user, int64_t done, int64_t total) {
    auto* watch = static_cast<Watch*>(user);
    watch->done.push_back(done);
    watch->total = total;
    return static_cast<int64_t>(watch->done.size()) >= watch->stop_after;
  }
};

TEST(CpuGatedDelta, ProgressRisesToTheTotal) {
  Options x;
  x.lengths = {2000, 0, 1500};
  x.group = 6, x.dim_v = 32;
  Call call(x);
  Watch watch;
  ASSERT_TRUE(call.run({1, Watch::on_progress, &watch}).ok());
  ASSERT_GE(watch.done.size(), 3u);
  EXPECT_TRUE(std::is_sorted(watch.done.begin(), watch.done.end()));
  EXPECT_EQ(watch.done.back(), watch.total);
}

Options long_options() {
  Options x;
  x.lengths = {6000};
  x.group = 6, x.dim_v = 32;
  return x;
}

TEST(CpuGatedDelta, ACallbackStopsTheCall) {
  Call call(long_options());
  Watch watch;
  watch.stop_after = 1;
  EXPECT_EQ(call.run({1, Watch::on_progress, &watch}).code, FLASHDELTA_CANCELLED);
  EXPECT_EQ(watch.done.size(), 1u);
  EXPECT_LE(watch.done.back(), watch.total / 2);
}

// The calling thread alone asks; where the others left it nothing to do, it had nothing to stop.
TEST(CpuGatedDelta, ACallbackStopsAllThreads) {
  Call call(long_options());
  Watch watch;
  watch.stop_after = 1;
  const Status status = call.run({3, Watch::on_progress, &watch});
  EXPECT_EQ(status.code, watch.done.empty() ? FLASHDELTA_OK : FLASHDELTA_CANCELLED) << status.message;
}

// Every instruction set that this machine can run, not only its best.
TEST(CpuGatedDelta, AllInstructionSets) {
  for (int64_t target : {HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) == 0) continue;
    hwy::GetChosenTarget().Update(target);
    EXPECT_STREQ(cpu::simd_target(), hwy::TargetName(target));
    expect_right(mixed_options());
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace flashdelta::test
