// Rows of floating-point opcodes, with their .ftz and .sat forms.
#if defined(FLASHDELTA_EMULATOR_FLOAT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHDELTA_EMULATOR_FLOAT_INL
#undef FLASHDELTA_EMULATOR_FLOAT_INL
#else
#define FLASHDELTA_EMULATOR_FLOAT_INL
#endif

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

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
