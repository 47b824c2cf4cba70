// Instructions against their scalar definitions, which are written here once more.
#include <bit>
#include <cmath>

#include "core/numeric.hpp"
#include "emulator/conformance_run.hpp"

namespace flashdelta::test {
namespace {

class Instructions : public EmulatorTest {};

float as_float(uint32_t x) { return std::bit_cast<float>(x); }
uint32_t as_bits(float x) { return std::bit_cast<uint32_t>(x); }
double from_bf16(uint32_t x) { return bf16_to_float(static_cast<uint16_t>(x)); }
double from_fp16(uint32_t x) { return fp16_to_float(static_cast<uint16_t>(x)); }

template <class Decode>
void expect_fp32_sums(const char* name, uint32_t k, uint32_t bits, Decode decode) {
  const ConformanceRun r = run_conformance(conformance_case(name));
  const uint32_t c0 = r.inputs - 4;
  for (uint32_t warp = 0; warp < r.lanes() / 32; ++warp) {
    const MmaOperands operands(r, warp, k, bits, decode);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t lane = 32 * warp + sum_lane(row, n), reg = sum_register(row, n);
        double magnitude = 0;
        const double expected = operands.exact(row, n, as_float(r.input(lane, c0 + reg)), &magnitude);
        ASSERT_LE(std::fabs(as_float(r.output(lane, reg)) - expected), 0x1p-20 * magnitude)
            << name << " " << row << " " << n;
      }
    }
  }
}

TEST_F(Instructions, MmaOfFloats) {
  expect_fp32_sums("mma_bf16_integer", 16, 16, from_bf16);
  expect_fp32_sums("mma_bf16_random", 16, 16, from_bf16);
  expect_fp32_sums("mma_bf16_k8_integer", 8, 16, from_bf16);
  expect_fp32_sums("mma_f16_integer", 16, 16, from_fp16);
  expect_fp32_sums("mma_f16_random", 16, 16, from_fp16);
  expect_fp32_sums("mma_tf32_integer", 8, 32, [](uint32_t x) { return static_cast<double>(as_float(x)); });
}

TEST_F(Instructions, MmaOfBytesIsExact) {
  const ConformanceRun r = run_conformance(conformance_case("mma_s8"));
  for (uint32_t warp = 0; warp < r.lanes() / 32; ++warp) {
    const MmaOperands operands(r, warp, 32, 8, [](uint32_t x) { return static_cast<double>(static_cast<int8_t>(x)); });
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t lane = 32 * warp + sum_lane(row, n), reg = sum_register(row, n);
        double magnitude = 0;
        const auto sum = static_cast<int64_t>(operands.exact(row, n, 0, &magnitude));
        ASSERT_EQ(r.output(lane, reg), static_cast<uint32_t>(sum) + r.input(lane, 6 + reg));
      }
    }
  }
}

TEST_F(Instructions, MmaWithHalfSums) {
  const ConformanceRun r = run_conformance(conformance_case("mma_f16_half_sums"));
  for (uint32_t warp = 0; warp < r.lanes() / 32; ++warp) {
    const MmaOperands operands(r, warp, 16, 16, from_fp16);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t lane = 32 * warp + sum_lane(row, n), shift = 16 * (n % 2);
        double magnitude = 0;
        const double expected = operands.exact(row, n, from_fp16(r.input(lane, 6 + row / 8) >> shift), &magnitude);
        ASSERT_EQ(from_fp16(r.output(lane, row / 8) >> shift), expected);  // small integers are exact
      }
    }
  }
}

// The row that lane l points to was stored by lane 5 l + 3; element e of it.
uint32_t pointed_element(const ConformanceRun& r, uint32_t warp, uint32_t l, uint32_t e) {
  return r.input(32 * warp + (l * 5 + 3) % 32, e / 2) >> (16 * (e % 2)) & 0xffff;
}

uint32_t matrix_register(const ConformanceRun& r, uint32_t warp, uint32_t m, uint32_t lane, bool transposed) {
  const uint32_t g = lane / 4, t = lane % 4;
  if (!transposed)
    return pointed_element(r, warp, 8 * m + g, 2 * t) | pointed_element(r, warp, 8 * m + g, 2 * t + 1) << 16;
  return pointed_element(r, warp, 8 * m + 2 * t, g) | pointed_element(r, warp, 8 * m + 2 * t + 1, g) << 16;
}

TEST_F(Instructions, Ldmatrix) {
  for (bool transposed : {false, true}) {
    const ConformanceRun r = run_conformance(conformance_case(transposed ? "load_matrix_trans" : "load_matrix"));
    for (uint32_t i = 0; i < r.lanes(); ++i) {
      for (uint32_t m = 0; m < 4; ++m) {
        ASSERT_EQ(r.output(i, m), matrix_register(r, i / 32, m, i % 32, transposed));
      }
    }
  }
  const ConformanceRun few = run_conformance(conformance_case("load_matrix_few"));
  for (uint32_t i = 0; i < few.lanes(); ++i) {
    for (uint32_t k = 0; k < 6; ++k) {
      const uint32_t m = k == 3 || k == 5 ? 1 : 0;
      ASSERT_EQ(few.output(i, k), matrix_register(few, i / 32, m, i % 32, k == 1 || k >= 4)) << k;
    }
  }
}

TEST_F(Instructions, Stmatrix) {
  for (bool transposed : {false, true}) {
    const ConformanceRun r = run_conformance(conformance_case(transposed ? "store_matrix_trans" : "store_matrix"));
    for (uint32_t warp = 0; warp < r.lanes() / 32; ++warp) {
      for (uint32_t l = 0; l < 32; ++l) {
        for (uint32_t e = 0; e < 8; ++e) {
          // Lane l's row is row l % 8 of matrix l / 8; element (row, e) comes from the lane that holds it.
          const uint32_t row = transposed ? e : l % 8, column = transposed ? l % 8 : e;
          const uint32_t from = r.input(32 * warp + 4 * row + column / 2, l / 8) >> (16 * (column % 2)) & 0xffff;
          const uint32_t got = r.output(32 * warp + (l * 5 + 3) % 32, e / 2) >> (16 * (e % 2)) & 0xffff;
          ASSERT_EQ(got, from);
        }
      }
    }
  }
}

TEST_F(Instructions, Movmatrix) {
  const ConformanceRun r = run_conformance(conformance_case("move_matrix"));
  auto element = [&](uint32_t warp, uint32_t row, uint32_t column) {
    return r.input(32 * warp + 4 * row + column / 2, 0) >> (16 * (column % 2)) & 0xffff;
  };
  for (uint32_t i = 0; i < r.lanes(); ++i) {
    const uint32_t row = i % 32 / 4, column = 2 * (i % 4);
    ASSERT_EQ(r.output(i, 0), element(i / 32, column, row) | element(i / 32, column + 1, row) << 16);
  }
}

TEST_F(Instructions, Shuffles) {
  const ConformanceRun r = run_conformance(conformance_case("shuffles"));
  for (uint32_t i = 0; i < r.lanes(); ++i) {
    const uint32_t base = i / 32 * 32, lane = i % 32, by = r.input(i, 1) & 31, same = r.input(base, 1) & 31;
    auto x = [&](uint32_t from) { return r.input(base + from, 0); };
    EXPECT_EQ(r.output(i, 0), x(by));
    EXPECT_EQ(r.output(i, 1), x(lane >= same ? lane - same : lane));
    EXPECT_EQ(r.output(i, 2), x(lane + same < 32 ? lane + same : lane));
    EXPECT_EQ(r.output(i, 3), x(lane ^ same));
    EXPECT_EQ(r.output(i, 4), x(lane / 8 * 8 + by % 8));
    EXPECT_EQ(r.output(i, 5), x(lane % 8 >= 3 ? lane - 3 : lane));
    EXPECT_EQ(r.output(i, 6), x(lane % 16 + 3 < 16 ? lane + 3 : lane));
    // A partner in a later segment is out of reach, one in an earlier segment is not.
    EXPECT_EQ(r.output(i, 7), x((lane ^ 5) <= (lane | 3) ? lane ^ 5 : lane));
    EXPECT_EQ(r.output(i, 9), lane >= same ? 1u : 0u);
  }
}

TEST_F(Instructions, Votes) {
  const ConformanceRun r = run_conformance(conformance_case("votes"));
  for (uint32_t base = 0; base < r.lanes(); base += 32) {
    uint32_t ballot = 0, sum = 0, all_xor = 0, all_and = ~0u, all_or = 0, top = 0, match[4] = {};
    bool any = false, all = true;
    int32_t low = INT32_MAX;
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t v = r.input(base + l, 0);
      ballot |= (v & 1) << l;
      match[v & 3] |= 1u << l;
      any = any || (v & 31) == 0;
      all = all && (v & 0xff00) != 0;
      sum += v;
      low = std::min(low, static_cast<int32_t>(v));
      top = std::max(top, v);
      all_xor ^= v;
      all_and &= v | 1;
      all_or |= v;
    }
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t i = base + l;
      EXPECT_EQ(r.output(i, 0), ballot);
      EXPECT_EQ(r.output(i, 1), any ? 1u : 0u);
      EXPECT_EQ(r.output(i, 2), all ? 1u : 0u);
      EXPECT_EQ(r.output(i, 3), match[r.input(i, 0) & 3]);
      EXPECT_EQ(r.output(i, 4), (base / 32) % 2 == 0 ? 0xffffffffu + 2 : 0u);
      EXPECT_EQ(r.output(i, 5), sum);
      EXPECT_EQ(r.output(i, 6), static_cast<uint32_t>(low));
      EXPECT_EQ(r.output(i, 7), top);
      EXPECT_EQ(r.output(i, 8), all_xor ^ all_and ^ all_or);
    }
  }
}

TEST_F(Instructions, Packing) {
  const ConformanceRun r = run_conformance(conformance_case("pack"));
  for (uint32_t i = 0; i < r.lanes(); ++i) {
    const float a = as_float(r.input(i, 0)) * 0x1p-10f, b = as_float(r.input(i, 1)) * 0x1p-10f;
    EXPECT_EQ(r.output(i, 0), uint32_t{float_to_bf16(a)} << 16 | float_to_bf16(b));
    EXPECT_EQ(r.output(i, 1), uint32_t{float_to_fp16(a)} << 16 | float_to_fp16(b)) << a << " " << b;
    EXPECT_EQ(r.output(i, 2), (as_bits(a) & 0xffff0000u) | as_bits(b) >> 16);
    EXPECT_EQ(r.output(i, 3),
              uint32_t{float_to_bf16(std::max(a, 0.0f))} << 16 | uint32_t{float_to_bf16(std::max(b, 0.0f))});
    EXPECT_EQ(r.output(i, 4), float_to_fp16(a));
    EXPECT_EQ(r.output(i, 5), float_to_bf16(b));
  }
}

TEST_F(Instructions, IntegersAndTheirConversions) {
  const ConformanceRun r = run_conformance(conformance_case("integer"));
  for (uint32_t i = 0; i < r.lanes(); ++i) {
    const uint32_t a = r.input(i, 0), b = r.input(i, 1), s = r.input(i, 2);
    EXPECT_EQ(r.output(i, 0), static_cast<uint32_t>(uint64_t{a} * b >> 32));
    EXPECT_EQ(r.output(i, 13), s > 31 ? 0 : a << s);
    EXPECT_EQ(r.output(i, 14), s > 31 ? 0 : a >> s);
    uint32_t logic = 0, permuted = 0;
    const uint32_t selector = s * 0x1234 + a;
    for (uint32_t k = 0; k < 32; ++k) logic |= (0xd2u >> (4 * (a >> k & 1) + 2 * (b >> k & 1) + (s >> k & 1)) & 1) << k;
    for (uint32_t k = 0; k < 4; ++k) {  // __byte_perm takes three bits of each selector
      permuted |= static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (8 * (selector >> (4 * k) & 7)) & 255) << (8 * k);
    }
    EXPECT_EQ(r.output(i, 12), logic);
    EXPECT_EQ(r.output(i, 2), permuted);
    EXPECT_EQ(r.output(i, 4), static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (s % 32)));
    const uint32_t width = b & 63, ones = width > 31 ? ~0u : (1u << width) - 1;
    EXPECT_EQ(r.output(i, 9), s > 31 ? 0 : a >> s & ones);
    const uint32_t insert_width = a & 63, field = insert_width > 31 ? ~0u : (1u << insert_width) - 1;
    const uint32_t placed = s > 31 ? 0 : field << s;
    EXPECT_EQ(r.output(i, 11), (b & ~placed) | (s > 31 ? 0 : a << s & placed));
    EXPECT_EQ(r.output(i, 17), a / (s + 1) + b % (s + 3));
    const uint64_t wide = (uint64_t{a} << 32 | b) / (s + 7);
    EXPECT_EQ(r.output(i, 18), static_cast<uint32_t>(wide) ^ static_cast<uint32_t>(wide >> 32));
  }
  const ConformanceRun f = run_conformance(conformance_case("to_integer"));
  for (uint32_t i = 0; i < f.lanes(); ++i) {
    const double x = as_float(f.input(i, 0));
    auto clamp = [](double v) { return static_cast<int32_t>(std::clamp(v, -2147483648.0, 2147483647.0)); };
    EXPECT_EQ(static_cast<int32_t>(f.output(i, 0)), clamp(std::nearbyint(x)));
    EXPECT_EQ(static_cast<int32_t>(f.output(i, 1)), clamp(std::trunc(x)));
    EXPECT_EQ(static_cast<int32_t>(f.output(i, 2)), clamp(std::floor(x)));
    EXPECT_EQ(static_cast<int32_t>(f.output(i, 3)), clamp(std::ceil(x)));
    EXPECT_EQ(f.output(i, 5), static_cast<uint32_t>(std::clamp(std::trunc(x), 0.0, 4294967295.0)));
  }
}

TEST_F(Instructions, Fp32RoundsOnceInEachDirection) {
  const ConformanceRun r = run_conformance(conformance_case("single"));
  for (uint32_t i = 0; i < r.lanes(); ++i) {
    const float a = as_float(r.input(i, 0)), b = as_float(r.input(i, 1)), c = as_float(r.input(i, 2));
    const float d = as_float((r.input(i, 1) & 0x807fffffu) | (r.input(i, 0) & 0x7f800000u));
    const long double sum = static_cast<long double>(a) + d;  // exact in 64 bits of mantissa: of one size
    EXPECT_EQ(as_float(r.output(i, 0)), a + d);
    EXPECT_LE(std::fabs(as_float(r.output(i, 1))), std::fabs(sum));
    EXPECT_LE(as_float(r.output(i, 2)), sum);
    EXPECT_GE(as_float(r.output(i, 3)), sum);
    EXPECT_LE(std::fabs(as_float(r.output(i, 1)) - sum), std::fabs(sum) * 0x1p-23L);
    EXPECT_EQ(as_float(r.output(i, 6)), std::fma(a, b, c));
    EXPECT_LE(as_float(r.output(i, 7)), as_float(r.output(i, 6)));
    EXPECT_GE(as_float(r.output(i, 8)), as_float(r.output(i, 6)));
    EXPECT_EQ(as_float(r.output(i, 12)), a / b);
    EXPECT_EQ(as_float(r.output(i, 13)), std::sqrt(std::fabs(a)));
  }
}

TEST_F(Instructions, HalvesRoundOnce) {
  for (bool bf16 : {false, true}) {
    const ConformanceRun r = run_conformance(conformance_case(bf16 ? "bf16_precision" : "half_precision"));
    auto value = [&](uint32_t x) { return bf16 ? from_bf16(x) : from_fp16(x); };
    // Near enough in size that a double holds the exact result.
    auto rounded = [&](double x) {
      return bf16 ? float_to_bf16(static_cast<float>(x)) : float_to_fp16(static_cast<float>(x));
    };
    for (uint32_t i = 0; i < r.lanes(); ++i) {
      for (uint32_t h : {0u, 16u}) {
        const double a = value(r.input(i, 0) >> h), b = value(r.input(i, 1) >> h), c = value(r.input(i, 2) >> h);
        EXPECT_EQ(r.output(i, 0) >> h & 0xffff, rounded(a + b));
        EXPECT_EQ(r.output(i, 1) >> h & 0xffff, rounded(a - b));
        EXPECT_EQ(r.output(i, 2) >> h & 0xffff, rounded(a * b));
        EXPECT_EQ(r.output(i, 3) >> h & 0xffff, rounded(a * b + c));
      }
    }
  }
}

TEST_F(Instructions, SpecialFunctionsAreNearTheTruth) {
  auto expect_near = [](const char* name, double (*function)(double), double tolerance, double tiny) {
    const ConformanceRun r = run_conformance(conformance_case(name));
    for (uint32_t i = 0; i < r.lanes(); ++i) {
      const double x = as_float(r.input(i, 0)), expected = function(x);
      if (std::fabs(expected) < 0x1p-126) {
        EXPECT_EQ(as_float(r.output(i, 0)), 0.0f) << name << " flushes " << x;
        continue;
      }
      EXPECT_NEAR(as_float(r.output(i, 0)), expected, tolerance * std::fabs(expected) + tiny) << name << " " << x;
    }
  };
  expect_near(
      "ex2", [](double x) { return std::exp2(x); }, 0x1p-23, 0);
  expect_near(
      "rcp", [](double x) { return 1 / x; }, 0x1p-23, 0);
  expect_near(
      "reciprocal_root", [](double x) { return 1 / std::sqrt(x); }, 0x1p-23, 0);
  expect_near(
      "square_root", [](double x) { return std::sqrt(x); }, 0x1p-23, 0);
  expect_near(
      "lg2", [](double x) { return std::log2(x); }, 0x1p-23, 0);
  expect_near(
      "tangent", [](double x) { return std::tanh(x); }, 0x1p-10, 0);
}

}  // namespace
}  // namespace flashdelta::test
