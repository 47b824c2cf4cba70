// Sums, products and exponentials over one row. The last, partial vector is done number by number.
#include <cmath>

#include "cpu/simd.hpp"
#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_math.cpp"
// foreach_target.h must come first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace flashdelta::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DD = hn::ScalableTag<double>;
using DHalf = hn::Rebind<float, DD>;
constexpr int64_t kLanes = hn::MaxLanes(DF());
constexpr int64_t kDoubleLanes = hn::MaxLanes(DD());

void scale(float factor, float* x, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + i)), d, x + i);
  for (; i < n; i++) x[i] *= factor;
}

void scale_add(float factor, const float* x, float* y, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
  for (; i < n; i++) y[i] += factor * x[i];
}

// Highway's polynomial, which is wrong for NaN and above 104.
void exp(const float* x, float* y, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto value = hn::LoadU(d, x + i);
    const auto result = hn::Exp(d, hn::Min(value, hn::Set(d, 100.0f)));
    hn::StoreU(hn::IfThenElse(hn::Eq(value, value), result, value), d, y + i);
  }
  for (; i < n; i++) y[i] = std::exp(x[i]);
}

bool all_finite(const float* x, int64_t n) {
  const DF d;
  auto poison = hn::Zero(d);  // 0 * x is 0, or NaN where x is not finite
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) poison = hn::MulAdd(hn::Zero(d), hn::LoadU(d, x + i), poison);
  bool finite = hn::AllTrue(d, hn::Eq(poison, poison));
  for (; i < n; i++) finite = finite && std::isfinite(x[i]);
  return finite;
}

// Two accumulators, so that one addition's latency does not bound the loop.
double dot(const double* x, const float* y, int64_t n) {
  const DD d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kDoubleLanes <= n; i += 2 * kDoubleLanes) {
    even = hn::MulAdd(hn::LoadU(d, x + i), hn::PromoteTo(d, hn::LoadU(DHalf(), y + i)), even);
    const int64_t j = i + kDoubleLanes;
    odd = hn::MulAdd(hn::LoadU(d, x + j), hn::PromoteTo(d, hn::LoadU(DHalf(), y + j)), odd);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; i++) total += x[i] * static_cast<double>(y[i]);
  return total;
}

void scale_double(double factor, double* x, int64_t n) {
  const DD d;
  int64_t i = 0;
  for (; i + kDoubleLanes <= n; i += kDoubleLanes) {
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + i)), d, x + i);
  }
  for (; i < n; i++) x[i] *= factor;
}

void scale_add_double(double factor, const float* x, double* y, int64_t n) {
  const DD d;
  int64_t i = 0;
  for (; i + kDoubleLanes <= n; i += kDoubleLanes) {
    const auto value = hn::PromoteTo(d, hn::LoadU(DHalf(), x + i));
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), value, hn::LoadU(d, y + i)), d, y + i);
  }
  for (; i < n; i++) y[i] += factor * static_cast<double>(x[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::cpu {

HWY_EXPORT(scale);
HWY_EXPORT(scale_add);
HWY_EXPORT(exp);
HWY_EXPORT(all_finite);
HWY_EXPORT(dot);
HWY_EXPORT(scale_double);
HWY_EXPORT(scale_add_double);

void scale(float factor, float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(scale)(factor, x, n); }
void scale_add(float factor, const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(scale_add)(factor, x, y, n); }
void exp(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(exp)(x, y, n); }
bool all_finite(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(all_finite)(x, n); }
double dot(const double* x, const float* y, int64_t n) { return HWY_DYNAMIC_DISPATCH(dot)(x, y, n); }
void scale(double factor, double* x, int64_t n) { HWY_DYNAMIC_DISPATCH(scale_double)(factor, x, n); }
void scale_add(double factor, const float* x, double* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(scale_add_double)(factor, x, y, n);
}

}  // namespace flashdelta::cpu
#endif
