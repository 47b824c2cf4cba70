// Element-wise instructions over 32 lanes, compiled once for each vector target. The operation is a lambda on one lane;
// the compiler makes vectors of the loops. Include between HWY_BEFORE_NAMESPACE's includes, not in ordinary code.
#if defined(FLASHDELTA_EMULATOR_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHDELTA_EMULATOR_LANES_INL
#undef FLASHDELTA_EMULATOR_LANES_INL
#else
#define FLASHDELTA_EMULATOR_LANES_INL
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "emulator/block.hpp"
#include "emulator/opcodes.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

using U32 = uint32_t;
using U64 = uint64_t;

HWY_INLINE float as_float(uint32_t x) { return std::bit_cast<float>(x); }
HWY_INLINE uint32_t as_bits(float x) { return std::bit_cast<uint32_t>(x); }

HWY_INLINE bool in(uint32_t mask, uint32_t lane) { return (mask >> lane & 1) != 0; }

// The result is undefined in the lanes where a source is.
template <class... Slots>
HWY_INLINE void propagate(Warp& w, uint32_t destination, Slots... sources) {
  const uint32_t poison = (w.poison[sources] | ... | 0u);
  if ((poison | w.poison[destination]) == 0) [[likely]]
    return;
  const Origin* from = nullptr;
  ((from = from == nullptr && w.poison[sources] != 0 ? &w.origin[sources] : from), ...);
  w.set_poison(destination, poison, from);
}

HWY_INLINE void set_defined(Warp& w, uint32_t destination) { w.poison[destination] &= ~w.mask; }

// How a lambda's parameter or result lies in a register, and its letter in an opcode row.
template <class T>
struct Lane {
  static constexpr bool kWide = sizeof(T) == 8;
  using Storage = std::conditional_t<kWide, U64, U32>;
  static constexpr char kLetter = std::is_same_v<T, float>    ? 'f'
                                  : std::is_same_v<T, double> ? 'd'
                                  : sizeof(T) == 2            ? 'h'
                                  : kWide                     ? 'q'
                                                              : 'r';
  static HWY_INLINE T get(Storage bits) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::bit_cast<T>(bits);
    } else {
      return static_cast<T>(bits);
    }
  }
  static HWY_INLINE Storage put(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::bit_cast<Storage>(value);
    } else if constexpr (sizeof(T) == 2) {
      return static_cast<uint16_t>(value);
    } else {
      return static_cast<Storage>(value);
    }
  }
};

template <class T>
HWY_NOINLINE void merge_lanes(T* d, const T* result, uint32_t mask) {
  for (uint32_t l = 0; l < 32; ++l) d[l] = in(mask, l) ? result[l] : d[l];
}

template <class Op, class D, class... S>
HWY_INLINE void compute_lanes(typename Lane<D>::Storage* result, const typename Lane<S>::Storage*... s) {
#pragma GCC ivdep
  for (uint32_t l = 0; l < 32; ++l) result[l] = Lane<D>::put(Op{}(Lane<S>::get(s[l])...));
}

// Inactive lanes are computed too, and thrown away: no operation here can trap.
template <class Op, class D, class... S, size_t... k>
HWY_INLINE void elementwise_over(Warp& w, const Instruction& i, std::index_sequence<k...>) {
  using Storage = typename Lane<D>::Storage;
  Storage* d = w.lanes<Storage>(i.operand[0]);
  Storage scratch[32];
  Storage* result = w.mask == kAllLanes ? d : scratch;
  compute_lanes<Op, D, S...>(result, w.lanes<typename Lane<S>::Storage>(i.operand[1 + k])...);
  if (result == scratch) merge_lanes(d, scratch, w.mask);
  propagate(w, i.operand[0], i.operand[1 + k]...);
}

template <class Op, class D, class... S>
void elementwise(Warp& w, const Instruction& i) {
  elementwise_over<Op, D, S...>(w, i, std::index_sequence_for<S...>());
}

template <class D, class... S>
constexpr char kLetters[] = {Lane<D>::kLetter, '=', Lane<S>::kLetter..., '\0'};

template <class Op, class D, class... S>
void add_elementwise(OpcodeTable* t, std::string_view name, Counter counter, D (Op::*)(S...) const) {
  t->add(name, elementwise<Op, D, S...>, kLetters<D, S...>, counter);
}

// A row whose operand kinds are the lambda's types: uint16_t is h, uint32_t and int32_t r, float f, and so on.
template <class Op>
void row(OpcodeTable* t, std::string_view name, Counter counter, Op) {
  add_elementwise<Op>(t, name, counter, &Op::operator());
}

// a & b, a | b: an operand that decides the result alone (0, or all ones) makes it defined.
template <class Op, class T, T kDecides>
void bitwise(Warp& w, const Instruction& i) {
  const uint32_t pa = w.poison[i.operand[1]] & w.mask, pb = w.poison[i.operand[2]] & w.mask;
  uint32_t decided = 0;
  if ((pa | pb) != 0) [[unlikely]] {
    const T *a = w.lanes<T>(i.operand[1]), *b = w.lanes<T>(i.operand[2]);
    for (uint32_t l = 0; l < 32; ++l) {
      if ((a[l] == kDecides && !in(pa, l)) || (b[l] == kDecides && !in(pb, l))) decided |= 1u << l;
    }
  }
  elementwise<Op, T, T, T>(w, i);
  w.poison[i.operand[0]] &= ~(decided & w.mask);
}

HWY_INLINE void write_predicate(Warp& w, uint32_t operand, uint32_t bits) {
  uint32_t& p = w.predicate[operand];
  p = (p & ~w.mask) | (bits & w.mask);
}

HWY_INLINE void poison_predicate(Warp& w, uint32_t operand, uint32_t poison, const Origin& origin) {
  uint32_t& p = w.predicate_poison[operand];
  if ((p | poison) == 0) return;
  p = (p & ~w.mask) | (poison & w.mask);
  if ((poison & w.mask) != 0) w.predicate_origin[operand] = origin;
}

// setp: d[|q] = a cmp b [and, or, xor c]; detail 0, 1, 2 says which.
template <class Op, class T>
void compare(Warp& w, const Instruction& i) {
  const auto* a = w.lanes<typename Lane<T>::Storage>(i.operand[2]);
  const auto* b = w.lanes<typename Lane<T>::Storage>(i.operand[3]);
  uint32_t bits = 0;
  for (uint32_t l = 0; l < 32; ++l) {
    bits |= static_cast<uint32_t>(Op{}(Lane<T>::get(a[l]), Lane<T>::get(b[l]))) << l;
  }
  uint32_t poison = w.poison[i.operand[2]] | w.poison[i.operand[3]];
  uint32_t inverse = ~bits;
  Origin origin = w.poison[i.operand[2]] != 0 ? w.origin[i.operand[2]] : w.origin[i.operand[3]];
  if (i.operands == 5) {
    const uint32_t c = w.predicate_bits(i.operand[4]);
    const uint32_t c_poison = w.predicate_poison[i.operand[4] & 0x7fffffffu];
    if (poison == 0) origin = w.predicate_origin[i.operand[4] & 0x7fffffffu];
    const uint32_t decided = i.detail == 0   ? (~bits & ~poison) | (~c & ~c_poison)
                             : i.detail == 1 ? (bits & ~poison) | (c & ~c_poison)
                                             : 0;
    poison = (poison | c_poison) & ~decided;
    inverse = i.detail == 0 ? ~bits & c : i.detail == 1 ? ~bits | c : ~bits ^ c;
    bits = i.detail == 0 ? bits & c : i.detail == 1 ? bits | c : bits ^ c;
  }
  write_predicate(w, i.operand[0], bits);
  poison_predicate(w, i.operand[0], poison, origin);
  if ((i.flags & kHasPredicate) != 0) {
    write_predicate(w, i.operand[1], inverse);
    poison_predicate(w, i.operand[1], poison, origin);
  }
}

template <class Op, class T>
void add_compare(OpcodeTable* t, std::string_view condition, std::string_view types, bool (Op::*)(T, T) const) {
  const std::string letter(1, Lane<T>::kLetter);
  const std::string form = "po=" + letter + letter;
  const std::string name = "setp." + std::string(condition) + ".";
  t->add(name + std::string(types), compare<Op, T>, form.c_str(), Counter::kPredicate);
  const char* combinations[] = {"and", "or", "xor"};
  for (int32_t k = 0; k < 3; ++k) {
    t->add(name + combinations[k] + "." + std::string(types),
           {compare<Op, T>, form + "p", Counter::kPredicate, 0, 0, 1, k});
  }
}

// All rows of one comparison: setp.condition[.and|.or|.xor].types.
template <class Op>
void compare_rows(OpcodeTable* t, std::string_view condition, std::string_view types, Op) {
  add_compare<Op>(t, condition, types, &Op::operator());
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
