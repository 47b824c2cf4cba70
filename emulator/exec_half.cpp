// fp16 and bf16 arithmetic, one value or two in a register. Each result is rounded once.
#include <cmath>

#include "emulator/lanes-inl.hpp"
#include "emulator/numerics.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

// The operation works on doubles and its result is rounded to the format.
template <class Format, class Op>
struct One {
  template <class... S>
  uint16_t operator()(S... x) const {
    return Format::encode(Op{}(static_cast<double>(Format::decode(x & 0xffff))...));
  }
};

template <class Format, class Op>
struct Two {
  template <class... S>
  U32 operator()(S... x) const {
    return One<Format, Op>{}(x...) | U32{One<Format, Op>{}((x >> 16)...)} << 16;
  }
};

template <class Format, class Op, class... S>
void add_rows(OpcodeTable* t, const std::string& name, const std::string& type, Counter counter,
              double (Op::*)(S...) const) {
  const std::string one{'h', '=', (static_cast<void>(sizeof(S)), 'h')...};
  const std::string two{'r', '=', (static_cast<void>(sizeof(S)), 'r')...};
  t->add(name + "." + type,
         {elementwise<One<Format, Op>, uint16_t, std::conditional_t<true, uint16_t, S>...>, one, counter});
  t->add(name + "." + type + "x2",
         {elementwise<Two<Format, Op>, U32, std::conditional_t<true, U32, S>...>, two, counter});
}

// Rows for f16, f16x2, bf16 and bf16x2; fp16's take .ftz as well (which no bf16 or fp16 kernel can tell from without).
template <class Op>
void half_rows(OpcodeTable* t, const std::string& name, Counter counter, Op) {
  add_rows<F16, Op>(t, name + "{,.ftz}", "f16", counter, &Op::operator());
  add_rows<Bf16, Op>(t, name, "bf16", counter, &Op::operator());
}

template <class Format>
void add_half_compares(OpcodeTable* t, std::string_view type) {
  using H = uint16_t;
  compare_rows(t, "eq", type, [](H a, H b) { return Format::decode(a) == Format::decode(b); });
  compare_rows(t, "neu", type, [](H a, H b) { return Format::decode(a) != Format::decode(b); });
  compare_rows(t, "lt", type, [](H a, H b) { return Format::decode(a) < Format::decode(b); });
  compare_rows(t, "le", type, [](H a, H b) { return Format::decode(a) <= Format::decode(b); });
  compare_rows(t, "gt", type, [](H a, H b) { return Format::decode(a) > Format::decode(b); });
  compare_rows(t, "ge", type, [](H a, H b) { return Format::decode(a) >= Format::decode(b); });
}

double larger(double a, double b) {
  if (a == b) return std::signbit(a) ? b : a;
  return std::fmax(a, b);
}
double smaller(double a, double b) {
  if (a == b) return std::signbit(a) ? a : b;
  return std::fmin(a, b);
}

void AddHalf(OpcodeTable* t) {
  constexpr Counter kFp16 = Counter::kFp16;
  half_rows(t, "add{,.rn}", kFp16, [](double a, double b) { return round_to_odd(exact_fma(1, a, b)); });
  half_rows(t, "sub{,.rn}", kFp16, [](double a, double b) { return round_to_odd(exact_fma(1, a, -b)); });
  half_rows(t, "mul{,.rn}", kFp16, [](double a, double b) { return a * b; });
  half_rows(t, "fma.rn", kFp16, [](double a, double b, double c) { return round_to_odd(exact_fma(a, b, c)); });
  half_rows(t, "fma.rn.relu", kFp16,
            [](double a, double b, double c) { return larger(round_to_odd(exact_fma(a, b, c)), 0); });
  half_rows(t, "max", kFp16, [](double a, double b) { return larger(a, b); });
  half_rows(t, "min", kFp16, [](double a, double b) { return smaller(a, b); });
  half_rows(t, "max.NaN", kFp16, [](double a, double b) { return a != a ? a : b != b ? b : larger(a, b); });
  half_rows(t, "min.NaN", kFp16, [](double a, double b) { return a != a ? a : b != b ? b : smaller(a, b); });
  half_rows(t, "ex2.approx", Counter::kEx2, [](double a) { return std::exp2(a); });
  t->add("ex2.approx.ftz.bf16", *t->find("ex2.approx.bf16"));
  t->add("ex2.approx.ftz.bf16x2", *t->find("ex2.approx.bf16x2"));
  half_rows(t, "tanh.approx", Counter::kMufu, [](double a) { return std::tanh(a); });
  // On the bits, so that NaNs and zeros keep theirs.
  row(t, "neg{,.ftz}.{f16,bf16}", kFp16, [](uint16_t a) -> uint16_t { return a ^ 0x8000; });
  row(t, "abs{,.ftz}.{f16,bf16}", kFp16, [](uint16_t a) -> uint16_t { return a & 0x7fff; });
  row(t, "neg{,.ftz}.{f16x2,bf16x2}", kFp16, [](U32 a) { return a ^ 0x80008000u; });
  row(t, "abs{,.ftz}.{f16x2,bf16x2}", kFp16, [](U32 a) { return a & 0x7fff7fffu; });
  add_half_compares<F16>(t, "f16");
  add_half_compares<Bf16>(t, "bf16");
}

}  // namespace HWY_NAMESPACE

void add_half_opcodes(OpcodeTable* table) { HWY_NAMESPACE::AddHalf(table); }

}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();
