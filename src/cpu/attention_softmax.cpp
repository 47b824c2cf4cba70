#include "cpu/attention_softmax.hpp"

#include <limits>

#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_softmax.cpp"
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

using DWide = hn::ScalableTag<float>;
using DNarrow = hn::CappedTag<float, 8>;  // for the last 8 columns where vectors are wider

// 2^x for x <= 0, relative error under 2e-7; 0 below -126, exactly 1 at 0, NaN stays. Adding 1.5 * 2^23 rounds x to an
// integer, which is then both a float and, in the low bits, what the exponent needs. The polynomial (Remez on
// [-0.5, 0.5], constant term held at 1) gives 2^fraction. NaN passes because its low bits are 0.
template <class D>
HWY_INLINE hn::Vec<D> exp2_of_negative(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto magic = hn::Set(d, 0x1.8p23f);
  const auto rounded = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(rounded, magic));
  auto p = hn::MulAdd(hn::Set(d, 0x1.5bba14p-10f), f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, rounded))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), scaled);
}

// kVectors vectors of columns over all keys.
template <int kVectors, class D>
HWY_INLINE bool softmax_columns(D d, float* scores, int64_t stride, int64_t keys, float* m, float* l, float* rescale) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  hn::Vec<D> top[kVectors], shift[kVectors], total[kVectors];
  for (int v = 0; v < kVectors; v++) top[v] = hn::LoadU(d, m + v * kLanes);
  for (int64_t j = 0; j < keys; j++) {
    for (int v = 0; v < kVectors; v++) top[v] = hn::Max(top[v], hn::LoadU(d, scores + j * stride + v * kLanes));
  }
  bool changed = false;
  for (int v = 0; v < kVectors; v++) {
    // Where all is -inf so far, subtracting 0 keeps exp2(-inf) = 0; -inf - -inf would be NaN.
    shift[v] = hn::IfThenZeroElse(hn::Eq(top[v], lowest), top[v]);
    const auto before = hn::LoadU(d, m + v * kLanes);
    const auto factor = exp2_of_negative(d, hn::Sub(before, shift[v]));
    changed = changed || !hn::AllTrue(d, hn::Eq(before, top[v]));
    total[v] = hn::Mul(hn::LoadU(d, l + v * kLanes), factor);
    hn::StoreU(top[v], d, m + v * kLanes);
    hn::StoreU(factor, d, rescale + v * kLanes);
  }
  for (int64_t j = 0; j < keys; j++) {
    for (int v = 0; v < kVectors; v++) {
      float* at = scores + j * stride + v * kLanes;
      const auto p = exp2_of_negative(d, hn::Sub(hn::LoadU(d, at), shift[v]));
      total[v] = hn::Add(total[v], p);
      hn::StoreU(p, d, at);
    }
  }
  for (int v = 0; v < kVectors; v++) hn::StoreU(total[v], d, l + v * kLanes);
  return changed;
}

bool softmax_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float* m, float* l, float* rescale) {
  constexpr int64_t kLanes = hn::MaxLanes(DWide());
  bool changed = false;
  int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    changed |= softmax_columns<2>(DWide(), scores + c, stride, keys, m + c, l + c, rescale + c);
  }
  for (; c + kLanes <= columns; c += kLanes) {
    changed |= softmax_columns<1>(DWide(), scores + c, stride, keys, m + c, l + c, rescale + c);
  }
  if (c < columns) changed |= softmax_columns<1>(DNarrow(), scores + c, stride, keys, m + c, l + c, rescale + c);
  return changed;
}

void softcap_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float cap) {
  const DNarrow d;
  for (int64_t j = 0; j < keys; j++) {
    for (int64_t c = 0; c < columns; c += hn::MaxLanes(DNarrow())) {
      const auto x = hn::LoadU(d, scores + j * stride + c);
      const auto capped = hn::Mul(hn::Set(d, cap), hn::Tanh(d, x));
      hn::StoreU(hn::IfThenElse(hn::Eq(x, x), capped, x), d, scores + j * stride + c);
    }
  }
}

void scale_columns(float* x, int64_t stride, int64_t rows, int64_t columns, const float* factors) {
  const DNarrow d;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += hn::MaxLanes(DNarrow())) {
      float* at = x + r * stride + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::LoadU(d, factors + c)), d, at);
    }
  }
}

void merge_columns(float* x, const float* factors, const float* y, const float* y_factors, int64_t stride, int64_t rows,
                   int64_t columns) {
  const DNarrow d;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += hn::MaxLanes(DNarrow())) {
      float* at = x + r * stride + c;
      const auto kept = hn::Mul(hn::LoadU(d, at), hn::LoadU(d, factors + c));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, y + r * stride + c), hn::LoadU(d, y_factors + c), kept), d, at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::cpu {

HWY_EXPORT(softcap_tile);
HWY_EXPORT(softmax_tile);
HWY_EXPORT(scale_columns);
HWY_EXPORT(merge_columns);

void softcap_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float cap) {
  HWY_DYNAMIC_DISPATCH(softcap_tile)(scores, stride, keys, columns, cap);
}

bool softmax_tile(float* scores, int64_t stride, int64_t keys, int64_t columns, float* m, float* l, float* rescale) {
  return HWY_DYNAMIC_DISPATCH(softmax_tile)(scores, stride, keys, columns, m, l, rescale);
}

void scale_columns(float* x, int64_t stride, int64_t rows, int64_t columns, const float* factors) {
  HWY_DYNAMIC_DISPATCH(scale_columns)(x, stride, rows, columns, factors);
}

void merge_columns(float* x, const float* factors, const float* y, const float* y_factors, int64_t stride, int64_t rows,
                   int64_t columns) {
  HWY_DYNAMIC_DISPATCH(merge_columns)(x, factors, y, y_factors, stride, rows, columns);
}

}  // namespace flashdelta::cpu
#endif
