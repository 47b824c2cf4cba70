// The emulator against a real GPU's results (tests/emulator/conformance_h200.bin, made by
// tests/gpu/conformance_dump.cu): data movement, integers and IEEE arithmetic bit for bit, sums of products within
// 2^-20 of sum |a b|, special functions within 2 ulp. The cases are those of the file; without it there is no test
// here.
#include <bit>
#include <cmath>
#include <fstream>

#include "core/numeric.hpp"
#include "emulator/conformance_run.hpp"

namespace flashdelta::test {
namespace {

using Dump = std::map<std::string, std::vector<uint32_t>>;

const Dump& gpu_dump() {
  static const Dump dump = [] {
    Dump d;
    std::ifstream file(FLASHDELTA_SOURCE_DIR "/tests/emulator/conformance_h200.bin", std::ios::binary);
    char name[32];
    uint32_t count = 0;
    while (file.read(name, sizeof(name)) && file.read(reinterpret_cast<char*>(&count), 4)) {
      std::vector<uint32_t>& words = d[name];
      words.resize(count);
      file.read(reinterpret_cast<char*>(words.data()), std::streamsize{4} * count);
    }
    return d;
  }();
  return dump;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, words] : gpu_dump()) names.push_back(name);
  return names;
}

class Conformance : public EmulatorTest, public testing::WithParamInterface<std::string> {};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);

float as_float(uint32_t x) { return std::bit_cast<float>(x); }

// Distance in representable numbers; zeros of both signs are one number.
int64_t ulps(uint32_t a, uint32_t b) {
  auto place = [](uint32_t x) {
    const auto magnitude = static_cast<int64_t>(x & 0x7fffffffu);
    return (x >> 31) != 0 ? -magnitude : magnitude;
  };
  return std::abs(place(a) - place(b));
}

void expect_products_agree(const ConformanceRun& r, const std::vector<uint32_t>& gpu, bool bf16) {
  auto decode = [&](uint32_t x) -> double {
    return bf16 ? bf16_to_float(static_cast<uint16_t>(x)) : fp16_to_float(static_cast<uint16_t>(x));
  };
  for (uint32_t warp = 0; warp < r.lanes() / 32; ++warp) {
    const MmaOperands operands(r, warp, 16, 16, decode);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t lane = 32 * warp + sum_lane(row, n), reg = sum_register(row, n);
        double magnitude = 0;
        operands.exact(row, n, as_float(r.input(lane, 6 + reg)), &magnitude);
        ASSERT_NEAR(as_float(r.output(lane, reg)), as_float(gpu[lane * 4 + reg]), 0x1p-20 * magnitude);
      }
    }
  }
}

TEST_P(Conformance, AgreesWithTheGpu) {
  const ConformanceCase& c = conformance_case(GetParam());
  const std::vector<uint32_t>& gpu = gpu_dump().at(GetParam());
  const ConformanceRun r = run_conformance(c);
  ASSERT_EQ(r.out.size(), gpu.size());
  if (c.rule == kProduct) {
    expect_products_agree(r, gpu, GetParam() == "mma_bf16_random");
    return;
  }
  for (size_t i = 0; i < gpu.size(); ++i) {
    const float ours = as_float(r.out[i]), theirs = as_float(gpu[i]);
    const bool same = r.out[i] == gpu[i];
    const bool near = ulps(r.out[i], gpu[i]) <= 2 || (std::isnan(ours) && std::isnan(theirs));
    switch (c.rule) {
      case kTwoUlp: ASSERT_TRUE(near) << i << ": " << ours << " " << theirs; break;
      case kTwoUlpOrTiny:
        ASSERT_TRUE(near || std::fabs(ours - theirs) <= 0x1p-22) << i << ": " << ours << " " << theirs;
        break;
      case kCoarse: ASSERT_NEAR(ours, theirs, 0x1p-10); break;
      default:
        ASSERT_TRUE(same) << "lane " << i / c.outputs << ", output " << i % c.outputs << ": " << std::hex << r.out[i]
                          << " " << gpu[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(H200, Conformance, testing::ValuesIn(case_names()), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace flashdelta::test
