// Integer arithmetic, logic, bit fields, comparisons, selection and moves.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulator/exec_integer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "emulator/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

using U16 = uint16_t;
using S16 = int16_t;
using S32 = int32_t;
using S64 = int64_t;

// Shift amounts are clamped, as PTX says.
HWY_INLINE U32 shift_left(U32 a, U32 n) { return n > 31 ? 0 : a << n; }
HWY_INLINE U32 shift_right(U32 a, U32 n) { return n > 31 ? 0 : a >> n; }
HWY_INLINE U32 shift_right_signed(U32 a, U32 n) { return static_cast<U32>(static_cast<S32>(a) >> std::min(n, 31u)); }

HWY_INLINE U32 bit_field_insert(U32 a, U32 b, U32 position, U32 length) {
  position &= 255;
  length &= 255;
  const U32 ones = length > 31 ? ~0u : (1u << length) - 1;
  const U32 field = shift_left(ones, position);
  return (shift_left(a, position) & field) | (b & ~field);
}

template <class T>  // signed: the field's top bit is repeated above it
HWY_INLINE T bit_field_extract(T value, U32 position, U32 length) {
  using Bits = std::make_unsigned_t<T>;
  constexpr U32 kBits = 8 * sizeof(T);
  const auto a = static_cast<Bits>(value);
  position &= 255;
  length &= 255;
  if (length == 0) return 0;
  const bool negative = std::is_signed_v<T> && (a >> std::min(position + length - 1, kBits - 1) & 1) != 0;
  Bits field = position >= kBits ? 0 : a >> position;
  if (length < kBits) field &= (Bits{1} << length) - 1;
  const U32 known = std::min(length, position >= kBits ? 0 : kBits - position);
  if (negative && known < kBits) field |= ~Bits{0} << known;
  return static_cast<T>(field);
}

HWY_INLINE U32 permute_bytes(U32 a, U32 b, U32 selector) {
  const U64 bytes = U64{b} << 32 | a;
  U32 result = 0;
  for (U32 k = 0; k < 4; ++k) {
    const U32 pick = selector >> (4 * k) & 15;
    U32 byte = static_cast<U32>(bytes >> (8 * (pick & 7))) & 255;
    if ((pick & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * k);
  }
  return result;
}

void logic3(Warp& w, const Instruction& i) {
  U32* d = w.lanes<U32>(i.operand[0]);
  const U32 *a = w.lanes<U32>(i.operand[1]), *b = w.lanes<U32>(i.operand[2]), *c = w.lanes<U32>(i.operand[3]);
  const U32 table = i.operand[4];
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    U32 r = 0;
    for (U32 k = 0; k < 8; ++k) {
      if ((table >> k & 1) == 0) continue;
      r |= ((k & 4) != 0 ? a[l] : ~a[l]) & ((k & 2) != 0 ? b[l] : ~b[l]) & ((k & 1) != 0 ? c[l] : ~c[l]);
    }
    d[l] = r;
  }
  propagate(w, i.operand[0], i.operand[1], i.operand[2], i.operand[3]);
}

void insert_field(Warp& w, const Instruction& i) {
  U32* d = w.lanes<U32>(i.operand[0]);
  const U32 *a = w.lanes<U32>(i.operand[1]), *b = w.lanes<U32>(i.operand[2]);
  const U32 *position = w.lanes<U32>(i.operand[3]), *length = w.lanes<U32>(i.operand[4]);
  for (U32 l = 0; l < 32; ++l) {
    if (in(w.mask, l)) d[l] = bit_field_insert(a[l], b[l], position[l], length[l]);
  }
  propagate(w, i.operand[0], i.operand[1], i.operand[2], i.operand[3], i.operand[4]);
}

// d = p ? a : b; only the chosen side's definedness matters.
template <class T>
void select(Warp& w, const Instruction& i) {
  T* d = w.lanes<T>(i.operand[0]);
  const T *a = w.lanes<T>(i.operand[1]), *b = w.lanes<T>(i.operand[2]);
  const U32 p = w.predicate_bits(i.operand[3]);
  if (w.mask == kAllLanes) {
#pragma GCC ivdep
    for (U32 l = 0; l < 32; ++l) d[l] = in(p, l) ? a[l] : b[l];
  } else {
    for (U32 l = 0; l < 32; ++l) {
      if (in(w.mask, l)) d[l] = in(p, l) ? a[l] : b[l];
    }
  }
  const U32 pa = w.poison[i.operand[1]] & p, pb = w.poison[i.operand[2]] & ~p;
  const U32 pp = w.predicate_poison[i.operand[3] & 0x7fffffffu];
  U32& poison = w.poison[i.operand[0]];
  const U32 bad = (pa | pb | pp) & w.mask;
  if ((bad | poison) == 0) return;
  if (bad != 0) {
    w.origin[i.operand[0]] = (pp & w.mask) != 0   ? w.predicate_origin[i.operand[3] & 0x7fffffffu]
                             : (pa & w.mask) != 0 ? w.origin[i.operand[1]]
                                                  : w.origin[i.operand[2]];
  }
  poison = (poison & ~w.mask) | bad;
}

// mov.b32 {lo, hi}, r and mov.b32 r, {lo, hi}; likewise for 64 bits.
template <class From, U32 kParts>
void unpack(Warp& w, const Instruction& i) {
  constexpr U32 kBits = 8 * sizeof(From) / kParts;
  const From* a = w.lanes<From>(i.operand[kParts]);
  for (U32 k = 0; k < kParts; ++k) {
    U32* d = w.lanes<U32>(i.operand[k]);
    for (U32 l = 0; l < 32; ++l) {
      if (in(w.mask, l)) d[l] = static_cast<U32>(a[l] >> (kBits * k)) & (kBits == 32 ? ~0u : (1u << kBits) - 1);
    }
    propagate(w, i.operand[k], i.operand[kParts]);
  }
}

void pack_four16(Warp& w, const Instruction& i) {
  U64* d = w.lanes<U64>(i.operand[0]);
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    U64 x = 0;
    for (U32 k = 0; k < 4; ++k) x |= U64{w.lanes<U32>(i.operand[1 + k])[l] & 0xffff} << (16 * k);
    d[l] = x;
  }
  propagate(w, i.operand[0], i.operand[1], i.operand[2], i.operand[3], i.operand[4]);
}

void move_predicate(Warp& w, const Instruction& i) {
  const U32 a = i.operand[1] & 0x7fffffffu;
  write_predicate(w, i.operand[0], w.predicate_bits(i.operand[1]));
  poison_predicate(w, i.operand[0], w.predicate_poison[a], w.predicate_origin[a]);
}

void not_predicate(Warp& w, const Instruction& i) {
  const U32 a = i.operand[1] & 0x7fffffffu;
  write_predicate(w, i.operand[0], ~w.predicate_bits(i.operand[1]));
  poison_predicate(w, i.operand[0], w.predicate_poison[a], w.predicate_origin[a]);
}

void logic_predicate(Warp& w, const Instruction& i) {
  const U32 a = w.predicate_bits(i.operand[1]), b = w.predicate_bits(i.operand[2]);
  const U32 ia = i.operand[1] & 0x7fffffffu, ib = i.operand[2] & 0x7fffffffu;
  const U32 pa = w.predicate_poison[ia], pb = w.predicate_poison[ib];
  const U32 decided = i.detail == 0 ? (~a & ~pa) | (~b & ~pb) : i.detail == 1 ? (a & ~pa) | (b & ~pb) : 0;
  const Origin origin = pa != 0 ? w.predicate_origin[ia] : w.predicate_origin[ib];
  write_predicate(w, i.operand[0], i.detail == 0 ? a & b : i.detail == 1 ? a | b : a ^ b);
  poison_predicate(w, i.operand[0], (pa | pb) & ~decided, origin);
}

// mov from %clock: a count of instructions, the same in every run of a schedule.
void read_clock(Warp& w, const Instruction& i) {
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    if ((i.flags & kWide) != 0) {
      w.lanes<U64>(i.operand[0])[l] = w.block->clock;
    } else {
      w.lanes<U32>(i.operand[0])[l] = static_cast<U32>(w.block->clock);
    }
  }
  set_defined(w, i.operand[0]);
}

template <class T>
void add_compare_rows(OpcodeTable* t, std::string_view types) {
  compare_rows(t, "eq", types, [](T a, T b) { return a == b; });
  compare_rows(t, "ne", types, [](T a, T b) { return a != b; });
  compare_rows(t, "{lt,lo}", types, [](T a, T b) { return a < b; });
  compare_rows(t, "{le,ls}", types, [](T a, T b) { return a <= b; });
  compare_rows(t, "{gt,hi}", types, [](T a, T b) { return a > b; });
  compare_rows(t, "{ge,hs}", types, [](T a, T b) { return a >= b; });
}

template <class T, T kDecides, class Op>
void bitwise_row(OpcodeTable* t, std::string_view name, Op) {
  const char letter = Lane<T>::kLetter;
  t->add(name, {bitwise<Op, T, kDecides>, {letter, '=', letter, letter}, Counter::kInteger});
}

void add_logic_rows(OpcodeTable* t) {
  constexpr Counter kInt = Counter::kInteger;
  bitwise_row<U32, 0>(t, "and.b32", [](U32 a, U32 b) { return a & b; });
  bitwise_row<U32, ~U32{0}>(t, "or.b32", [](U32 a, U32 b) { return a | b; });
  row(t, "xor.b32", kInt, [](U32 a, U32 b) -> U32 { return a ^ b; });
  row(t, "not.b32", kInt, [](U32 a) -> U32 { return ~a; });
  row(t, "cnot.b32", kInt, [](U32 a) -> U32 { return U32{a == 0}; });
  bitwise_row<U64, 0>(t, "and.b64", [](U64 a, U64 b) { return a & b; });
  bitwise_row<U64, ~U64{0}>(t, "or.b64", [](U64 a, U64 b) { return a | b; });
  row(t, "xor.b64", kInt, [](U64 a, U64 b) -> U64 { return a ^ b; });
  row(t, "not.b64", kInt, [](U64 a) -> U64 { return ~a; });
  row(t, "and.b16", kInt, [](U16 a, U16 b) -> U16 { return a & b; });
  row(t, "or.b16", kInt, [](U16 a, U16 b) -> U16 { return (a | b); });
  row(t, "xor.b16", kInt, [](U16 a, U16 b) -> U16 { return (a ^ b); });
  row(t, "not.b16", kInt, [](U16 a) -> U16 { return ~a; });
  row(t, "shl.b32", kInt, [](U32 a, U32 b) { return shift_left(a, b); });
  row(t, "shr.{u32,b32}", kInt, [](U32 a, U32 b) { return shift_right(a, b); });
  row(t, "shr.s32", kInt, [](U32 a, U32 b) { return shift_right_signed(a, b); });
  row(t, "shl.b64", kInt, [](U64 a, U32 n) -> U64 { return n > 63 ? 0 : a << n; });
  row(t, "shr.{u64,b64}", kInt, [](U64 a, U32 n) -> U64 { return n > 63 ? 0 : a >> n; });
  row(t, "shr.s64", kInt, [](U64 a, U32 n) -> U64 { return U64(S64(a) >> std::min(n, 63u)); });
  row(t, "shl.b16", kInt, [](U16 a, U32 n) -> U16 { return n > 15 ? 0 : (a << n); });
  row(t, "shr.{u16,b16}", kInt, [](U16 a, U32 n) -> U16 { return n > 15 ? 0 : a >> n; });
  row(t, "shr.s16", kInt, [](U16 a, U32 n) -> U16 { return U32(S16(a) >> std::min(n, 15u)); });
  row(t, "shf.l.wrap.b32", kInt, [](U32 a, U32 b, U32 n) -> U32 { return U32((U64{b} << 32 | a) << (n & 31) >> 32); });
  row(t, "shf.r.wrap.b32", kInt, [](U32 a, U32 b, U32 n) -> U32 { return U32((U64{b} << 32 | a) >> (n & 31)); });
  row(t, "shf.l.clamp.b32", kInt,
      [](U32 a, U32 b, U32 n) -> U32 { return U32((U64{b} << 32 | a) << std::min(n, 32u) >> 32); });
  row(t, "shf.r.clamp.b32", kInt,
      [](U32 a, U32 b, U32 n) -> U32 { return U32((U64{b} << 32 | a) >> std::min(n, 32u)); });
  t->add("lop3.b32", logic3, "r=rrrl", kInt);
  row(t, "prmt.b32", kInt, [](U32 a, U32 b, U32 c) { return permute_bytes(a, b, c); });
  t->add("bfi.b32", insert_field, "r=rrrr", kInt);
  row(t, "bfe.u32", kInt, [](U32 a, U32 b, U32 c) { return bit_field_extract(a, b, c); });
  row(t, "bfe.s32", kInt, [](S32 a, U32 b, U32 c) { return bit_field_extract(a, b, c); });
  row(t, "bfe.u64", kInt, [](U64 a, U32 b, U32 c) { return bit_field_extract(a, b, c); });
  row(t, "bfe.s64", kInt, [](S64 a, U32 b, U32 c) { return bit_field_extract(a, b, c); });
  row(t, "popc.b32", kInt, [](U32 a) -> U32 { return U32(std::popcount(a)); });
  row(t, "popc.b64", kInt, [](U64 a) -> U32 { return U32(std::popcount(a)); });
  row(t, "clz.b32", kInt, [](U32 a) -> U32 { return U32(std::countl_zero(a)); });
  row(t, "clz.b64", kInt, [](U64 a) -> U32 { return U32(std::countl_zero(a)); });
  row(t, "bfind.u32", kInt, [](U32 a) -> U32 { return a == 0 ? ~0u : 31u - U32(std::countl_zero(a)); });
  row(t, "bfind.shiftamt.u32", kInt, [](U32 a) -> U32 { return a == 0 ? ~0u : U32(std::countl_zero(a)); });
  row(t, "brev.b32", kInt, [](U32 a) -> U32 {
    U32 r = 0;
    for (U32 k = 0; k < 32; ++k) r |= (a >> k & 1) << (31 - k);
    return r;
  });
}

void add_arithmetic_rows(OpcodeTable* t) {
  constexpr Counter kInt = Counter::kInteger;
  row(t, "add.{s32,u32}", kInt, [](U32 a, U32 b) -> U32 { return a + b; });
  row(t, "sub.{s32,u32}", kInt, [](U32 a, U32 b) -> U32 { return a - b; });
  row(t, "add.{s64,u64}", kInt, [](U64 a, U64 b) -> U64 { return a + b; });
  row(t, "sub.{s64,u64}", kInt, [](U64 a, U64 b) -> U64 { return a - b; });
  row(t, "add.{s16,u16}", kInt, [](U16 a, U16 b) -> U16 { return (a + b); });
  row(t, "sub.{s16,u16}", kInt, [](U16 a, U16 b) -> U16 { return (a - b); });
  row(t, "mul.lo.{s16,u16}", kInt, [](U16 a, U16 b) -> U16 { return (a * b); });
  row(t, "mad.lo.{s16,u16}", kInt, [](U16 a, U16 b, U16 c) -> U16 { return (a * b + c); });
  row(t, "mul.wide.u16", kInt, [](U16 a, U16 b) -> U32 { return a * b; });
  row(t, "mul.wide.s16", kInt, [](U16 a, U16 b) -> U32 { return U32(S16(a) * S16(b)); });
  row(t, "mul.lo.{s32,u32}", kInt, [](U32 a, U32 b) -> U32 { return a * b; });
  row(t, "mul.hi.u32", kInt, [](U32 a, U32 b) -> U32 { return U32(U64{a} * b >> 32); });
  row(t, "mul.hi.s32", kInt, [](U32 a, U32 b) -> U32 { return U32(U64(S64(S32(a)) * S32(b)) >> 32); });
  row(t, "mul.wide.u32", kInt, [](U32 a, U32 b) -> U64 { return U64{a} * b; });
  row(t, "mul.wide.s32", kInt, [](U32 a, U32 b) -> U64 { return U64(S64(S32(a)) * S32(b)); });
  row(t, "mul.lo.{s64,u64}", kInt, [](U64 a, U64 b) -> U64 { return a * b; });
  row(t, "mul.hi.u64", kInt, [](U64 a, U64 b) -> U64 { return U64(static_cast<unsigned __int128>(a) * b >> 64); });
  row(t, "mul.hi.s64", kInt, [](U64 a, U64 b) -> U64 { return U64(static_cast<__int128>(S64(a)) * S64(b) >> 64); });
  row(t, "mul24.lo.{s32,u32}", kInt, [](U32 a, U32 b) -> U32 { return (a << 8 >> 8) * (b << 8 >> 8); });
  row(t, "mad.lo.{s32,u32}", kInt, [](U32 a, U32 b, U32 c) -> U32 { return a * b + c; });
  row(t, "mad.hi.u32", kInt, [](U32 a, U32 b, U32 c) -> U32 { return U32(U64{a} * b >> 32) + c; });
  row(t, "mad.lo.{s64,u64}", kInt, [](U64 a, U64 b, U64 c) -> U64 { return a * b + c; });
  row(t, "mad.wide.u32", kInt, [](U32 a, U32 b, U64 c) -> U64 { return U64{a} * b + c; });
  row(t, "mad.wide.s32", kInt, [](U32 a, U32 b, U64 c) -> U64 { return U64(S64(S32(a)) * S32(b)) + c; });
  row(t, "mad.wide.u16", kInt, [](U16 a, U16 b, U32 c) -> U32 { return a * b + c; });
  row(t, "sad.u32", kInt, [](U32 a, U32 b, U32 c) -> U32 { return c + (a > b ? a - b : b - a); });
  // Division by zero has no defined result; hardware gives all ones.
  row(t, "div.u32", kInt, [](U32 a, U32 b) -> U32 { return b == 0 ? ~0u : a / b; });
  row(t, "rem.u32", kInt, [](U32 a, U32 b) -> U32 { return b == 0 ? a : a % b; });
  row(t, "div.s32", kInt, [](U32 a, U32 b) -> U32 { return b == 0 ? ~0u : b == ~0u ? 0 - a : U32(S32(a) / S32(b)); });
  row(t, "rem.s32", kInt, [](U32 a, U32 b) -> U32 { return b == 0 ? a : b == ~0u ? 0 : U32(S32(a) % S32(b)); });
  row(t, "div.u64", kInt, [](U64 a, U64 b) -> U64 { return b == 0 ? ~U64{0} : a / b; });
  row(t, "rem.u64", kInt, [](U64 a, U64 b) -> U64 { return b == 0 ? a : a % b; });
  row(t, "div.s64", kInt, [](U64 a, U64 b) -> U64 {
    return b == 0 ? ~U64{0} : b == ~U64{0} ? 0 - a : U64(S64(a) / S64(b));
  });
  row(t, "rem.s64", kInt, [](U64 a, U64 b) -> U64 { return b == 0 ? a : b == ~U64{0} ? 0 : U64(S64(a) % S64(b)); });
  row(t, "div.u16", kInt, [](U16 a, U16 b) -> U16 { return b == 0 ? 0xffffu : a / b; });
  row(t, "rem.u16", kInt, [](U16 a, U16 b) -> U16 { return b == 0 ? a : a % b; });
  row(t, "min.s32", kInt, [](U32 a, U32 b) -> U32 { return U32(std::min(S32(a), S32(b))); });
  row(t, "max.s32", kInt, [](U32 a, U32 b) -> U32 { return U32(std::max(S32(a), S32(b))); });
  row(t, "min.u32", kInt, [](U32 a, U32 b) -> U32 { return std::min(a, b); });
  row(t, "max.u32", kInt, [](U32 a, U32 b) -> U32 { return std::max(a, b); });
  row(t, "min.s64", kInt, [](U64 a, U64 b) -> U64 { return U64(std::min(S64(a), S64(b))); });
  row(t, "max.s64", kInt, [](U64 a, U64 b) -> U64 { return U64(std::max(S64(a), S64(b))); });
  row(t, "min.u64", kInt, [](U64 a, U64 b) -> U64 { return std::min(a, b); });
  row(t, "max.u64", kInt, [](U64 a, U64 b) -> U64 { return std::max(a, b); });
  row(t, "min.s16", kInt, [](U16 a, U16 b) -> U16 { return U32(std::min(S16(a), S16(b))); });
  row(t, "max.s16", kInt, [](U16 a, U16 b) -> U16 { return U32(std::max(S16(a), S16(b))); });
  row(t, "min.u16", kInt, [](U16 a, U16 b) -> U16 { return std::min(a, b); });
  row(t, "max.u16", kInt, [](U16 a, U16 b) -> U16 { return std::max(a, b); });
  row(t, "neg.s32", kInt, [](U32 a) -> U32 { return 0 - a; });
  row(t, "neg.s64", kInt, [](U64 a) -> U64 { return 0 - a; });
  row(t, "neg.s16", kInt, [](U16 a) -> U16 { return (0 - a); });
  row(t, "abs.s32", kInt, [](U32 a) -> U32 { return S32(a) < 0 ? 0 - a : a; });
  row(t, "abs.s64", kInt, [](U64 a) -> U64 { return S64(a) < 0 ? 0 - a : a; });
}

void AddInteger(OpcodeTable* t) {
  add_logic_rows(t);
  add_arithmetic_rows(t);
  add_compare_rows<U32>(t, "{u32,b32}");
  add_compare_rows<S32>(t, "s32");
  add_compare_rows<U64>(t, "{u64,b64}");
  add_compare_rows<S64>(t, "s64");
  add_compare_rows<U16>(t, "{u16,b16}");
  add_compare_rows<S16>(t, "s16");
  t->add("selp.{b32,u32,s32,f32}", {select<U32>, "r=rrp", Counter::kMove});
  t->add("selp.{b16,u16,s16}", {select<U32>, "h=hhp", Counter::kMove});
  t->add("selp.{b64,u64,s64,f64}", {select<U64>, "q=qqp", Counter::kMove});
  row(t, "mov.{u32,s32,f32}", Counter::kMove, [](U32 a) -> U32 { return a; });
  row(t, "mov.{u16,s16,b16}", Counter::kMove, [](U16 a) -> U16 { return a; });
  row(t, "mov.{u64,s64,f64}", Counter::kMove, [](U64 a) -> U64 { return a; });
  t->add("mov.pred", move_predicate, "p=p", Counter::kMove);
  row(t, "mov.b32", Counter::kMove, [](U32 a) -> U32 { return a; });
  row(t, "mov.b64", Counter::kMove, [](U64 a) -> U64 { return a; });
  row(t, "cvt.{s64,u64}.s32", Counter::kConvert, [](S32 a) { return S64{a}; });
  row(t, "cvt.{s64,u64}.u32", Counter::kConvert, [](U32 a) { return U64{a}; });
  row(t, "cvt.{u32,s32}.{u64,s64}", Counter::kConvert, [](U64 a) { return static_cast<U32>(a); });
  row(t, "mov.b32.pack", Counter::kMove, [](U16 a, U16 b) { return a | U32{b} << 16; });
  t->add("mov.b32.unpack", unpack<U32, 2>, "hh=r", Counter::kMove);
  row(t, "mov.b64.pack", Counter::kMove, [](U32 a, U32 b) { return U64{b} << 32 | a; });
  t->add("mov.b64.unpack", unpack<U64, 2>, "rr=q", Counter::kMove);
  t->add("mov.b64.pack4", pack_four16, "q=hhhh", Counter::kMove);
  t->add("mov.b64.unpack4", unpack<U64, 4>, "hhhh=q", Counter::kMove);
  t->add("mov.clock", read_clock, "a=r", Counter::kMove);
  t->add("not.pred", not_predicate, "p=p", Counter::kPredicate);
  t->add("and.pred", {logic_predicate, "p=pp", Counter::kPredicate, 0, 0, 1, 0});
  t->add("or.pred", {logic_predicate, "p=pp", Counter::kPredicate, 0, 0, 1, 1});
  t->add("xor.pred", {logic_predicate, "p=pp", Counter::kPredicate, 0, 0, 1, 2});
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::emulator {
HWY_EXPORT(AddInteger);
void add_integer_opcodes(OpcodeTable* table) { HWY_DYNAMIC_DISPATCH(AddInteger)(table); }
}  // namespace flashdelta::emulator
#endif
