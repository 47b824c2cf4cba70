// Inputs that have broken public implementations of the gated delta rule, in small form; each against the float64
// recurrence. A name in brackets is the report that a case comes from.
#include <sys/mman.h>

#include "cpu_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

// fp32 in and out, so that errors of the arithmetic are seen and not the rounding of what is stored.
Options exact_options(std::vector<int64_t> lengths) {
  Options x;
  x.dtype = x.o_dtype = FLASHDELTA_FP32;
  x.lengths = std::move(lengths);
  return x;
}

// Every chunk size; change(call) sets what the case is about.
template <class F>
void expect_right_in_all_chunks(Options x, F change, double factor = 1) {
  for (int chunk : {32, 64}) {
    x.chunk = chunk;
    Call call(x);
    change(call);
    expect_right(call, 2, factor);
  }
}

// Keys all the same: `direction` of unit length, times length.
void repeat_keys(Call& call, double length) {
  const int64_t dim = call.options.dim_k;
  call.k.refill([&](int64_t i) { return length * (i % dim % 3 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(dim)); });
}

// [MoonshotAI/FlashKDA #34, vllm-project/FlashKDA #10]
TEST(CpuGatedDeltaNumerics, RepeatedKeysWithBetaOneAndTwo) {
  for (double beta : {1.0, 2.0}) {
    for (double gate : {0.0, -0.01, -30.0}) {
      const auto change = [&](Call& call) {
        repeat_keys(call, 1);
        call.g.refill([&](int64_t) { return gate; });
        call.beta.refill([&](int64_t) { return beta; });
      };
      // With beta = 2 each token flips the state along the key: roundings add up, in an order that differs
      // between processors.
      expect_right_in_all_chunks(exact_options({200}), change, beta == 2 ? 2 : 1);
    }
  }
}

// Without its gates the inverse of such a chunk has entries up to 5e16, and float64 answers are 35% wrong.
TEST(CpuGatedDeltaNumerics, LongKeysUnderStrongDecay) {
  for (double length : {2.0, 11.0, 100.0}) {
    for (bool correlated : {false, true}) {
      Options x = exact_options({128});
      x.dim_k = 128;
      expect_right_in_all_chunks(x, [&](Call& call) {
        if (correlated) repeat_keys(call, 1);
        call.k.refill([&](int64_t i) {
          const double noise = Random(5, "k").normal(i);
          return length * (correlated ? call.k.get(i) * (1 + 0.1 * noise) : noise / std::sqrt(128.0));
        });
        call.g.refill([&](int64_t) { return -2 * std::log(length) - 3.2; });
        call.beta.refill([](int64_t) { return 0.5; });
      });
    }
  }
}

// [NVIDIA/cudnn-frontend #1051]
TEST(CpuGatedDeltaNumerics, CorrelatedKeysOverManyTokens) {
  Options x = exact_options({8192});
  x.dim_k = x.dim_v = 32;
  Call call(x);
  repeat_keys(call, 0.9);
  call.k.refill([&](int64_t i) { return call.k.get(i) + 0.02 * Random(5, "k").normal(i); });
  call.g.refill([](int64_t i) { return -0.012 - 0.022 * Random(5, "g").uniform(i); });
  call.beta.refill([](int64_t) { return 1; });
  expect_right(call);
}

// [fla-org/flash-linear-attention #104]
TEST(CpuGatedDeltaNumerics, NoDecay) {
  Options x = exact_options({500});
  x.dim_k = x.dim_v = 64;
  expect_right_in_all_chunks(x, [](Call& call) { call.g.refill([](int64_t) { return 0; }); });
}

// [QwenLM/FlashQLA #28]
TEST(CpuGatedDeltaNumerics, DecayRatesUpToSixteen) {
  Options x = exact_options({300});
  x.group = 6;
  x.raw_gate = true;
  expect_right_in_all_chunks(x, [](Call& call) {
    call.A_log.refill([](int64_t h) { return std::log(16.0) * static_cast<double>(h) / 5; });
    call.dt_bias.refill([](int64_t h) { return h % 2 ? 1 : -3; });
  });
}

TEST(CpuGatedDeltaNumerics, MinusInfinityResets) {
  const Options x = exact_options({100, 3});
  for (int64_t period : {1, 2, 23, 64, 1000}) {
    expect_right_in_all_chunks(x, [&](Call& call) {
      call.g.refill([&](int64_t i) { return i / 2 % period == period / 2 ? -INFINITY : -0.1; });
    });
  }
}

// Nothing of an old state is left, however large; nor of old tokens in the same chunk.
TEST(CpuGatedDeltaNumerics, AResetLeavesNothingOfTheOldState) {
  Options x = exact_options({40});
  x.group = 1;
  expect_right_in_all_chunks(x, [](Call& call) {
    call.initial.refill([](int64_t) { return 1e36; });
    call.v.refill([&](int64_t i) { return call.v.get(i) * (i / call.options.dim_v < 20 ? 1e36 : 1e-5); });
    call.g.refill([](int64_t t) { return t == 0 || t == 20 ? -INFINITY : -1e-3; });
    call.q.refill([&](int64_t i) { return i / call.options.dim_k < 20 ? 0 : call.q.get(i); });
  });
}

// Small gates beside resets: a float32 sum of gates would have lost them.
TEST(CpuGatedDeltaNumerics, SmallGatesAfterManyResets) {
  const Options x = exact_options({64});
  expect_right_in_all_chunks(x,
                             [](Call& call) { call.g.refill([](int64_t i) { return i / 2 < 40 ? -99 : -0.0123; }); });
}

TEST(CpuGatedDeltaNumerics, GatesThatGrow) {
  const Options x = exact_options({70});
  expect_right_in_all_chunks(x, [](Call& call) { call.g.refill([](int64_t i) { return i % 7 == 0 ? 2 : -0.3; }); });
}

// [cuLA #38, gittensor-ai-lab/sparkinfer #604, flashinfer #4311]: the decay at the end is that of the last token.
TEST(CpuGatedDeltaNumerics, EndsInsideAChunk) {
  for (int64_t length : {57, 59, 61, 63, 500, 1000}) {
    expect_right_in_all_chunks(exact_options({length}),
                               [](Call& call) { call.g.refill([](int64_t i) { return i % 5 ? -1.5 : -0.01; }); });
  }
}

TEST(CpuGatedDeltaNumerics, ZeroKeysValuesAndStates) {
  const Options x = exact_options({70});
  expect_right_in_all_chunks(x, [](Call& call) { call.k.refill([](int64_t) { return 0; }); });
  expect_right_in_all_chunks(x, [](Call& call) {
    for (Buffer* buffer : {&call.k, &call.q, &call.v, &call.initial}) buffer->refill([](int64_t) { return 0; });
  });
}

TEST(CpuGatedDeltaNumerics, NormOfZeroTinyAndHugeRows) {
  Options x = exact_options({90});
  x.l2norm = true;
  for (double size : {0.0, 1e-25, 1e-5, 1.0, 1e25}) {  // [llama.cpp #28068]
    expect_right_in_all_chunks(x, [&](Call& call) {
      call.k.refill([&](int64_t i) { return i / call.options.dim_k % 3 == 1 ? size * call.k.get(i) : call.k.get(i); });
      call.q.refill([&](int64_t i) { return i / call.options.dim_k % 3 == 2 ? size * call.q.get(i) : call.q.get(i); });
    });
  }
}

// [flashinfer #5255]
TEST(CpuGatedDeltaNumerics, NormInsideIsTheNormOutside) {
  Options x = exact_options({90});
  x.l2norm = true;
  Call inside(x);
  x.l2norm = false;
  Call outside(x);
  for (const auto& [from, to] : {std::pair{&inside.q, &outside.q}, {&inside.k, &outside.k}}) {
    for (int64_t row = 0; row < 90; row++) {
      double squares = 1e-6;
      for (int64_t c = 0; c < x.dim_k; c++) squares += std::pow(from->get(row * x.dim_k + c), 2);
      for (int64_t c = 0; c < x.dim_k; c++) {
        to->set(row * x.dim_k + c, from->get(row * x.dim_k + c) / std::sqrt(squares));
      }
    }
  }
  ASSERT_TRUE(inside.run().ok());
  ASSERT_TRUE(outside.run().ok());
  Error error;
  for (int64_t i = 0; i < 90 * x.heads_v() * x.dim_v; i++) error.add(inside.o.get(i), outside.o.get(i));
  EXPECT_LE(error.relative(), 1e-6);
}

// softplus of large numbers of both signs, rates whose exponential is large: a decay of 1 or a reset, never a NaN.
TEST(CpuGatedDeltaNumerics, RawGatesFarOut) {
  Options x = exact_options({100});
  x.raw_gate = x.raw_beta = true;
  x.beta_scale = 2;
  expect_right_in_all_chunks(x, [](Call& call) {
    const double far[] = {-1e4, -90, -20, 0, 20, 90, 1e4, -INFINITY};
    call.a.refill([&](int64_t i) { return far[i / 2 % 8]; });
    call.b.refill([&](int64_t i) { return far[i / 2 % 7]; });
    call.A_log.refill([](int64_t h) { return h ? 80 : -5; });
  });
}

// [sglang #38975]: beta is never rounded to bf16.
TEST(CpuGatedDeltaNumerics, RawBetaInBf16StaysFp32Inside) {
  Options x = exact_options({100});
  x.dtype = x.gate_dtype = FLASHDELTA_BF16;
  x.raw_gate = x.raw_beta = true;
  expect_right(x);
}

// [vllm #54308]: beyond fp16's range an fp32 output still holds the answer, and an fp16 one is infinite.
TEST(CpuGatedDeltaNumerics, OutputsBeyondFp16) {
  Options x;
  x.dtype = FLASHDELTA_FP16;
  x.o_dtype = FLASHDELTA_FP32;
  x.scale = 1e6;
  expect_right(x);
  x.o_dtype = FLASHDELTA_FP16;
  Call call(x);
  ASSERT_TRUE(call.run().ok());
  bool infinite = false;
  for (int64_t i = 0; i < 70 * x.heads_v() * x.dim_v; i++) {
    ASSERT_FALSE(std::isnan(call.o.get(i)));
    infinite = infinite || std::isinf(call.o.get(i));
  }
  EXPECT_TRUE(infinite);
}

// [flashserve and mlx-serve #415]: a bf16 state is rounded when it is stored, not from chunk to chunk.
TEST(CpuGatedDeltaNumerics, ABf16StateOverManyTokens) {
  Options x;
  x.lengths = {6000};
  x.state_dtype = FLASHDELTA_BF16;
  x.value_major = true;
  Call call(x);
  call.g.refill([](int64_t) { return 0; });
  expect_right(call);
}

// [flashinfer #3565, #3698]
TEST(CpuGatedDeltaNumerics, FortyEightHeadsOverSevenUnequalSequences) {
  Options x;
  x.lengths = {1238, 1199, 1240, 1216, 1187, 1203, 519};
  x.heads_k = 16, x.group = 3, x.dim_k = x.dim_v = 8;
  expect_right(x);
}

// [fla-org/flash-linear-attention #1077, #1096, #1239]
TEST(CpuGatedDeltaNumerics, MoreThan65535SequencesTimesHeads) {
  Options x;
  x.lengths.assign(2050, 1);
  x.heads_k = 8, x.group = 4, x.dim_k = x.dim_v = 8;
  x.gap = 0;
  expect_right(x);
}

// [flashinfer #3230]: the slot's offset is beyond 2^31 elements. The pool is address space; one slot of it is memory.
TEST(CpuGatedDeltaNumerics, AFarSlotOfAPool) {
  Options x;
  Call call(x);
  const Answers answers = expected_answers(call);
  const int64_t each = x.heads_v() * x.dim_k * x.dim_v;
  const int64_t slot = 70000, slot_stride = 32 * 128 * 128;
  const size_t bytes = static_cast<size_t>((slot + 1) * slot_stride) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes";
  float* state = static_cast<float*>(memory) + slot * slot_stride;
  for (int64_t i = 0; i < each; i++) {
    state[i / each * slot_stride + i] = static_cast<float>(call.initial.get(i));
  }
  GatedDeltaProblem p = answers.problem;
  p.initial = {static_cast<char*>(memory), FLASHDELTA_FP32, slot + 1, slot_stride, x.dim_k * x.dim_v, x.dim_v};
  p.final = p.initial;
  const int32_t index = static_cast<int32_t>(slot);
  p.initial_indices = {&index, FLASHDELTA_INT32, 0};
  std::vector<std::max_align_t> workspace(cpu::gated_delta_forward_workspace(p, 1) / sizeof(std::max_align_t) + 8);
  auto* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.num_threads = 1;
  ASSERT_TRUE(cpu::gated_delta_forward(p, execution, aligned).ok());
  expect_outputs(call, answers, 1);
  Error error;
  for (int64_t i = 0; i < each; i++) {
    const int64_t in_head = i % (x.dim_k * x.dim_v);
    error.add(state[i],
              answers.heads[static_cast<size_t>(i / (x.dim_k * x.dim_v))].state[static_cast<size_t>(in_head)]);
  }
  EXPECT_LE(error.relative(), tolerance(FLASHDELTA_FP32));
  munmap(memory, bytes);
}

}  // namespace
}  // namespace flashdelta::test
