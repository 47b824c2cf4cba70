// Each detector against a small kernel that deserves it and one that does not.
#include <array>

#include "emulator/harness.hpp"
#include "emulator/tensor_map.hpp"

namespace flashdelta::test {
namespace {

using emulator::Access;
using emulator::FindingKind;

class Detectors : public EmulatorTest {
 protected:
  // One block (or more) of `threads`, one output of 512 ints, under several schedules.
  template <class... T>
  void expect(const std::string& kernel, FindingKind kind, uint32_t threads, const T&... more) {
    for (uint32_t seed = 0; seed < 3; ++seed) {
      const Outcome r = run(kernel, threads, 1, seed, more...);
      EXPECT_TRUE(r.status.ok()) << r.status.message;
      if (kind == FindingKind::kCount) {
        EXPECT_TRUE(r.report.silent()) << kernel << "\n" << r.report.text();
      } else {
        EXPECT_TRUE(r.report.has(kind)) << kernel << ", seed " << seed << "\n" << r.report.text();
        for (const auto& f : r.report.findings) EXPECT_EQ(f.kind, kind) << f.text();
      }
    }
  }
  template <class... T>
  void expect_silent(const std::string& kernel, uint32_t threads, const T&... more) {
    expect(kernel, FindingKind::kCount, threads, more...);
  }
  template <class... T>
  Outcome run(const std::string& kernel, uint32_t threads, uint32_t blocks, uint32_t seed, const T&... more) {
    out.assign(512, -1);
    Launcher launcher("detectors", kernel);
    launcher.output(out).parameters(out.data(), more...);
    launcher.launch.block = {threads, 1, 1};
    launcher.launch.grid = {blocks, 1, 1};
    launcher.launch.dynamic_shared_bytes = dynamic;
    return launcher.run(seed);
  }
  // The same with an input before the output.
  template <class T, class... M>
  Outcome run_with_input(const std::string& kernel, uint32_t threads, uint32_t seed, std::vector<T>& in, Access access,
                         const M&... more) {
    out.assign(512, -1);
    Launcher launcher("detectors", kernel);
    launcher.buffer(in, access).output(out).parameters(in.data(), out.data(), more...);
    launcher.launch.block = {threads, 1, 1};
    launcher.launch.block_instruction_budget = 100000;
    return launcher.run(seed);
  }

  std::vector<int> out;
  uint32_t dynamic = 0;
};

TEST_F(Detectors, SharedRaces) {
  expect("race_between_warps", FindingKind::kSharedRaceBetweenWarps, 64);
  expect("race_within_warp", FindingKind::kSharedRaceWithinWarp, 32);
  expect("write_after_read_race", FindingKind::kSharedRaceBetweenWarps, 64);
  expect("small_elements_race", FindingKind::kSharedRaceBetweenWarps, 64);
  expect_silent("no_race", 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i ^ 1) + (i ^ 32));
  expect_silent("small_elements", 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 3 * (63 - i) + 1000 * (5 * (63 - i) & 255));
  expect_silent("shared_atomics", 96);
  EXPECT_EQ(out[5], 95 * 96 / 2);
}

TEST_F(Detectors, SharedBoundsAndAlignment) {
  dynamic = 256;
  expect_silent("shared_out_of_bounds", 64, 0);
  expect("shared_out_of_bounds", FindingKind::kSharedOutOfBounds, 64, 1);
  expect("shared_out_of_bounds", FindingKind::kSharedOutOfBounds, 64, -1);
  expect("shared_misaligned", FindingKind::kSharedMisaligned, 32, 2);
  expect_silent("shared_misaligned", 32, 4);
}

TEST_F(Detectors, GlobalBoundsAlignmentAndRights) {
  expect_silent("global_store_at", 32, 512LL - 32);
  expect("global_store_at", FindingKind::kGlobalOutOfBounds, 32, 512LL - 31);
  expect("global_store_at", FindingKind::kGlobalOutOfBounds, 32, -1LL);
  EXPECT_NE(
      run("global_store_at", 32, 1, 0, 600LL).report.text().find("352 bytes past the end of buffer 0 (2048 bytes)"),
      std::string::npos);
  expect("global_misaligned", FindingKind::kGlobalMisaligned, 32);
  std::vector<int> in(64, 3);
  EXPECT_TRUE(run_with_input("global_load_at", 32, 0, in, {}, 32LL).report.silent());
  EXPECT_TRUE(run_with_input("global_load_at", 32, 0, in, {}, 33LL).report.has(FindingKind::kGlobalOutOfBounds));
  EXPECT_TRUE(run_with_input("global_load_at", 32, 0, in, {.readable = false}, 0LL)
                  .report.has(FindingKind::kGlobalOutOfBounds));
  Launcher writes("detectors", "global_write_conflict");
  writes.buffer(in, {.writable = false}).parameters(in.data());
  EXPECT_TRUE(writes.run().report.has(FindingKind::kGlobalOutOfBounds));
  EXPECT_EQ(in[0], 3);
}

TEST_F(Detectors, BlocksThatWriteOneAddress) {
  EXPECT_TRUE(run("global_write_conflict", 32, 2, 1).report.has(FindingKind::kGlobalWriteConflict));
  EXPECT_TRUE(run("global_write_conflict", 32, 1, 1).report.silent());
  // Neighbouring 16-bit elements of one word belong to two blocks.
  EXPECT_TRUE(run("global_own_rows", 33, 8, 1).report.silent());
  std::vector<int> counts(32, 0);
  Launcher atomics("detectors", "global_atomics");
  atomics.buffer(counts).parameters(counts.data());
  atomics.launch.grid = {40, 1, 1};
  EXPECT_TRUE(atomics.run(1).report.silent());
  EXPECT_EQ(counts, std::vector<int>(32, 40));
}

TEST_F(Detectors, UndefinedValues) {
  expect("undefined_shared_to_output", FindingKind::kUndefinedShared, 64);
  expect_silent("undefined_but_unused", 64, 32);
  expect("undefined_but_unused", FindingKind::kUndefinedShared, 64, 33);
  expect("undefined_branch", FindingKind::kUndefinedShared, 32);
  expect("undefined_address", FindingKind::kUndefinedRegister, 32);
  expect_silent("undefined_through_mma", 32);
  expect("undefined_mma_column", FindingKind::kUndefinedRegister, 32);
  std::vector<int> in(128, 7);
  EXPECT_TRUE(
      run_with_input("undefined_global", 32, 0, in, {.initialised = false}).report.has(FindingKind::kUndefinedGlobal));
  EXPECT_TRUE(run_with_input("undefined_through_copy", 32, 0, in, {.initialised = false})
                  .report.has(FindingKind::kUndefinedGlobal));
  EXPECT_TRUE(run_with_input("undefined_through_copy", 32, 0, in, {}).report.silent());
}

// What one launch writes is defined for the next.
TEST_F(Detectors, WrittenMemoryStaysWritten) {
  std::vector<int> buffer(64), result(64);
  emulator::Memory memory;
  memory.add(buffer.data(), 256, "buffer", {.initialised = false});
  memory.add(result.data(), 256, "result");
  EXPECT_FALSE(memory.is_written(buffer.data(), 128));
  Launcher first("detectors", "global_write_conflict"), second("detectors", "undefined_global");
  first.parameters(buffer.data());
  second.parameters(buffer.data(), result.data());
  emulator::Report report;
  const emulator::Module& module = test_module("detectors");
  ASSERT_TRUE(module.launch(memory, first.launch, &report, nullptr).ok());
  ASSERT_TRUE(module.launch(memory, second.launch, &report, nullptr).ok());
  EXPECT_TRUE(report.silent()) << report.text();
  EXPECT_TRUE(memory.is_written(buffer.data(), 128));
  EXPECT_FALSE(memory.is_written(buffer.data(), 129));
  memory.mark_unwritten(buffer.data(), 4);
  ASSERT_TRUE(module.launch(memory, second.launch, &report, nullptr).ok());
  EXPECT_TRUE(report.has(FindingKind::kUndefinedGlobal));
}

TEST_F(Detectors, Barriers) {
  expect("named_barriers_deadlock", FindingKind::kDeadlock, 64);
  EXPECT_NE(run("named_barriers_deadlock", 64, 1, 0).report.text().find("warp 1 waits at barrier 2"),
            std::string::npos);
  expect_silent("named_barriers", 64);
  EXPECT_EQ(out[31], 36);
  expect("barrier_counts_differ", FindingKind::kBarrierMisuse, 96);
  expect("divergent_barrier", FindingKind::kDivergence, 32);
  expect_silent("barrier_reductions", 96);
  EXPECT_EQ(out[0], 32);
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[2], 1);
}

TEST_F(Detectors, Divergence) {
  expect("divergent_mma", FindingKind::kDivergence, 32);
  expect("shuffle_with_wrong_mask", FindingKind::kDivergence, 32);
  expect_silent("shuffle_with_right_mask", 32);
  EXPECT_EQ(out[3], 2);
  EXPECT_EQ(out[20], 20);
}

TEST_F(Detectors, AsyncCopies) {
  std::vector<int> in(256);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i);
  for (uint32_t seed = 0; seed < 3; ++seed) {
    auto has = [&](const char* kernel, uint32_t threads, FindingKind kind) {
      const Outcome r = run_with_input(kernel, threads, seed, in, {});
      EXPECT_TRUE(r.report.has(kind)) << kernel << "\n" << r.report.text();
    };
    has("copy_never_waited", 32, FindingKind::kAsyncCopyNeverWaited);
    has("copy_without_barrier", 64, FindingKind::kSharedRaceBetweenWarps);
    has("write_over_copy", 32, FindingKind::kWriteOverAsyncCopy);
  }
}

TEST_F(Detectors, BulkCopiesAndMbarriers) {
  std::vector<int> in(1024);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(run_with_input("bulk_copy", 64, seed, in, {}, 0).report.silent());
    EXPECT_EQ(out[255], 255 * 255);
    const emulator::Report early = run_with_input("bulk_copy", 64, seed, in, {}, 1).report;
    EXPECT_TRUE(early.has(FindingKind::kAsyncCopyNotWaited) || early.has(FindingKind::kSharedRaceBetweenWarps))
        << early.text();
    const emulator::Report wrong = run_with_input("bulk_copy", 64, seed, in, {}, 2).report;
    EXPECT_TRUE(wrong.has(FindingKind::kAsyncCopyNotWaited) || wrong.has(FindingKind::kSharedRaceBetweenWarps))
        << wrong.text();
    const emulator::Report stuck = run_with_input("bulk_copy", 64, seed, in, {}, 3).report;
    ASSERT_TRUE(stuck.has(FindingKind::kDeadlock)) << stuck.text();
    EXPECT_NE(stuck.text().find("0 arrivals and 1024 bytes missing"), std::string::npos) << stuck.text();
    EXPECT_TRUE(run_with_input("mbarrier_pipeline", 64, seed, in, {}).report.silent());
    int sum = 0;
    for (int t = 0; t < 8; ++t) {
      for (int i = 0; i < 4; ++i) sum += in[static_cast<size_t>(128 * t + 4 * 31 + i)];
    }
    EXPECT_EQ(out[31], sum);
    const Outcome waited = run("bulk_store_waited", 64, 1, seed, 1);
    EXPECT_TRUE(waited.report.silent()) << waited.report.text();
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(waited.counters[emulator::Counter::kBulkBytes], 1024u);
    EXPECT_FALSE(run("bulk_store_waited", 64, 1, seed, 0).report.silent());
  }
  expect("mbarrier_not_initialised", FindingKind::kMbarrierMisuse, 32);
}

TEST_F(Detectors, TensorCopies) {
  struct alignas(128) Map {
    emulator::TensorMap map;
  };
  constexpr int kFeatures = 72, kHeads = 3, kTokens = 40, kBatches = 2;
  std::vector<int16_t> in(size_t{kFeatures} * kHeads * kTokens * kBatches), box(size_t{32} * 64);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int16_t>(i + 1);
  Map map;
  map.map.data = reinterpret_cast<uintptr_t>(in.data());
  map.map.sizes = {kFeatures, kHeads, kTokens, kBatches};
  map.map.strides = {kFeatures * 2, kFeatures * kHeads * 2, kFeatures * kHeads * kTokens * 2};
  map.map.box = {64, 1, 32, 1};
  const auto run_box = [&](const Map& m, int x, int head, int token, int batch, int kind, uint32_t seed) {
    std::fill(box.begin(), box.end(), int16_t{-1});
    Launcher launcher("detectors", "tensor_box");
    launcher.buffer(in, {.readable = true, .writable = false, .initialised = true}).output(box);
    launcher.launch.block = {64, 1, 1};
    launcher.parameters(m, box.data(), x, head, token, batch, kind);
    const Outcome outcome = launcher.run(seed);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
    return outcome.report;
  };
  for (uint32_t seed = 0; seed < 4; ++seed) {
    // Outside the tensor, in features and in tokens, there are zeros.
    const std::array<std::array<int, 4>, 4> corners{{{0, 0, 0, 0}, {64, 2, 20, 1}, {72, 1, 0, 0}, {0, 1, -5, 1}}};
    for (const auto& [x, head, token, batch] : corners) {
      const emulator::Report report = run_box(map, x, head, token, batch, 0, seed);
      ASSERT_TRUE(report.silent()) << report.text();
      for (int i = 0; i < 32 * 64; ++i) {
        const int t = token + i / 64, f = x + i % 64;
        const int at = ((batch * kTokens + t) * kHeads + head) * kFeatures + f;
        const int expected = t >= 0 && t < kTokens && f < kFeatures ? in[static_cast<size_t>(at)] : 0;
        ASSERT_EQ(box[static_cast<size_t>(i)], expected)
            << x << " " << head << " " << token << " " << batch << ": " << i;
      }
    }
    const emulator::Report early = run_box(map, 0, 0, 0, 0, 1, seed);
    EXPECT_TRUE(early.has(FindingKind::kAsyncCopyNotWaited) || early.has(FindingKind::kSharedRaceBetweenWarps))
        << early.text();
    EXPECT_TRUE(run_box(map, 0, 0, 0, 0, 2, seed).has(FindingKind::kGlobalOutOfBounds));
  }
  Map outside = map;
  outside.map.sizes[3] = 3;  // more than there is
  EXPECT_TRUE(run_box(outside, 0, 0, 0, 2, 0, 0).has(FindingKind::kGlobalOutOfBounds));
  Map none = map;
  none.map.strides[0] = 8;
  EXPECT_TRUE(run_box(none, 0, 0, 0, 0, 0, 0).has(FindingKind::kGlobalOutOfBounds));
}

TEST_F(Detectors, TrapsAndEndlessLoops) {
  std::vector<int> flags(32, 0);
  Launcher traps("detectors", "traps"), endless("detectors", "never_ends");
  traps.buffer(flags).parameters(flags.data());
  EXPECT_TRUE(traps.run().report.silent());
  flags[7] = 3;
  const Outcome r = traps.run();
  ASSERT_TRUE(r.report.has(FindingKind::kTrap));
  EXPECT_EQ(r.report.findings[0].lane, 7);
  std::fill(flags.begin(), flags.end(), 0);
  endless.buffer(flags).parameters(flags.data());
  endless.launch.block_instruction_budget = 10000;
  EXPECT_TRUE(endless.run().report.has(FindingKind::kNoProgress));
}

// Each schedule starts from the same memory, and blocks may be in any order.
TEST_F(Detectors, SchedulesStartFromTheSameMemory) {
  std::vector<int> counts(32, 5);
  Launcher atomics("detectors", "global_atomics");
  atomics.buffer(counts).parameters(counts.data());
  atomics.launch.grid = {40, 1, 1};
  atomics.launch.schedules = 3;
  const Outcome r = atomics.run(1);
  EXPECT_TRUE(r.report.silent()) << r.report.text();
  EXPECT_EQ(counts, std::vector<int>(32, 45));
  EXPECT_EQ(r.counters[emulator::Counter::kAtomic], 40u);  // of the first schedule
}

TEST_F(Detectors, LimitsOfTheProfile) {
  auto refused = [&](auto change, FindingKind kind) {
    std::vector<int> buffer(4096);
    Launcher launcher("detectors", "global_write_conflict");
    launcher.buffer(buffer).parameters(buffer.data());
    change(&launcher.launch);
    const Outcome r = launcher.run();
    EXPECT_EQ(r.status.code, FLASHDELTA_NOT_SUPPORTED);
    EXPECT_TRUE(r.report.has(kind)) << r.report.text();
    EXPECT_EQ(buffer, std::vector<int>(4096)) << "nothing may have run";
  };
  refused([](emulator::Launch* l) { l->dynamic_shared_bytes = 101377; }, FindingKind::kOverSharedLimit);
  refused([](emulator::Launch* l) { l->block = {1025, 1, 1}; }, FindingKind::kOverThreadLimit);
  refused([](emulator::Launch* l) { l->registers_per_thread = 256; }, FindingKind::kOverRegisterLimit);
  refused(
      [](emulator::Launch* l) {
        l->registers_per_thread = 128;
        l->block = {1024, 1, 1};
      },
      FindingKind::kOverRegisterLimit);
}

}  // namespace
}  // namespace flashdelta::test
