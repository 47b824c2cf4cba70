// Conversion between 16-bit and fp32 rows, and transposition. core/numeric.hpp has the same arithmetic for one number.
// Eight lanes are used even where there are more: head sizes are multiples of 8, so real rows have no tail.
#include "cpu/simd.hpp"
#include "cpu/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/numeric.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 8>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DH = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

struct Bf16 {
  using Element = uint16_t;
  static float load(const uint16_t* p) { return bf16_to_float(*p); }
  static void store(float x, uint16_t* p) { *p = float_to_bf16(x); }

  static HWY_INLINE VF load_vector(const uint16_t* p) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DH(), p))));
  }
  static HWY_INLINE VU bits(VF x) {
    const DU d;
    const VU u = hn::BitCast(d, x);
    const VU high = hn::ShiftRight<16>(u);
    const VU odd = hn::And(high, hn::Set(d, 1));
    const VU rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(d, 0x7fff))));
    // Eq, because Highway's Ne is false for NaN on AVX2.
    const auto is_number = hn::RebindMask(d, hn::Eq(x, x));
    return hn::IfThenElse(is_number, rounded, hn::Or(high, hn::Set(d, 0x40)));
  }
};

struct Fp16 {
  using Element = uint16_t;
  static float load(const uint16_t* p) { return fp16_to_float(*p); }
  static void store(float x, uint16_t* p) { *p = float_to_fp16(x); }

  static HWY_INLINE VF load_vector(const uint16_t* p) {
    const DU d;
    const DI di;
    const VU u = hn::PromoteTo(d, hn::LoadU(DH(), p));
    const VU sign = hn::ShiftLeft<16>(hn::And(u, hn::Set(d, 0x8000)));
    const VU magnitude = hn::And(u, hn::Set(d, 0x7fff));
    const VU shifted = hn::ShiftLeft<13>(magnitude);
    const VF finite = hn::Mul(hn::BitCast(DF(), shifted), hn::Set(DF(), 0x1p112f));
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
    const VU infinite = hn::Or(shifted, hn::Set(d, 0x7f800000));
    const VU value = hn::IfThenElse(hn::RebindMask(d, special), infinite, hn::BitCast(d, finite));
    return hn::BitCast(DF(), hn::Or(value, sign));
  }
  static HWY_INLINE VU bits(VF x) {
    const DU d;
    const DI di;
    const VU u = hn::BitCast(d, x);
    const VU sign = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 0x8000));
    const VU magnitude = hn::And(u, hn::Set(d, 0x7fffffff));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
    // Adding -0x38000000 (exponent bias 127 to 15) and a half less one, plus one where the kept bit is odd.
    const VU normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0xfffu - 0x38000000u))));
    const VF half = hn::Set(DF(), 0.5f);
    const VU small = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(DF(), magnitude), half)), hn::BitCast(d, half));
    VU result = hn::IfThenElse(hn::RebindMask(d, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000))), small, normal);
    const auto overflow = hn::RebindMask(d, hn::Gt(signed_magnitude, hn::Set(di, 0x477fefff)));
    result = hn::IfThenElse(overflow, hn::Set(d, 0x7c00), result);
    result = hn::IfThenElse(hn::RebindMask(d, hn::Eq(x, x)), result, hn::Set(d, 0x7e00));
    return hn::Or(result, sign);
  }
};

template <class Format>
HWY_INLINE void load_row(const uint16_t* src, int64_t cols, float* dst) {
  constexpr int64_t kLanes = hn::MaxLanes(DF());
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) hn::StoreU(Format::load_vector(src + c), DF(), dst + c);
  for (; c < cols; c++) dst[c] = Format::load(src + c);
}

template <class Format>
HWY_INLINE void store_row(const float* src, int64_t cols, uint16_t* dst) {
  constexpr int64_t kLanes = hn::MaxLanes(DF());
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) {
    const auto bits = hn::BitCast(DI(), Format::bits(hn::LoadU(DF(), src + c)));
    hn::StoreU(hn::DemoteTo(DH(), bits), DH(), dst + c);
  }
  for (; c < cols; c++) Format::store(src[c], dst + c);
}

void load_rows(const void* src, flashdelta_dtype dtype, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
               int64_t dst_stride) {
  for (int64_t r = 0; r < rows; r++) {
    float* to = dst + r * dst_stride;
    if (dtype == FLASHDELTA_FP32) {
      std::memcpy(to, static_cast<const float*>(src) + r * src_stride, static_cast<size_t>(cols) * sizeof(float));
      continue;
    }
    const uint16_t* from = static_cast<const uint16_t*>(src) + r * src_stride;
    if (dtype == FLASHDELTA_BF16) {
      load_row<Bf16>(from, cols, to);
    } else {
      load_row<Fp16>(from, cols, to);
    }
  }
}

void store_rows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, void* dst, flashdelta_dtype dtype,
                int64_t dst_stride) {
  for (int64_t r = 0; r < rows; r++) {
    const float* from = src + r * src_stride;
    if (dtype == FLASHDELTA_FP32) {
      std::memcpy(static_cast<float*>(dst) + r * dst_stride, from, static_cast<size_t>(cols) * sizeof(float));
      continue;
    }
    uint16_t* to = static_cast<uint16_t*>(dst) + r * dst_stride;
    if (dtype == FLASHDELTA_BF16) {
      store_row<Bf16>(from, cols, to);
    } else {
      store_row<Fp16>(from, cols, to);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
constexpr int64_t kTile = 1;

HWY_INLINE void transpose_tile(const float* src, int64_t, float* dst, int64_t) { *dst = *src; }
#else
constexpr int64_t kTile = 4;

// 4 x 4 in registers.
HWY_INLINE void transpose_tile(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, src), r1 = hn::LoadU(d, src + src_stride);
  const auto r2 = hn::LoadU(d, src + 2 * src_stride), r3 = hn::LoadU(d, src + 3 * src_stride);
  const auto low01 = hn::InterleaveLower(d, r0, r1), high01 = hn::InterleaveUpper(d, r0, r1);
  const auto low23 = hn::InterleaveLower(d, r2, r3), high23 = hn::InterleaveUpper(d, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, dst);
  hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, dst + dst_stride);
  hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, dst + 2 * dst_stride);
  hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, dst + 3 * dst_stride);
}
#endif

void transpose(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst, int64_t dst_stride) {
  const int64_t whole_rows = rows / kTile * kTile, whole_cols = cols / kTile * kTile;
  for (int64_t r = 0; r < whole_rows; r += kTile) {
    for (int64_t c = 0; c < whole_cols; c += kTile) {
      transpose_tile(src + r * src_stride + c, src_stride, dst + c * dst_stride + r, dst_stride);
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; c++) dst[c * dst_stride + r] = src[r * src_stride + c];
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::cpu {

HWY_EXPORT(load_rows);
HWY_EXPORT(store_rows);
HWY_EXPORT(transpose);
HWY_EXPORT(target_name);

const char* simd_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

void load_rows(const void* src, flashdelta_dtype dtype, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
               int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(load_rows)(src, dtype, src_stride, rows, cols, dst, dst_stride);
}

void store_rows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, void* dst, flashdelta_dtype dtype,
                int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(store_rows)(src, src_stride, rows, cols, dst, dtype, dst_stride);
}

void transpose(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(transpose)(src, src_stride, rows, cols, dst, dst_stride);
}

}  // namespace flashdelta::cpu
#endif
