// Directed rounding, special functions other than ex2, and fp64.
#include <cmath>

#include "emulator/float-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

template <Rounding kMode>
void directed_rows(OpcodeTable* t, const std::string& mode) {
  float_rows(t, "add." + mode, Counter::kFp32, [](float a, float b) { return round_float(exact_fma(1, a, b), kMode); });
  float_rows(t, "sub." + mode, Counter::kFp32,
             [](float a, float b) { return round_float(exact_fma(1, a, -b), kMode); });
  float_rows(t, "mul." + mode, Counter::kFp32, [](float a, float b) { return round_float(exact_fma(a, b, 0), kMode); });
  float_rows(t, "fma." + mode, Counter::kFp32,
             [](float a, float b, float c) { return round_float(exact_fma(a, b, c), kMode); });
}

// The special-function unit's results are within 2 ulp of these, which are rounded once from double.
void add_special(OpcodeTable* t) {
  constexpr Counter kMufu = Counter::kMufu;
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

void AddRareFloat(OpcodeTable* t) {
  directed_rows<Rounding::kZero>(t, "rz");
  directed_rows<Rounding::kDown>(t, "rm");
  directed_rows<Rounding::kUp>(t, "rp");
  add_special(t);
  add_double(t);
  add_compares<double>(t, "f64");
}

}  // namespace HWY_NAMESPACE

void add_rare_float_opcodes(OpcodeTable* table) { HWY_NAMESPACE::AddRareFloat(table); }

}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();
