// One mistake in an attention kernel at a time: each is caught by its detector, or by the numbers where nothing but the
// numbers is wrong; the correct kernel is silent under every schedule.
#include <cmath>
#include <random>

#include "core/numeric.hpp"
#include "emulator/harness.hpp"
#include "emulator/planted_bugs.h"

namespace flashdelta::test {
namespace {

using emulator::Counter;
using emulator::FindingKind;

struct Shape {
  int seqlen_q, seqlen_k, causal;
};

struct Attended {
  Outcome run;
  double o_error = 0;    // relative L2
  double lse_error = 0;  // largest
};

std::vector<uint16_t> random_rows(int rows, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(static_cast<size_t>(rows) * 64);
  for (uint16_t& v : x) v = float_to_bf16(normal(generator));
  return x;
}

double at(const std::vector<uint16_t>& x, int row, int column) {
  return bf16_to_float(x[static_cast<size_t>(row) * 64 + static_cast<size_t>(column)]);
}

Attended attend(const char* bug, Shape shape, uint32_t seed, bool detect = true) {
  const int rows = shape.seqlen_q, keys = shape.seqlen_k;
  std::vector<uint16_t> q = random_rows(rows, 1), k = random_rows(keys, 2), v = random_rows(keys, 3);
  std::vector<uint16_t> o(q.size(), 0x7fff);
  std::vector<float> lse(static_cast<size_t>(rows), NAN);
  Launcher launcher("planted_bugs", std::string("planted_") + bug);
  launcher.buffer(q, {.writable = false}).buffer(k, {.writable = false}).buffer(v, {.writable = false});
  launcher.output(o).output(lse);
  const auto scale = 0.125;
  launcher.parameters(PlantedParams{q.data(), k.data(), v.data(), o.data(), lse.data(), rows, keys, shape.causal,
                                    static_cast<float>(scale * 1.4426950408889634)});
  launcher.launch.grid = {static_cast<uint32_t>(rows + 63) / 64, 1, 1};
  launcher.launch.block = {128, 1, 1};
  launcher.launch.dynamic_shared_bytes = 5 * 8192;
  launcher.launch.detect = detect;
  Attended outcome{launcher.run(seed)};
  EXPECT_TRUE(outcome.run.status.ok()) << outcome.run.status.message;
  double difference = 0, norm = 0;
  for (int i = 0; i < rows; ++i) {
    const int end = shape.causal != 0 ? std::min(keys, i + keys - rows + 1) : keys;
    std::vector<double> p(static_cast<size_t>(end));
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < end; ++j) {
      double s = 0;
      for (int d = 0; d < 64; ++d) s += at(q, i, d) * at(k, j, d);
      top = std::max(top, p[static_cast<size_t>(j)] = s * scale);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (int d = 0; d < 64; ++d) {
      double expected = 0;
      for (int j = 0; j < end; ++j) expected += p[static_cast<size_t>(j)] / sum * at(v, j, d);
      difference += std::pow(expected - at(o, i, d), 2);
      norm += expected * expected;
    }
    const double error = std::fabs(top + std::log(sum) - lse[static_cast<size_t>(i)]);
    outcome.lse_error = std::max(outcome.lse_error, error == error ? error : INFINITY);
  }
  outcome.o_error = std::sqrt(difference / norm);
  return outcome;
}

bool numbers_right(const Attended& x) { return x.o_error < 6e-3 && x.lse_error < 1e-4; }

class PlantedBugs : public EmulatorTest {};

TEST_F(PlantedBugs, TheCorrectKernelIsSilentAndRight) {
  for (Shape shape : {Shape{64, 64, 0}, {150, 150, 0}, {77, 191, 1}, {1, 65, 0}, {130, 257, 1}}) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      const Attended x = attend("kNone", shape, seed);
      EXPECT_TRUE(x.run.report.silent()) << x.run.report.text();
      EXPECT_TRUE(numbers_right(x)) << shape.seqlen_q << " " << shape.seqlen_k << ": " << x.o_error << " "
                                    << x.lse_error;
      EXPECT_EQ(x.run.counters[Counter::kSharedWavefronts], x.run.counters[Counter::kSharedWavefrontsIdeal]);
    }
  }
}

struct Expected {
  const char* bug;
  FindingKind kind;
};

// gtest prints a parameter by this.
void PrintTo(const Expected& e, std::ostream* out) { *out << e.bug; }

class DetectedBugs : public EmulatorTest, public testing::WithParamInterface<Expected> {};

TEST_P(DetectedBugs, IsNamedUnderEverySchedule) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const Attended x = attend(GetParam().bug, {150, 200, 0}, seed);
    EXPECT_TRUE(x.run.report.has(GetParam().kind)) << "seed " << seed << "\n" << x.run.report.text();
    for (const emulator::Finding& f : x.run.report.findings) {
      ASSERT_FALSE(f.source.empty());
      EXPECT_GT(f.source.front().line, 0);
      EXPECT_EQ(f.kernel, std::string("planted_") + GetParam().bug);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, DetectedBugs,
                         testing::Values(Expected{"kMissingBarrier", FindingKind::kSharedRaceBetweenWarps},
                                         Expected{"kMissingWait", FindingKind::kAsyncCopyNotWaited},
                                         Expected{"kPrefetchEarly", FindingKind::kSharedRaceBetweenWarps},
                                         Expected{"kSkippedBarrier", FindingKind::kDeadlock},
                                         Expected{"kSharedRowOut", FindingKind::kSharedOutOfBounds},
                                         Expected{"kGlobalRowOut", FindingKind::kGlobalOutOfBounds},
                                         Expected{"kUninitialised", FindingKind::kUndefinedRegister},
                                         Expected{"kMisalignedCopy", FindingKind::kSharedMisaligned},
                                         Expected{"kMissingWarpSync", FindingKind::kSharedRaceWithinWarp}),
                         [](const auto& i) { return i.param.bug; });

// Nothing but the numbers is wrong with these.
class WrongNumbers : public EmulatorTest, public testing::WithParamInterface<const char*> {};

TEST_P(WrongNumbers, AreSeenInOutputOrLse) {
  const Attended x = attend(GetParam(), {150, 150, std::string(GetParam()) == "kCausalMaskOff"}, 1);
  EXPECT_TRUE(x.run.report.silent()) << x.run.report.text();
  EXPECT_FALSE(numbers_right(x)) << x.o_error << " " << x.lse_error;
}

INSTANTIATE_TEST_SUITE_P(Each, WrongNumbers,
                         testing::Values("kTailMaskOff", "kCausalMaskOff", "kSwappedFragments", "kWrongTranspose"),
                         [](const auto& i) { return std::string(i.param); });

TEST_F(PlantedBugs, AMissingSwizzleCostsWavefronts) {
  const Attended x = attend("kNoSwizzle", {128, 128, 0}, 1);
  EXPECT_TRUE(x.run.report.silent()) << x.run.report.text();
  EXPECT_TRUE(numbers_right(x));
  EXPECT_GT(x.run.counters[Counter::kSharedWavefronts], 4 * x.run.counters[Counter::kSharedWavefrontsIdeal]);
}

TEST_F(PlantedBugs, TheDeadlockSaysWhoWaitsWhere) {
  const Attended x = attend("kSkippedBarrier", {64, 64, 0}, 2);
  ASSERT_TRUE(x.run.report.has(FindingKind::kDeadlock));
  const std::string text = x.run.report.text();
  EXPECT_NE(text.find("warp 0 waits at barrier 0 (96 of 128 threads are there)"), std::string::npos) << text;
  EXPECT_NE(text.find("warp 3 has returned"), std::string::npos) << text;
  EXPECT_NE(text.find("planted_bugs.cu:"), std::string::npos) << text;
}

TEST_F(PlantedBugs, WithoutDetectorsTheResultIsTheSameAndNothingIsSaid) {
  const Attended with = attend("kNone", {100, 130, 1}, 3), without = attend("kNone", {100, 130, 1}, 3, false);
  EXPECT_TRUE(without.run.report.silent());
  EXPECT_EQ(with.o_error, without.o_error);
  EXPECT_TRUE(attend("kMissingWarpSync", {100, 130, 0}, 3, false).run.report.silent());
}

// Exact counts: two blocks of four warps over three key tiles.
TEST_F(PlantedBugs, CountersAreExact) {
  const emulator::Counters c = attend("kNone", {128, 192, 0}, 5).run.counters;
  const uint64_t tiles = 2 * 3, warps = 4;
  EXPECT_EQ(c[Counter::kMmaBf16], tiles * warps * 64);
  EXPECT_EQ(c[Counter::kLdmatrix], tiles * warps * 32 + 2 * warps * 4);
  EXPECT_EQ(c[Counter::kCpAsync], (tiles * 2 + 2) * 4 * warps);
  EXPECT_EQ(c[Counter::kCpAsyncBytes], (tiles * 2 + 2) * 8192);
  EXPECT_EQ(c[Counter::kGlobalStoreBytes], 128u * (64 * 2 + 4));
  EXPECT_EQ(c[Counter::kSharedLoadBytes], (tiles * 32 + 2 * 4) * warps * 512 + 128 * 128);
  EXPECT_EQ(c[Counter::kSharedStoreBytes], 128u * 128);
  EXPECT_EQ(c[Counter::kEx2], tiles * warps * 2 * 17);
  EXPECT_EQ(c[Counter::kShuffle], tiles * warps * 4 + 2 * warps * 4);
  EXPECT_EQ(c[Counter::kBarrier], tiles * warps);
  EXPECT_EQ(c[Counter::kWarpSync], 2 * warps * 2);
  EXPECT_EQ(c[Counter::kSharedWavefronts], c[Counter::kSharedWavefrontsIdeal]);
}

}  // namespace
}  // namespace flashdelta::test
