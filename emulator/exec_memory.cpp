// ld, st, atom and red in every state space.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulator/exec_memory.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <atomic>
#include <cstring>

#include "emulator/memory-inl.hpp"
#include "emulator/numerics.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

// Where each lane's bytes are on the host, once its address has passed the checks.
struct Pointers {
  uint8_t* at[32];
  const Target* target[32];
};

// A generic address belongs to one space; all lanes of an instruction must agree on it.
Space resolve_generic(Warp& w, Addresses* a) {
  if (a->mask == 0) return Space::kGlobal;
  const U64 window = a->at[std::countr_zero(a->mask)] & kWindowMask;
  const bool known = window == kSharedWindow || window == kLocalWindow || window == kParameterWindow;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a->mask, l)) continue;
    if ((a->at[l] & kWindowMask) != window) {
      (void)w.block->fatal(
          w, static_cast<int>(l), FindingKind::kDivergence,
          "lanes of one generic access point to different memory spaces, which the emulator does not run");
      a->mask = 0;
      return Space::kGlobal;
    }
    if (known) a->at[l] -= window;
  }
  return window == kSharedWindow      ? Space::kShared
         : window == kLocalWindow     ? Space::kLocal
         : window == kParameterWindow ? Space::kParameter
                                      : Space::kGlobal;
}

void check_private(Warp& w, Addresses* a, U64 limit, U32 bytes, const char* what) {
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a->mask, l) || (a->at[l] <= limit && a->at[l] + bytes <= limit)) continue;
    w.block->report_private_address(w, l, what, a->at[l], bytes, limit);
    a->mask &= ~(1u << l);
  }
}

// Checks the addresses and turns them into host pointers. Only lanes of a->mask have one afterwards.
Space locate(Warp& w, const Instruction& i, Space space, Addresses* a, U32 bytes, bool writes, const char* what,
             Pointers* p) {
  Block& block = *w.block;
  if (space == Space::kGeneric) space = resolve_generic(w, a);
  if (space == Space::kShared) {
    check_shared(w, a, bytes, bytes, what);
    for (U32 l = 0; l < 32; ++l) p->at[l] = block.shared.data() + (in(a->mask, l) ? a->at[l] : 0);
  } else if (space == Space::kGlobal) {
    check_global(w, i, a, bytes, bytes, writes, what, p->target);
    for (U32 l = 0; l < 32; ++l) p->at[l] = reinterpret_cast<uint8_t*>(a->at[l]);
  } else if (space == Space::kLocal) {
    check_private(w, a, block.launch_state().kernel->info.local_bytes, bytes, what);
    for (U32 l = 0; l < 32; ++l) p->at[l] = block.local_memory() + block.local_offset(w, l) + a->at[l];
  } else {
    const std::vector<uint8_t>& parameters = block.launch_state().launch->parameters;
    check_private(w, a, parameters.size(), bytes, what);
    for (U32 l = 0; l < 32; ++l) p->at[l] = const_cast<uint8_t*>(parameters.data()) + a->at[l];
  }
  return space;
}

// Lanes whose bytes were never written.
U32 undefined_lanes(Warp& w, Space space, const Addresses& a, const Pointers& p, U32 bytes, Origin* origin) {
  Block& block = *w.block;
  if (!block.detect()) return 0;
  if (space == Space::kShared) return note_shared_reads(w, a, bytes, false, "load", origin);
  U32 undefined = 0;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    const uint8_t* flags = nullptr;
    if (space == Space::kGlobal && p.target[l]->region->written != nullptr) {
      flags = p.target[l]->region->written.get() + (p.at[l] - p.target[l]->region->data);
    } else if (space == Space::kLocal) {
      flags = block.local_written() + (p.at[l] - block.local_memory());
    }
    if (flags != nullptr && std::memchr(flags, 0, bytes) != nullptr) undefined |= 1u << l;
  }
  if (undefined != 0) {
    origin->kind = space == Space::kGlobal ? FindingKind::kUndefinedGlobal : FindingKind::kUndefinedRegister;
    origin->pc = static_cast<int32_t>(w.pc);
  }
  return undefined;
}

void count_access(Warp& w, Space space, const Addresses& a, U32 bytes, bool load) {
  Counters& c = w.block->counters;
  const U64 total = U64{bytes} * static_cast<U32>(std::popcount(a.mask));
  if (space == Space::kShared) {
    c[load ? Counter::kSharedLoadBytes : Counter::kSharedStoreBytes] += total;
    count_wavefronts(w, a, bytes);
  } else if (space == Space::kGlobal) {
    c[load ? Counter::kGlobalLoadBytes : Counter::kGlobalStoreBytes] += total;
    count_sectors(w, a);
  }
}

template <class T>
HWY_INLINE U64 read_as(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(T));
  if constexpr (std::is_signed_v<T>) return static_cast<U64>(static_cast<int64_t>(x));
  return x;
}

U64 read_element(const uint8_t* p, U32 bytes, bool is_signed) {
  switch (bytes) {
    case 1: return is_signed ? read_as<int8_t>(p) : read_as<uint8_t>(p);
    case 2: return is_signed ? read_as<int16_t>(p) : read_as<uint16_t>(p);
    case 4: return is_signed ? read_as<int32_t>(p) : read_as<uint32_t>(p);
    default: return read_as<uint64_t>(p);
  }
}

void write_register(Warp& w, const Instruction& i, const Addresses& a, const Pointers& p, U32 k) {
  const bool is_signed = (i.detail & 16) != 0;
  const U32 slot = i.operand[k];
  if ((i.flags & kWide) != 0) {
    U64* d = w.lanes<U64>(slot);
    for (U32 l = 0; l < 32; ++l) {
      if (in(w.mask, l)) d[l] = in(a.mask, l) ? read_element(p.at[l] + k * i.bytes, i.bytes, is_signed) : ~U64{0};
    }
    return;
  }
  U32* d = w.lanes<U32>(slot);
  if (i.bytes == 4 && a.mask == kAllLanes) {
    for (U32 l = 0; l < 32; ++l) std::memcpy(&d[l], p.at[l] + 4 * k, 4);
    return;
  }
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    U64 x = in(a.mask, l) ? read_element(p.at[l] + k * i.bytes, i.bytes, is_signed) : ~U64{0};
    d[l] = static_cast<U32>(x);
  }
}

// detail: the Space, plus 16 where the type is signed.
void load(Warp& w, const Instruction& i) {
  Addresses a;
  Pointers p;
  const U32 bytes = U32{i.bytes} * i.vector;
  get_addresses(w, i, i.vector, 0, &a);
  const Space space = locate(w, i, static_cast<Space>(i.detail & 15), &a, bytes, false, "load", &p);
  for (U32 k = 0; k < i.vector; ++k) write_register(w, i, a, p, k);
  Origin origin;
  const U32 undefined = undefined_lanes(w, space, a, p, bytes, &origin);
  for (U32 k = 0; k < i.vector; ++k) {
    U32& poison = w.poison[i.operand[k]];
    poison = (poison & ~w.mask) | undefined;
    if (undefined != 0) w.origin[i.operand[k]] = origin;
  }
  count_access(w, space, a, bytes, true);
}

void write_memory(Warp& w, const Instruction& i, const Addresses& a, const Pointers& p, U32 k) {
  const U32 slot = i.operand[1 + k];
  if ((i.flags & kWide) != 0) {
    const U64* s = w.lanes<U64>(slot);
    for (U32 l = 0; l < 32; ++l) {
      if (in(a.mask, l)) std::memcpy(p.at[l] + k * i.bytes, &s[l], i.bytes);
    }
    return;
  }
  const U32* s = w.lanes<U32>(slot);
  for (U32 l = 0; l < 32; ++l) {
    if (in(a.mask, l)) std::memcpy(p.at[l] + k * i.bytes, &s[l], std::min<U32>(i.bytes, 4));
  }
}

void note_global_writes(Warp& w, const Addresses& a, const Pointers& p, U32 bytes) {
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    Region& region = *p.target[l]->region;
    if (region.written != nullptr) std::memset(region.written.get() + (p.at[l] - region.data), 1, bytes);
    w.block->claim(w, l, *p.target[l], p.at[l], bytes);
  }
}

void store(Warp& w, const Instruction& i) {
  Addresses a;
  Pointers p;
  const U32 bytes = U32{i.bytes} * i.vector;
  get_addresses(w, i, 0, 0, &a);
  const Space space = locate(w, i, static_cast<Space>(i.detail & 15), &a, bytes, true, "store", &p);
  for (U32 k = 0; k < i.vector; ++k) write_memory(w, i, a, p, k);
  U32 poison = 0;
  Origin origin;
  for (U32 k = 0; k < i.vector; ++k) {
    const U32 slot = i.operand[1 + k];
    if ((w.poison[slot] & a.mask) != 0) origin = w.origin[slot];
    poison |= w.poison[slot] & a.mask;
  }
  if (space == Space::kShared) {
    note_shared_writes(w, a, bytes, false, poison, origin, "store");
  } else if (space == Space::kGlobal) {
    if (poison != 0) w.block->report_undefined(w, poison, origin, "a value stored to global memory depends on");
    note_global_writes(w, a, p, bytes);
  } else if (space == Space::kLocal) {
    for (U32 l = 0; l < 32; ++l) {
      if (!in(a.mask, l)) continue;
      std::memset(w.block->local_written() + (p.at[l] - w.block->local_memory()), in(poison, l) ? 0 : 1, bytes);
    }
  }
  count_access(w, space, a, bytes, false);
}

template <class T, class Op>
U64 exchange(uint8_t* at, U64 operand, U64 third) {
  using Bits = std::conditional_t<sizeof(T) == 8, U64, U32>;
  std::atomic_ref<Bits> target(*reinterpret_cast<Bits*>(at));
  Bits before = target.load();
  while (!target.compare_exchange_weak(before,
                                       Lane<T>::put(Op{}(Lane<T>::get(before), Lane<T>::get(static_cast<Bits>(operand)),
                                                         Lane<T>::get(static_cast<Bits>(third)))))) {
  }
  return before;
}

// One lane after the other. flags: kWide where the type has 64 bits; a third operand is there for cas.
template <class T, class Op, bool kReturns>
void atomic(Warp& w, const Instruction& i) {
  Addresses a;
  Pointers p;
  const U32 first = kReturns ? 1 : 0;
  constexpr U32 kBytes = sizeof(T);
  get_addresses(w, i, first, 0, &a);
  const Space space = locate(w, i, static_cast<Space>(i.detail), &a, kBytes, true, "atomic", &p);
  const bool has_third = i.operands > first + 2u;
  const U32 value = i.operand[first + 1], third = i.operand[has_third ? first + 2 : first + 1];
  const U32 poison = (w.poison[value] | w.poison[third]) & a.mask;
  if (poison != 0) {
    w.block->report_undefined(w, poison, w.origin[w.poison[value] != 0 ? value : third],
                              "a value used by an atomic depends on");
  }
  Origin origin;
  const U32 undefined = undefined_lanes(w, space, a, p, kBytes, &origin);
  if (undefined != 0) w.block->report_undefined(w, undefined, origin, "an atomic works on");
  using Bits = typename Lane<T>::Storage;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    const U64 before = exchange<T, Op>(p.at[l], w.lanes<Bits>(value)[l], w.lanes<Bits>(third)[l]);
    if (kReturns) w.lanes<Bits>(i.operand[0])[l] = static_cast<Bits>(before);
  }
  if (kReturns) set_defined(w, i.operand[0]);
}

template <class T, class Op>
void atomic_rows(OpcodeTable* t, const std::string& operation, const std::string& types, Op) {
  const char letter = Lane<T>::kLetter;
  const bool cas = operation == "cas";
  const char* spaces[] = {"global.", "shared.", "", "", ""};
  for (Space space : {Space::kGlobal, Space::kShared, Space::kGeneric}) {
    const std::string name = spaces[static_cast<int>(space)] + operation + "." + types;
    std::string returning{letter, '=', 'm', letter};
    if (cas) returning += letter;
    t->add("atom." + name,
           {atomic<T, Op, true>, returning, Counter::kAtomic, kMayPreempt, sizeof(T), 1, static_cast<int32_t>(space)});
    t->add("red." + name, {atomic<T, Op, false>, std::string{'=', 'm', letter}, Counter::kAtomic, kMayPreempt,
                           sizeof(T), 1, static_cast<int32_t>(space)});
  }
}

template <class Format>
HWY_INLINE U32 add_pairs(U32 a, U32 b) {
  const U32 low = Format::encode(static_cast<double>(Format::decode(a & 0xffff)) + Format::decode(b & 0xffff));
  const U32 high = Format::encode(static_cast<double>(Format::decode(a >> 16)) + Format::decode(b >> 16));
  return high << 16 | low;
}

template <class T>
void integer_atomics(OpcodeTable* t, const std::string& width) {
  using S = std::make_signed_t<T>;
  atomic_rows<T>(t, "add", "{u" + width + ",s" + width + "}", [](T a, T b, T) { return a + b; });
  atomic_rows<T>(t, "min", "u" + width, [](T a, T b, T) { return std::min(a, b); });
  atomic_rows<T>(t, "max", "u" + width, [](T a, T b, T) { return std::max(a, b); });
  atomic_rows<T>(t, "min", "s" + width, [](T a, T b, T) { return T(std::min(S(a), S(b))); });
  atomic_rows<T>(t, "max", "s" + width, [](T a, T b, T) { return T(std::max(S(a), S(b))); });
  atomic_rows<T>(t, "and", "b" + width, [](T a, T b, T) { return a & b; });
  atomic_rows<T>(t, "or", "b" + width, [](T a, T b, T) { return a | b; });
  atomic_rows<T>(t, "xor", "b" + width, [](T a, T b, T) { return a ^ b; });
  atomic_rows<T>(t, "exch", "b" + width, [](T, T b, T) { return b; });
  atomic_rows<T>(t, "cas", "b" + width, [](T a, T b, T c) { return a == b ? c : a; });
}

void add_atomics(OpcodeTable* t) {
  integer_atomics<U32>(t, "32");
  integer_atomics<U64>(t, "64");
  atomic_rows<U32>(t, "inc", "u32", [](U32 a, U32 b, U32) { return a >= b ? 0 : a + 1; });
  atomic_rows<U32>(t, "dec", "u32", [](U32 a, U32 b, U32) { return a == 0 || a > b ? b : a - 1; });
  atomic_rows<float>(t, "add", "f32", [](float a, float b, float) { return a + b; });
  atomic_rows<double>(t, "add", "f64", [](double a, double b, double) { return a + b; });
  atomic_rows<U32>(t, "add.noftz", "f16x2", [](U32 a, U32 b, U32) { return add_pairs<F16>(a, b); });
  atomic_rows<U32>(t, "add.noftz", "bf16x2", [](U32 a, U32 b, U32) { return add_pairs<Bf16>(a, b); });
}

void add_loads_and_stores(OpcodeTable* t, const std::string& space_name, Space space, Counter loads, Counter stores) {
  struct Type {
    const char* names;
    uint8_t bytes;
    bool is_signed;
  };
  const Type types[] = {
      {"{u8,b8}", 1, false},       {"s8", 1, true},  {"{u16,b16,f16,bf16}", 2, false}, {"s16", 2, true},
      {"{u32,b32,f32}", 4, false}, {"s32", 4, true}, {"{u64,b64,f64,s64}", 8, false}};
  const uint16_t preempt = space == Space::kParameter || space == Space::kLocal ? 0 : kMayPreempt;
  for (const Type& type : types) {
    for (uint8_t vector : {1, 2, 4, 8}) {
      if (type.bytes * vector > 32) continue;
      const std::string suffix =
          space_name + (vector == 1 ? std::string() : ".v" + std::to_string(vector)) + "." + type.names;
      const int32_t detail = static_cast<int32_t>(space) | (type.is_signed ? 16 : 0);
      const std::string values(vector, 'a');
      t->add("ld" + suffix, {load, values + "=m", loads, preempt, type.bytes, vector, detail});
      t->add("st" + suffix, {store, "=m" + values, stores, preempt, type.bytes, vector, detail});
    }
  }
}

void AddMemory(OpcodeTable* t) {
  add_loads_and_stores(t, ".global", Space::kGlobal, Counter::kGlobalLoad, Counter::kGlobalStore);
  add_loads_and_stores(t, ".const", Space::kGlobal, Counter::kParameterLoad, Counter::kOther);
  add_loads_and_stores(t, ".shared", Space::kShared, Counter::kSharedLoad, Counter::kSharedStore);
  add_loads_and_stores(t, ".local", Space::kLocal, Counter::kLocal, Counter::kLocal);
  add_loads_and_stores(t, ".param", Space::kParameter, Counter::kParameterLoad, Counter::kOther);
  add_loads_and_stores(t, "", Space::kGeneric, Counter::kGlobalLoad, Counter::kGlobalStore);
  add_atomics(t);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::emulator {
HWY_EXPORT(AddMemory);
void add_memory_opcodes(OpcodeTable* table) { HWY_DYNAMIC_DISPATCH(AddMemory)(table); }
}  // namespace flashdelta::emulator
#endif
