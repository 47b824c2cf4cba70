// The fp32 arithmetic that every kernel is made of. Each operation rounds once, as IEEE says; NaNs keep the host's
// payload. What is rarer is in exec_float_rare.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulator/exec_float.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <type_traits>

#include "emulator/float-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

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

void add_arithmetic(OpcodeTable* t) {
  saturating_rows(t, "add{,.rn}", [](float a, float b) { return a + b; });
  saturating_rows(t, "sub{,.rn}", [](float a, float b) { return a - b; });
  saturating_rows(t, "mul{,.rn}", [](float a, float b) { return a * b; });
  saturating_rows(t, "{fma.rn,mad.rn,mad}", [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  float_rows(t, "ex2.approx", Counter::kEx2, [](float a) { return exp2_once(a); });
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

// The largest finite number instead of infinity; NaN stays NaN.
template <class Format>
HWY_INLINE float finite(float x) {
  constexpr float most = std::is_same_v<Format, F16> ? 65504.0f : 0x1.FEp127f;
  return x > most ? most : x < -most ? -most : x;
}

// a goes to the high half, b to the low; and back.
template <class Format>
void add_packing(OpcodeTable* t, const std::string& type) {
  row(t, "cvt.rn." + type + "x2.f32", Counter::kConvert,
      [](float a, float b) { return U32{Format::encode(a)} << 16 | Format::encode(b); });
  row(t, "cvt.rn.satfinite." + type + "x2.f32", Counter::kConvert, [](float a, float b) {
    return U32{Format::encode(finite<Format>(a))} << 16 | Format::encode(finite<Format>(b));
  });
  row(t, "cvt.rn{,.ftz}." + type + ".f32", Counter::kConvert, [](float a) { return Format::encode(a); });
  row(t, "cvt{,.ftz}.f32." + type, Counter::kConvert, [](uint16_t a) { return Format::decode(a); });
}

void AddFloat(OpcodeTable* t) {
  add_arithmetic(t);
  add_packed(t);
  add_packing<Bf16>(t, "bf16");
  add_packing<F16>(t, "f16");
  add_compares<float>(t, "{f32,ftz.f32}");
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
