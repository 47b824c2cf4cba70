// Scalar arithmetic that the host has no instruction for: directed rounding, 16- and 8-bit formats, special functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace flashdelta::emulator {

enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp };

// An exact sum as a double and what is left of it.
struct ExactSum {
  double sum = 0;
  double rest = 0;
};

// a * b + c of floats: the product is exact in a double, the two-sum (Knuth) gives the rest.
inline ExactSum exact_fma(double a, double b, double c) {
  const double p = a * b;
  const double s = p + c;
  const double t = s - p;
  const double rest = (p - (s - t)) + (c - t);
  return {s, std::isfinite(s) ? rest : 0};
}

inline float round_float(ExactSum x, Rounding mode) {
  const auto f = static_cast<float>(x.sum);
  if (mode == Rounding::kNearest || !std::isfinite(x.sum)) return f;
  const bool above = f > x.sum || (f == x.sum && x.rest < 0);
  const bool below = f < x.sum || (f == x.sum && x.rest > 0);
  const bool negative = x.sum < 0 || (x.sum == 0 && x.rest < 0);
  const bool down = mode == Rounding::kDown || (mode == Rounding::kZero && !negative);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (down && above) return std::nextafterf(f, -kInfinity);
  if (!down && below) return std::nextafterf(f, kInfinity);
  return f;
}

// The sum as a double whose last bit is set when anything was lost: rounding it again rounds the exact sum once.
inline double round_to_odd(ExactSum x) {
  if (x.rest == 0 || x.sum == 0) return x.sum;
  auto bits = std::bit_cast<uint64_t>(x.sum);
  if ((x.rest < 0) != (x.sum < 0)) --bits;  // towards zero
  return std::bit_cast<double>(bits | 1);
}

inline double power_of_two(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

// A small floating-point format: bits of mantissa without the leading one, smallest normal exponent, largest exponent.
template <int kMantissa, int kMinExponent, int kMaxExponent>
inline double round_to_format(double x, bool to_zero = false) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023;
  const int quantum = (exponent < kMinExponent ? kMinExponent : exponent) - kMantissa;
  const double scaled = x * power_of_two(-quantum);
  const double r = (to_zero ? std::trunc(scaled) : std::nearbyint(scaled)) * power_of_two(quantum);
  const double limit = power_of_two(kMaxExponent + 1);
  if (std::fabs(r) < limit) return r;
  const double largest = limit - power_of_two(kMaxExponent - kMantissa);
  return std::copysign(to_zero ? largest : std::numeric_limits<double>::infinity(), x);
}

// encode rounds to nearest even, and turns every NaN into 0x7fff as the hardware does. The forms for float are free of
// branches, so that 32 lanes become vectors.
struct Bf16 {
  static float decode(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
  static uint16_t encode(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
  static uint16_t encode(double x, bool to_zero = false) {
    if (std::isnan(x)) return 0x7fff;
    const auto f = static_cast<float>(round_to_format<7, -126, 127>(x, to_zero));
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
  }
};

struct F16 {
  static float decode(uint32_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;  // fp16's bias to fp32's, subnormals too
    const uint32_t special = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : std::bit_cast<uint32_t>(value)));
  }
  static uint16_t encode(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    const uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    // Below 2^-14, adding 0.5 rounds at the format's smallest step, 2^-24.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? small : normal;
    const uint32_t rounded = magnitude >= 0x477ff000u ? 0x7c00u : finite;  // 65520 and up
    return static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : sign | rounded);
  }
  static uint16_t encode(double x, bool to_zero = false) {
    if (std::isnan(x)) return 0x7fff;
    return encode(static_cast<float>(round_to_format<10, -14, 15>(x, to_zero)));  // exact from here on
  }
};

// e4m3 has no infinity: 0x7f is NaN, 448 the largest value; e5m2 is a short fp16.
struct E4m3 {
  static float decode(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fu;
    const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
    if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
    const int exponent = static_cast<int>(magnitude >> 3);
    const auto mantissa = static_cast<float>(magnitude & 7);
    return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  static uint32_t encode_saturated(double x) {
    if (std::isnan(x)) return 0x7f;
    const uint32_t sign = std::signbit(x) ? 0x80 : 0;
    double r = std::fabs(round_to_format<3, -6, 8>(x));
    if (r > 448) r = 448;
    if (r == 0) return sign;
    const int exponent = std::ilogb(r);
    if (exponent < -6) return sign | static_cast<uint32_t>(std::ldexp(r, 9));
    return sign | static_cast<uint32_t>(exponent + 7) << 3 | (static_cast<uint32_t>(std::ldexp(r, 3 - exponent)) & 7);
  }
};

struct E5m2 {
  static float decode(uint32_t bits) { return F16::decode((bits & 0xff) << 8); }
  static uint32_t encode_saturated(double x) {
    if (std::isnan(x)) return 0x7f;
    const double r = round_to_format<2, -14, 15>(x);
    const double cut = std::fabs(r) > 57344 ? std::copysign(57344.0, x) : r;
    return static_cast<uint32_t>(F16::encode(cut)) >> 8;
  }
};

// 2^x in double arithmetic, rounded once: Taylor's series of 2^f on |f| <= 1/2 is exact to 1e-10.
inline float exp2_once(float x) {
  const float clamped = x > 200.0f ? 200.0f : x < -200.0f ? -200.0f : x;
  const float whole = std::nearbyint(clamped);
  const double f = (static_cast<double>(clamped) - static_cast<double>(whole)) * 0.693147180559945309417;
  double p = 1.0 / 362880;
  p = p * f + 1.0 / 40320;
  p = p * f + 1.0 / 5040;
  p = p * f + 1.0 / 720;
  p = p * f + 1.0 / 120;
  p = p * f + 1.0 / 24;
  p = p * f + 1.0 / 6;
  p = p * f + 0.5;
  p = p * f + 1.0;
  p = p * f + 1.0;
  const auto scale = std::bit_cast<double>(static_cast<uint64_t>(static_cast<int32_t>(whole) + 1023) << 52);
  return x != x ? x : static_cast<float>(p * scale);
}

inline float flush_subnormal(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

}  // namespace flashdelta::emulator
