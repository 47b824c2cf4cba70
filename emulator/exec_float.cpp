// fp32 and fp64 arithmetic, comparisons and the special functions. Every operation rounds once, as IEEE says; NaNs keep
// the host's payload.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulator/exec_float.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "emulator/lanes-inl.hpp"
#include "emulator/numerics.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

// .ftz: subnormal inputs and results count as zero of their sign.
template <class Op>
struct Flushed {
  template <class... S>
  float operator()(S... x) const {
    return flush_subnormal(Op{}(flush_subnormal(x)...));
  }
};

template <class Op>
struct Saturated {
  template <class... S>
  float operator()(S... x) const {
    const float r = Op{}(x...);
    return r >= 1 ? 1.0f : r > 0 ? r : 0.0f;  // NaN becomes 0
  }
};

template <class Op, class... S>
void add_float(OpcodeTable* t, const std::string& name, Counter counter, bool saturates, float (Op::*)(S...) const) {
  const std::string form{'f', '=', Lane<S>::kLetter...};
  t->add(name + ".f32", {elementwise<Op, float, S...>, form, counter});
  t->add(name + ".ftz.f32", {elementwise<Flushed<Op>, float, S...>, form, counter});
  if (!saturates) return;
  t->add(name + ".sat.f32", {elementwise<Saturated<Op>, float, S...>, form, counter});
  t->add(name + ".ftz.sat.f32", {elementwise<Saturated<Flushed<Op>>, float, S...>, form, counter});
}

// name.f32 and name.ftz.f32.
template <class Op>
void float_rows(OpcodeTable* t, const std::string& name, Counter counter, Op) {
  add_float<Op>(t, name, counter, false, &Op::operator());
}

// Also with .sat.
template <class Op>
void saturating_rows(OpcodeTable* t, const std::string& name, Op) {
  add_float<Op>(t, name, Counter::kFp32, true, &Op::operator());
}

// A NaN gives way to a number; of two zeros, +0 is the larger.
HWY_INLINE float maximum(float a, float b) {
  const float r = a == b ? as_float(as_bits(a) & as_bits(b)) : a > b ? a : b;
  return a != a ? b : b != b ? a : r;
}
HWY_INLINE float minimum(float a, float b) {
  const float r = a == b ? as_float(as_bits(a) | as_bits(b)) : a < b ? a : b;
  return a != a ? b : b != b ? a : r;
}
HWY_INLINE float or_nan(float a, float b, float r) {
  return a != a || b != b ? std::numeric_limits<float>::quiet_NaN() : r;
}

template <Rounding kMode>
void directed_rows(OpcodeTable* t, const std::string& mode) {
  float_rows(t, "add." + mode, Counter::kFp32, [](float a, float b) { return round_float(exact_fma(1, a, b), kMode); });
  float_rows(t, "sub." + mode, Counter::kFp32,
             [](float a, float b) { return round_float(exact_fma(1, a, -b), kMode); });
  float_rows(t, "mul." + mode, Counter::kFp32, [](float a, float b) { return round_float(exact_fma(a, b, 0), kMode); });
  float_rows(t, "fma." + mode, Counter::kFp32,
             [](float a, float b, float c) { return round_float(exact_fma(a, b, c), kMode); });
}

void add_arithmetic(OpcodeTable* t) {
  saturating_rows(t, "add{,.rn}", [](float a, float b) { return a + b; });
  saturating_rows(t, "sub{,.rn}", [](float a, float b) { return a - b; });
  saturating_rows(t, "mul{,.rn}", [](float a, float b) { return a * b; });
  saturating_rows(t, "{fma.rn,mad.rn,mad}", [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  directed_rows<Rounding::kZero>(t, "rz");
  directed_rows<Rounding::kDown>(t, "rm");
  directed_rows<Rounding::kUp>(t, "rp");
  float_rows(t, "max", Counter::kFp32, [](float a, float b) { return maximum(a, b); });
  float_rows(t, "min", Counter::kFp32, [](float a, float b) { return minimum(a, b); });
  t->add("max{,.ftz}.f32.3", {elementwise<decltype([](float a, float b, float c) { return maximum(maximum(a, b), c); }),
                                          float, float, float, float>,
                              "f=fff", Counter::kFp32});
  t->add("min{,.ftz}.f32.3", {elementwise<decltype([](float a, float b, float c) { return minimum(minimum(a, b), c); }),
                                          float, float, float, float>,
                              "f=fff", Counter::kFp32});
  row(t, "max{,.ftz}.NaN.f32", Counter::kFp32, [](float a, float b) { return or_nan(a, b, maximum(a, b)); });
  row(t, "min{,.ftz}.NaN.f32", Counter::kFp32, [](float a, float b) { return or_nan(a, b, minimum(a, b)); });
  float_rows(t, "neg", Counter::kFp32, [](float a) { return -a; });
  float_rows(t, "abs", Counter::kFp32, [](float a) { return __builtin_fabsf(a); });
  row(t, "copysign.f32", Counter::kFp32, [](float a, float b) { return __builtin_copysignf(b, a); });
}

// Two fp32 values in one 64-bit register.
template <class Op, class... S>
HWY_INLINE U64 pairwise(Op op, S... x) {
  const float low = op(as_float(static_cast<U32>(x))...);
  const float high = op(as_float(static_cast<U32>(x >> 32))...);
  return U64{as_bits(high)} << 32 | as_bits(low);
}

void add_packed(OpcodeTable* t) {
  row(t, "add{,.rn}{,.ftz}.f32x2", Counter::kFp32,
      [](U64 a, U64 b) { return pairwise([](float x, float y) { return x + y; }, a, b); });
  row(t, "sub{,.rn}{,.ftz}.f32x2", Counter::kFp32,
      [](U64 a, U64 b) { return pairwise([](float x, float y) { return x - y; }, a, b); });
  row(t, "mul{,.rn}{,.ftz}.f32x2", Counter::kFp32,
      [](U64 a, U64 b) { return pairwise([](float x, float y) { return x * y; }, a, b); });
  row(t, "fma.rn{,.ftz}.f32x2", Counter::kFp32, [](U64 a, U64 b, U64 c) {
    return pairwise([](float x, float y, float z) { return __builtin_fmaf(x, y, z); }, a, b, c);
  });
}

// a goes to the high half, b to the low; and back.
template <class Format>
void add_packing(OpcodeTable* t, const std::string& type) {
  row(t, "cvt.rn{,.satfinite}." + type + "x2.f32", Counter::kConvert,
      [](float a, float b) { return U32{Format::encode(a)} << 16 | Format::encode(b); });
  row(t, "cvt.rn{,.ftz}." + type + ".f32", Counter::kConvert, [](float a) { return Format::encode(a); });
  row(t, "cvt{,.ftz}.f32." + type, Counter::kConvert, [](uint16_t a) { return Format::decode(a); });
}

// The special-function unit's results are within 2 ulp of these, which are rounded once from double.
void add_special(OpcodeTable* t) {
  constexpr Counter kMufu = Counter::kMufu;
  float_rows(t, "ex2.approx", Counter::kEx2, [](float a) { return exp2_once(a); });
  float_rows(t, "lg2.approx", kMufu, [](float a) { return static_cast<float>(std::log2(static_cast<double>(a))); });
  float_rows(t, "rcp.{approx,rn}", kMufu, [](float a) { return 1.0f / a; });
  float_rows(t, "sqrt.{approx,rn}", kMufu, [](float a) { return __builtin_sqrtf(a); });
  float_rows(t, "rsqrt.approx", kMufu,
             [](float a) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a))); });
  float_rows(t, "sin.approx", kMufu, [](float a) { return static_cast<float>(std::sin(static_cast<double>(a))); });
  float_rows(t, "cos.approx", kMufu, [](float a) { return static_cast<float>(std::cos(static_cast<double>(a))); });
  row(t, "tanh.approx.f32", kMufu, [](float a) { return static_cast<float>(std::tanh(static_cast<double>(a))); });
  float_rows(t, "div.{approx,full,rn}", kMufu, [](float a, float b) { return a / b; });
}

template <class T>
void add_compares(OpcodeTable* t, std::string_view types) {
  compare_rows(t, "eq", types, [](T a, T b) { return a == b; });
  compare_rows(t, "ne", types, [](T a, T b) { return a < b || a > b; });
  compare_rows(t, "lt", types, [](T a, T b) { return a < b; });
  compare_rows(t, "le", types, [](T a, T b) { return a <= b; });
  compare_rows(t, "gt", types, [](T a, T b) { return a > b; });
  compare_rows(t, "ge", types, [](T a, T b) { return a >= b; });
  // True also when either is a NaN.
  compare_rows(t, "equ", types, [](T a, T b) { return !(a < b || a > b); });
  compare_rows(t, "neu", types, [](T a, T b) { return a != b; });
  compare_rows(t, "ltu", types, [](T a, T b) { return !(a >= b); });
  compare_rows(t, "leu", types, [](T a, T b) { return !(a > b); });
  compare_rows(t, "gtu", types, [](T a, T b) { return !(a <= b); });
  compare_rows(t, "geu", types, [](T a, T b) { return !(a < b); });
  compare_rows(t, "num", types, [](T a, T b) { return a == a && b == b; });
  compare_rows(t, "nan", types, [](T a, T b) { return a != a || b != b; });
}

void add_double(OpcodeTable* t) {
  constexpr Counter kFp64 = Counter::kFp64;
  row(t, "add{,.rn}.f64", kFp64, [](double a, double b) { return a + b; });
  row(t, "sub{,.rn}.f64", kFp64, [](double a, double b) { return a - b; });
  row(t, "mul{,.rn}.f64", kFp64, [](double a, double b) { return a * b; });
  row(t, "{fma.rn,mad.rn}.f64", kFp64, [](double a, double b, double c) { return __builtin_fma(a, b, c); });
  row(t, "div.rn.f64", kFp64, [](double a, double b) { return a / b; });
  row(t, "rcp.rn.f64", kFp64, [](double a) { return 1.0 / a; });
  row(t, "sqrt.rn.f64", kFp64, [](double a) { return __builtin_sqrt(a); });
  row(t, "max.f64", kFp64, [](double a, double b) { return std::fmax(a, b); });
  row(t, "min.f64", kFp64, [](double a, double b) { return std::fmin(a, b); });
  row(t, "neg.f64", kFp64, [](double a) { return -a; });
  row(t, "abs.f64", kFp64, [](double a) { return __builtin_fabs(a); });
}

void AddFloat(OpcodeTable* t) {
  add_arithmetic(t);
  add_packed(t);
  add_packing<Bf16>(t, "bf16");
  add_packing<F16>(t, "f16");
  add_special(t);
  add_double(t);
  add_compares<float>(t, "{f32,ftz.f32}");
  add_compares<double>(t, "f64");
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::emulator {
HWY_EXPORT(AddFloat);
void add_float_opcodes(OpcodeTable* table) { HWY_DYNAMIC_DISPATCH(AddFloat)(table); }
}  // namespace flashdelta::emulator
#endif
