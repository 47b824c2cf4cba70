// The vector primitives on every instruction set that this processor has, against float64 or scalar code.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "cpu/simd.hpp"

namespace flashdelta {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The instruction sets that the library is compiled for and that this processor has.
std::vector<int64_t> targets() {
  std::vector<int64_t> all{HWY_SCALAR};
  for (int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) != 0) all.push_back(target);
  }
  return all;
}

class Simd : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::GetChosenTarget().Update(GetParam());
    ASSERT_STREQ(cpu::simd_target(), hwy::TargetName(GetParam()));
  }
  void TearDown() override { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }

  std::mt19937 random{12345};
  std::vector<float> normal(size_t n) {
    std::normal_distribution<float> distribution;
    std::vector<float> x(n);
    for (float& value : x) value = distribution(random);
    return x;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, Simd, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST_P(Simd, EverySixteenBitPatternLoadsAndComesBack) {
  std::vector<uint16_t> bits(65536), back(65536);
  for (size_t i = 0; i < bits.size(); i++) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> x(65536);
  for (flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    cpu::load_rows(bits.data(), dtype, 0, 1, 65536, x.data(), 0);
    cpu::store_rows(x.data(), 0, 1, 65536, back.data(), dtype, 0);
    int wrong = 0;
    for (int64_t i = 0; i < 65536; i++) {
      const float expected = load_float(bits.data(), dtype, i);
      const bool right = same(x[static_cast<size_t>(i)], expected);
      const bool returned = std::isnan(expected) ? std::isnan(load_float(back.data(), dtype, i))
                                                 : back[static_cast<size_t>(i)] == bits[static_cast<size_t>(i)];
      wrong += !right || !returned;
    }
    EXPECT_EQ(wrong, 0) << dtype_name(dtype);
  }
}

TEST_P(Simd, StoresRoundToNearestEven) {
  std::vector<float> x{0.0f,     -0.0f,     kInf,     -kInf,     kNan,   -kNan,
                       65504.0f, 65519.99f, 65520.0f, -65520.0f, 1e-45f, 0x1p-25f};
  x.insert(x.end(),
           {0x1.8p-25f, 0x1p-24f, 0x1.8p-24f, 0x1p-14f, 0x1.fffffep-15f, 3.3895314e38f, 3.4e38f, -3.4028235e38f});
  // Neighbours of every 16-bit value's midpoint, and of the value itself.
  for (uint32_t high = 0; high < 65536; high += 7) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<uint16_t> got(x.size());
  const auto n = static_cast<int64_t>(x.size());
  for (flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    cpu::store_rows(x.data(), 0, 1, n, got.data(), dtype, 0);
    int wrong = 0;
    for (size_t i = 0; i < x.size(); i++) {
      wrong += got[i] != (dtype == FLASHDELTA_BF16 ? float_to_bf16(x[i]) : float_to_fp16(x[i]));
    }
    EXPECT_EQ(wrong, 0) << dtype_name(dtype);
  }
}

TEST_P(Simd, RowsKeepToTheirStridesAndBounds) {
  for (flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32}) {
    for (int64_t cols : {0, 1, 7, 8, 13, 24}) {
      const int64_t rows = 3, src_stride = -(cols + 2), dst_stride = cols + 1;  // the rows run backwards in memory
      const auto element = static_cast<size_t>(dtype_size(dtype));
      std::vector<char> src(static_cast<size_t>(2 * (cols + 2) + cols) * element);
      for (int64_t i = 0; i < static_cast<int64_t>(src.size() / element); i++) {
        store_float(src.data(), dtype, i, static_cast<float>(i));
      }
      const char* first = src.data() + static_cast<size_t>(2 * (cols + 2)) * element;
      std::vector<float> x(static_cast<size_t>(2 * dst_stride + cols), -1.0f);
      cpu::load_rows(first, dtype, src_stride, rows, cols, x.data(), dst_stride);
      std::vector<char> back(src.size());
      cpu::store_rows(x.data(), dst_stride, rows, cols, back.data() + (first - src.data()), dtype, src_stride);
      for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
          EXPECT_EQ(x[static_cast<size_t>(r * dst_stride + c)], static_cast<float>((2 - r) * (cols + 2) + c));
          EXPECT_EQ(load_float(back.data(), dtype, (2 - r) * (cols + 2) + c),
                    static_cast<float>((2 - r) * (cols + 2) + c));
        }
        if (r < rows - 1) {
          EXPECT_EQ(x[static_cast<size_t>(r * dst_stride + cols)], -1.0f);
        }
      }
    }
  }
}

TEST_P(Simd, TransposeMovesEveryElement) {
  for (int64_t rows : {0, 1, 3, 4, 9}) {
    for (int64_t cols : {0, 1, 5, 8, 11}) {
      const auto x = normal(static_cast<size_t>(rows * cols));
      std::vector<float> y(static_cast<size_t>(rows * cols), kNan);
      cpu::transpose(x.data(), cols, rows, cols, y.data(), rows);
      for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
          EXPECT_EQ(y[static_cast<size_t>(c * rows + r)], x[static_cast<size_t>(r * cols + c)]);
        }
      }
    }
  }
}

struct Product {
  int64_t m, n, k;
  bool transposed, accumulate;
};

// Buffers have no slack at their ends, so that the address sanitizer sees any read or write past them.
void check_product(const Product& p, const std::vector<float>& a, const std::vector<float>& b,
                   const std::vector<float>& c0) {
  const int64_t ldb = p.n + 3, ldc = p.n + 1;
  auto c = c0;
  const cpu::StridedMatrix view =
      p.transposed ? cpu::StridedMatrix{a.data(), 1, p.m} : cpu::StridedMatrix{a.data(), p.k, 1};
  cpu::matmul(p.m, p.n, p.k, view, b.data(), ldb, c.data(), ldc, p.accumulate);
  for (int64_t i = 0; i < p.m; i++) {
    for (int64_t j = 0; j < p.n; j++) {
      double expected = p.accumulate ? c0[static_cast<size_t>(i * ldc + j)] : 0.0, magnitude = std::abs(expected);
      for (int64_t q = 0; q < p.k; q++) {
        const double term = static_cast<double>(view.data[i * view.row_stride + q * view.col_stride]) *
                            static_cast<double>(b[static_cast<size_t>(q * ldb + j)]);
        expected += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(c[static_cast<size_t>(i * ldc + j)], expected, 1e-6 * magnitude)
          << "m " << p.m << " n " << p.n << " k " << p.k << " at " << i << ", " << j;
    }
    if (i < p.m - 1) {
      ASSERT_EQ(c[static_cast<size_t>(i * ldc + p.n)], c0[static_cast<size_t>(i * ldc + p.n)]);
    }
  }
}

TEST_P(Simd, MatmulOfEverySize) {
  std::vector<Product> products;
  for (int64_t m : {0, 1, 2, 5, 6, 7, 11, 12, 25}) {
    for (int64_t n : {0, 1, 4, 7, 8, 15, 16, 17, 31, 32, 33, 50}) {
      for (int64_t k : {0, 1, 9, 40}) products.push_back({m, n, k, (m + n) % 2 == 0, (m + k) % 2 == 0});
    }
  }
  products.push_back({13, 48, 255, false, false});
  products.push_back({13, 48, 256, true, true});
  products.push_back({14, 35, 600, true, false});
  for (const Product& p : products) {
    const auto last_row = [](int64_t rows, int64_t ld, int64_t cols) {
      return static_cast<size_t>(rows == 0 ? 0 : (rows - 1) * ld + cols);
    };
    const auto a = normal(static_cast<size_t>(p.m * p.k));
    const auto b = normal(last_row(p.k, p.n + 3, p.n));
    auto c = normal(last_row(p.m, p.n + 1, p.n));
    if (!p.accumulate) std::fill(c.begin(), c.end(), kNan);
    if (!p.accumulate) {
      for (int64_t i = 0; i + 1 < p.m; i++) c[static_cast<size_t>(i * (p.n + 1) + p.n)] = 7.0f;
    }
    check_product(p, a, b, c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Simd, RowFunctions) {
  for (int64_t n : {0, 1, 3, 8, 15, 16, 17, 64, 100}) {
    const auto x = normal(static_cast<size_t>(n)), y = normal(static_cast<size_t>(n));
    double dot = 0;
    for (size_t i = 0; i < x.size(); i++) dot += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    auto scaled = x, added = y;
    cpu::scale(1.5f, scaled.data(), n);
    cpu::scale_add(0.25f, x.data(), added.data(), n);
    const std::vector<double> wide(x.begin(), x.end());
    EXPECT_NEAR(cpu::dot(wide.data(), y.data(), n), dot, 1e-13);
    auto wide_scaled = wide, wide_added = wide;
    cpu::scale(1.1, wide_scaled.data(), n);
    cpu::scale_add(1.1, y.data(), wide_added.data(), n);
    for (size_t i = 0; i < x.size(); i++) {
      EXPECT_EQ(scaled[i], x[i] * 1.5f);
      EXPECT_NEAR(added[i], y[i] + 0.25f * x[i], 1e-6);
      EXPECT_EQ(wide_scaled[i], wide[i] * 1.1);
      EXPECT_NEAR(wide_added[i], wide[i] + 1.1 * static_cast<double>(y[i]), 1e-15);
    }
  }
}

TEST_P(Simd, AllFiniteSeesEveryPlace) {
  for (size_t n : {1u, 8u, 21u}) {
    std::vector<float> x(n, 3e38f);
    EXPECT_TRUE(cpu::all_finite(x.data(), static_cast<int64_t>(n)));
    for (size_t i = 0; i < n; i++) {
      for (float bad : {kInf, -kInf, kNan}) {
        x[i] = bad;
        EXPECT_FALSE(cpu::all_finite(x.data(), static_cast<int64_t>(n))) << i;
      }
      x[i] = 0;
    }
  }
}

TEST_P(Simd, ExpIsCloseAndKeepsItsEnds) {
  std::vector<float> x{0.0f, -0.0f, -kInf, kInf, kNan, -200.0f, 200.0f, -87.0f, 88.0f};
  for (float value = -80; value < 80; value += 0.0137f) x.push_back(value);
  std::vector<float> y(x.size());
  cpu::exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); i++) {
    const auto expected = static_cast<float>(std::exp(static_cast<double>(x[i])));
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else if (std::isinf(expected) || expected < 0x1p-126f) {
      EXPECT_EQ(y[i], expected) << x[i];
    } else {
      EXPECT_NEAR(y[i], expected, 2.5e-7 * static_cast<double>(expected)) << x[i];
    }
  }
}

}  // namespace
}  // namespace flashdelta
