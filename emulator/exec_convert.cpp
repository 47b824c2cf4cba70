// cvt: between integers, floats of all sizes and packed pairs; cvta.
#include <cmath>

#include "emulator/lanes-inl.hpp"
#include "emulator/numerics.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

constexpr Counter kConvert = Counter::kConvert;

// 8-bit integers lie in 16-bit or 32-bit registers; the row's letter a takes either.
template <class D, class S, bool kSaturate>
void convert_integer(Warp& w, const Instruction& i) {
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    const auto s = static_cast<S>(i.detail == 64 ? w.lanes<U64>(i.operand[1])[l] : w.lanes<U32>(i.operand[1])[l]);
    auto d = static_cast<D>(s);
    if (kSaturate) {
      const auto wide = static_cast<__int128>(s);
      const auto low = static_cast<__int128>(std::numeric_limits<D>::min());
      const auto high = static_cast<__int128>(std::numeric_limits<D>::max());
      d = static_cast<D>(wide < low ? low : wide > high ? high : wide);
    }
    if ((i.flags & kWide) != 0) {
      w.lanes<U64>(i.operand[0])[l] = static_cast<U64>(d);
    } else {
      w.lanes<U32>(i.operand[0])[l] = static_cast<U32>(d);
    }
  }
  propagate(w, i.operand[0], i.operand[1]);
}

template <class D, class S>
void add_integer_pair(OpcodeTable* t, const std::string& d, const std::string& s) {
  const char* form = sizeof(S) == 8 ? "a=q" : "a=r";
  const int32_t width = sizeof(S) == 8 ? 64 : 32;
  t->add("cvt." + d + "." + s, {convert_integer<D, S, false>, form, kConvert, 0, 0, 1, width});
  t->add("cvt.sat." + d + "." + s, {convert_integer<D, S, true>, form, kConvert, 0, 0, 1, width});
}

template <class D>
void add_integers_to(OpcodeTable* t, const std::string& d) {
  add_integer_pair<D, uint8_t>(t, d, "u8");
  add_integer_pair<D, int8_t>(t, d, "s8");
  add_integer_pair<D, uint16_t>(t, d, "u16");
  add_integer_pair<D, int16_t>(t, d, "s16");
  add_integer_pair<D, uint32_t>(t, d, "u32");
  add_integer_pair<D, int32_t>(t, d, "s32");
  add_integer_pair<D, uint64_t>(t, d, "u64");
  add_integer_pair<D, int64_t>(t, d, "s64");
}

template <Rounding kMode>
HWY_INLINE double to_whole(double x) {
  switch (kMode) {
    case Rounding::kNearest: return std::nearbyint(x);
    case Rounding::kZero: return std::trunc(x);
    case Rounding::kDown: return std::floor(x);
    default: return std::ceil(x);
  }
}

// Out of range goes to the nearest end; NaN to 0 (for 64 bits, to the highest bit, which no kernel here asks for).
template <class D>
HWY_INLINE D clamp_to(double x) {
  constexpr D kLow = std::numeric_limits<D>::min(), kHigh = std::numeric_limits<D>::max();
  if (x != x) return 0;
  if (x <= static_cast<double>(kLow)) return kLow;
  if (x >= static_cast<double>(kHigh)) return kHigh;
  return static_cast<D>(x);
}

template <Rounding kMode, class D>
void add_float_to(OpcodeTable* t, const std::string& mode, const std::string& d) {
  row(t, "cvt." + mode + "{,.ftz}{,.sat}." + d + ".f32", kConvert,
      [](float x) { return clamp_to<D>(to_whole<kMode>(x)); });
  row(t, "cvt." + mode + "{,.sat}." + d + ".f64", kConvert, [](double x) { return clamp_to<D>(to_whole<kMode>(x)); });
  row(t, "cvt." + mode + "{,.ftz}{,.sat}." + d + ".f16", kConvert,
      [](uint16_t x) { return clamp_to<D>(to_whole<kMode>(F16::decode(x))); });
  row(t, "cvt." + mode + "{,.sat}." + d + ".bf16", kConvert,
      [](uint16_t x) { return clamp_to<D>(to_whole<kMode>(Bf16::decode(x))); });
}

template <Rounding kMode>
void add_whole_rounding(OpcodeTable* t, const std::string& mode) {
  add_float_to<kMode, int32_t>(t, mode, "s32");
  add_float_to<kMode, uint32_t>(t, mode, "u32");
  add_float_to<kMode, int64_t>(t, mode, "s64");
  add_float_to<kMode, uint64_t>(t, mode, "u64");
  add_float_to<kMode, int16_t>(t, mode, "s16");
  add_float_to<kMode, uint16_t>(t, mode, "u16");
  row(t, "cvt." + mode + "{,.ftz}.f32.f32", kConvert, [](float x) { return static_cast<float>(to_whole<kMode>(x)); });
  row(t, "cvt." + mode + ".f64.f64", kConvert, [](double x) { return to_whole<kMode>(x); });
}

template <class S>
void add_integer_to_floats(OpcodeTable* t, const std::string& s) {
  // A 64-bit integer is rounded once because the compiler's conversions are.
  row(t, "cvt.rn.f32." + s, kConvert, [](S x) { return static_cast<float>(x); });
  row(t, "cvt.rn.f64." + s, kConvert, [](S x) { return static_cast<double>(x); });
  row(t, "cvt.rn.f16." + s, kConvert, [](S x) { return F16::encode(static_cast<double>(x)); });
  row(t, "cvt.rn.bf16." + s, kConvert, [](S x) { return Bf16::encode(static_cast<double>(x)); });
  row(t, "cvt.rz.f32." + s, kConvert, [](S x) { return round_float({static_cast<double>(x), 0}, Rounding::kZero); });
}

HWY_INLINE float relu(float x) { return x > 0 ? x : x != x ? x : 0.0f; }

// Packing: a goes to the high half, b to the low. The forms that every kernel uses are in exec_float.cpp.
template <class Format>
void add_pack(OpcodeTable* t, const std::string& type) {
  row(t, "cvt.rz." + type + "x2.f32", kConvert, [](float a, float b) {
    return U32{Format::encode(static_cast<double>(a), true)} << 16 | Format::encode(static_cast<double>(b), true);
  });
  row(t, "cvt.rn.relu." + type + "x2.f32", kConvert,
      [](float a, float b) { return U32{Format::encode(relu(a))} << 16 | Format::encode(relu(b)); });
  row(t, "cvt.rz{,.ftz}." + type + ".f32", kConvert,
      [](float a) { return Format::encode(static_cast<double>(a), true); });
  row(t, "cvt.rn.relu." + type + ".f32", kConvert, [](float a) { return Format::encode(relu(a)); });
  row(t, "cvt.rn." + type + ".f64", kConvert, [](double a) { return Format::encode(a); });
  row(t, "cvt.f64." + type, kConvert, [](uint16_t a) { return static_cast<double>(Format::decode(a)); });
}

template <class Format>
void add_fp8(OpcodeTable* t, const std::string& type) {
  row(t, "cvt.rn.satfinite{,.relu}." + type + "x2.f32", kConvert, [](float a, float b) {
    return static_cast<uint16_t>(Format::encode_saturated(a) << 8 | Format::encode_saturated(b));
  });
  row(t, "cvt.rn.satfinite." + type + "x2.f16x2", kConvert, [](U32 a) {
    return static_cast<uint16_t>(Format::encode_saturated(F16::decode(a >> 16)) << 8 |
                                 Format::encode_saturated(F16::decode(a & 0xffff)));
  });
  row(t, "cvt.rn.f16x2." + type + "x2", kConvert, [](uint16_t a) {
    return U32{F16::encode(Format::decode(a >> 8))} << 16 | F16::encode(Format::decode(a & 0xff));
  });
}

// The 19 bits of tf32 lie in the top of an fp32 register.
HWY_INLINE U32 to_tf32(float a, bool ties_away) {
  const U32 bits = as_bits(a);
  if (a != a || std::isinf(a)) return bits & ~0x1fffu;
  return (bits + (ties_away ? 0x1000u : 0xfffu + (bits >> 13 & 1))) & ~0x1fffu;
}

template <uint64_t kWindow>
void add_window(OpcodeTable* t, const std::string& space) {
  row(t, "cvta." + space + ".u64", Counter::kMove, [](U64 a) { return a + kWindow; });
  row(t, "cvta.to." + space + ".u64", Counter::kMove, [](U64 a) { return a - kWindow; });
}

void AddConvert(OpcodeTable* t) {
  add_integers_to<uint8_t>(t, "u8");
  add_integers_to<int8_t>(t, "s8");
  add_integers_to<uint16_t>(t, "u16");
  add_integers_to<int16_t>(t, "s16");
  add_integers_to<uint32_t>(t, "u32");
  add_integers_to<int32_t>(t, "s32");
  add_integers_to<uint64_t>(t, "u64");
  add_integers_to<int64_t>(t, "s64");
  add_whole_rounding<Rounding::kNearest>(t, "rni");
  add_whole_rounding<Rounding::kZero>(t, "rzi");
  add_whole_rounding<Rounding::kDown>(t, "rmi");
  add_whole_rounding<Rounding::kUp>(t, "rpi");
  add_integer_to_floats<int32_t>(t, "s32");
  add_integer_to_floats<uint32_t>(t, "u32");
  add_integer_to_floats<int64_t>(t, "s64");
  add_integer_to_floats<uint64_t>(t, "u64");
  add_integer_to_floats<int16_t>(t, "s16");
  add_integer_to_floats<uint16_t>(t, "u16");
  add_pack<Bf16>(t, "bf16");
  add_pack<F16>(t, "f16");
  add_fp8<E4m3>(t, "e4m3");
  add_fp8<E5m2>(t, "e5m2");
  row(t, "cvt.f64.f32", kConvert, [](float a) { return static_cast<double>(a); });
  row(t, "cvt.rn{,.ftz}.f32.f64", kConvert, [](double a) { return static_cast<float>(a); });
  row(t, "cvt.rna.tf32.f32", kConvert, [](float a) { return to_tf32(a, true); });
  row(t, "cvt.rn.tf32.f32", kConvert, [](float a) { return to_tf32(a, false); });
  row(t, "cvt{,.ftz}.sat.f32.f32", kConvert, [](float a) { return a >= 1 ? 1.0f : a > 0 ? a : 0.0f; });
  row(t, "cvt.ftz.f32.f32", kConvert, [](float a) { return flush_subnormal(a); });
  add_window<0>(t, "{global,const}");
  add_window<kSharedWindow>(t, "shared");
  add_window<kLocalWindow>(t, "local");
  add_window<kParameterWindow>(t, "param");
}

}  // namespace HWY_NAMESPACE

void add_convert_opcodes(OpcodeTable* table) { HWY_NAMESPACE::AddConvert(table); }

}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();
