// mma.sync, ldmatrix, stmatrix and movmatrix.
//
// In lane order every A register is a block of 8 rows by 16 bytes, row-major; A's registers are (rows 0-7, rows 8-15)
// of the first 16 bytes of k, then of the second. B's registers are 8 columns by 16 bytes of k. Of D and C, lane 4 g +
// t holds rows g (registers 0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1.
//
// Products are exact; fp32 sums run over k in ascending order from C, each addition rounded to nearest.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulator/exec_matrix.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "emulator/memory-inl.hpp"
#include "emulator/numerics.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

typedef float V8 __attribute__((vector_size(32)));
typedef float V4 __attribute__((vector_size(16)));
typedef uint16_t H8 __attribute__((vector_size(16)));
typedef uint32_t W8 __attribute__((vector_size(32)));

template <class V>
HWY_INLINE void load_vector(const void* p, V* v) {
  std::memcpy(v, p, sizeof(V));
}

HWY_INLINE void multiply_add(float a, const V8& b, V8* c) {
#if HWY_TARGET == HWY_AVX2
  *c = (V8)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)*c);
#else
  *c += a * b;  // the same: products of 16-bit numbers are exact
#endif
}

// Eight 16-bit numbers to fp32.
template <class Format>
HWY_INLINE void widen(const uint16_t* p, V8* out) {
  if constexpr (std::is_same_v<Format, Bf16>) {
    H8 h;
    load_vector(p, &h);
    *out = (V8)(__builtin_convertvector(h, W8) << 16);
  } else {
#if HWY_TARGET == HWY_AVX2
    *out = (V8)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    for (int k = 0; k < 8; ++k) (*out)[k] = F16::decode(p[k]);
#endif
  }
}

HWY_INLINE void transpose(const V8* r, V8* out) {
  V8 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i : {0, 1, 4, 5}) {
    u[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    u[i + 2] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    out[i + 4] = __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// What the accumulators look like in registers: fp32, one a register, or fp16 pairs.
struct Operands {
  U32 d = 0, a = 0, b = 0, c = 0;  // first operand of each
  U32 a_count = 0, b_count = 0, c_count = 0;
};

// D's element is undefined where its row of A, its column of B or its C is.
void propagate_product(Warp& w, const Instruction& i, const Operands& o) {
  U32 any = 0;
  for (U32 k = o.a; k < i.operands; ++k) any |= w.poison[i.operand[k]];
  for (U32 k = 0; k < o.c_count; ++k) any |= w.poison[i.operand[o.d + k]];
  if (any == 0) [[likely]]
    return;
  U32 bad_rows = 0, bad_columns = 0;
  Origin origin;
  for (U32 l = 0; l < 32; ++l) {
    for (U32 k = 0; k < o.a_count; ++k) bad_rows |= (w.poison[i.operand[o.a + k]] >> l & 1) << ((l >> 2) + 8 * (k & 1));
    for (U32 k = 0; k < o.b_count; ++k) bad_columns |= (w.poison[i.operand[o.b + k]] >> l & 1) << (l >> 2);
  }
  for (U32 k = o.a; k < i.operands; ++k) {
    if (w.poison[i.operand[k]] != 0) origin = w.origin[i.operand[k]];
  }
  const U32 per_register = o.c_count == 2 ? 2 : 1;
  U32 result[4];
  for (U32 e = 0; e < o.c_count; ++e) {
    result[e] = w.poison[i.operand[o.c + e]];
    for (U32 l = 0; l < 32; ++l) {
      const U32 row = (l >> 2) + 8 * (per_register == 2 ? e : e >> 1), column = 2 * (l & 3) + (e & 1);
      const U32 columns = per_register == 2 ? 3u << (2 * (l & 3)) : 1u << column;
      if ((bad_rows >> row & 1) != 0 || (bad_columns & columns) != 0) result[e] |= 1u << l;
    }
  }
  for (U32 e = 0; e < o.c_count; ++e) {
    w.poison[i.operand[o.d + e]] = result[e];
    if (result[e] != 0) w.origin[i.operand[o.d + e]] = origin;
  }
}

// C and D as 16 rows of 8, in fp32.
HWY_INLINE void load_accumulators(Warp& w, const Instruction& i, const Operands& o, V8* rows) {
  if (o.c_count == 2) {
    for (U32 h = 0; h < 2; ++h) {
      const auto* pairs = reinterpret_cast<const uint16_t*>(w.lanes<U32>(i.operand[o.c + h]));
      for (U32 r = 0; r < 8; ++r) widen<F16>(pairs + 8 * r, &rows[8 * h + r]);
    }
    return;
  }
  for (U32 h = 0; h < 2; ++h) {
    const float* even = w.lanes<float>(i.operand[o.c + 2 * h]);
    const float* odd = w.lanes<float>(i.operand[o.c + 2 * h + 1]);
    for (U32 r = 0; r < 8; ++r) {
      V4 x, y;
      load_vector(even + 4 * r, &x);
      load_vector(odd + 4 * r, &y);
      rows[8 * h + r] = __builtin_shufflevector(x, y, 0, 4, 1, 5, 2, 6, 3, 7);
    }
  }
}

HWY_INLINE void store_accumulators(Warp& w, const Instruction& i, const Operands& o, const V8* rows) {
  if (o.c_count == 2) {
    for (U32 h = 0; h < 2; ++h) {
      auto* pairs = reinterpret_cast<uint16_t*>(w.lanes<U32>(i.operand[o.d + h]));
      for (U32 r = 0; r < 8; ++r) {
        for (U32 n = 0; n < 8; ++n) pairs[8 * r + n] = F16::encode(rows[8 * h + r][n]);
      }
    }
    return;
  }
  for (U32 h = 0; h < 2; ++h) {
    float* even = w.lanes<float>(i.operand[o.d + 2 * h]);
    float* odd = w.lanes<float>(i.operand[o.d + 2 * h + 1]);
    for (U32 r = 0; r < 8; ++r) {
      const V8& x = rows[8 * h + r];
      const V4 low = __builtin_shufflevector(x, x, 0, 2, 4, 6), high = __builtin_shufflevector(x, x, 1, 3, 5, 7);
      std::memcpy(even + 4 * r, &low, 16);
      std::memcpy(odd + 4 * r, &high, 16);
    }
  }
}

// m16n8k16 and m16n8k8 of 16-bit numbers. kSteps counts 8 columns of k each.
template <class Format, U32 kSteps, U32 kAccumulators>
void mma16(Warp& w, const Instruction& i) {
  if (!require_whole_warp(w, "mma.sync")) return;
  constexpr Operands o{0,      kAccumulators, kAccumulators + 2 * kSteps, kAccumulators + 3 * kSteps, 2 * kSteps,
                       kSteps, kAccumulators};
  V8 a[16][kSteps], b[8 * kSteps], c[16];
  for (U32 k = 0; k < 2 * kSteps; ++k) {
    const auto* block = reinterpret_cast<const uint16_t*>(w.lanes<U32>(i.operand[o.a + k]));
    for (U32 r = 0; r < 8; ++r) widen<Format>(block + 8 * r, &a[8 * (k & 1) + r][k >> 1]);
  }
  for (U32 k = 0; k < kSteps; ++k) {
    const auto* block = reinterpret_cast<const uint16_t*>(w.lanes<U32>(i.operand[o.b + k]));
    V8 columns[8];
    for (U32 n = 0; n < 8; ++n) widen<Format>(block + 8 * n, &columns[n]);
    transpose(columns, b + 8 * k);
  }
  load_accumulators(w, i, o, c);
  for (U32 half = 0; half < 16; half += 8) {  // eight rows at a time stay in vector registers
    V8 sum[8];
    for (U32 r = 0; r < 8; ++r) sum[r] = c[half + r];
    for (U32 k = 0; k < 8 * kSteps; ++k) {
      for (U32 r = 0; r < 8; ++r) multiply_add(reinterpret_cast<const float*>(a[half + r])[k], b[k], &sum[r]);
    }
    for (U32 r = 0; r < 8; ++r) c[half + r] = sum[r];
  }
  store_accumulators(w, i, o, c);
  propagate_product(w, i, o);
}

struct Tf32 {
  using Element = uint32_t;
  using Sum = float;
  static float decode(uint32_t bits) { return as_float(bits & ~0x1fffu); }
};
template <class Format>
struct Fp8 {
  using Element = uint8_t;
  using Sum = float;
  static float decode(uint8_t bits) { return Format::decode(bits); }
};
template <class T>
struct Int8 {
  using Element = T;
  using Sum = int32_t;
  static int32_t decode(T x) { return x; }
};

// The rest, element by element: 32 bytes of k (m16n8k8 tf32, m16n8k32 of bytes), or 16.
template <class A, class B, U32 kSteps>
void mma_scalar(Warp& w, const Instruction& i) {
  if (!require_whole_warp(w, "mma.sync")) return;
  using Sum = typename A::Sum;
  constexpr Operands o{0, 4, 4 + 2 * kSteps, 4 + 3 * kSteps, 2 * kSteps, kSteps, 4};
  constexpr U32 kPerBlock = 16 / sizeof(typename A::Element);
  Sum sums[16][8];
  for (U32 row = 0; row < 16; ++row) {
    for (U32 n = 0; n < 8; ++n) {
      sums[row][n] = w.lanes<Sum>(i.operand[o.c + 2 * (row / 8) + n % 2])[4 * (row % 8) + n / 2];
      for (U32 k = 0; k < kSteps * kPerBlock; ++k) {
        const U32 step = k / kPerBlock, at = k % kPerBlock;
        const auto* a = reinterpret_cast<const typename A::Element*>(w.lanes<U32>(i.operand[o.a + 2 * step + row / 8]));
        const auto* b = reinterpret_cast<const typename B::Element*>(w.lanes<U32>(i.operand[o.b + step]));
        const auto x = A::decode(a[kPerBlock * (row % 8) + at]);
        const auto y = B::decode(b[kPerBlock * n + at]);
        if constexpr (std::is_same_v<Sum, float>) {
          sums[row][n] = __builtin_fmaf(x, y, sums[row][n]);
        } else {
          sums[row][n] = static_cast<Sum>(static_cast<U32>(sums[row][n]) + static_cast<U32>(x * y));
        }
      }
    }
  }
  for (U32 row = 0; row < 16; ++row) {
    for (U32 n = 0; n < 8; ++n) {
      w.lanes<Sum>(i.operand[2 * (row / 8) + n % 2])[4 * (row % 8) + n / 2] = sums[row][n];
    }
  }
  propagate_product(w, i, o);
}

// One row of 16 bytes that a lane points to, for ldmatrix and stmatrix.
struct Matrix {
  uint16_t element[8][8];
};

// Lanes of a register that hold something of an undefined row.
U32 undefined_in_matrix(Warp& w, const Addresses& a, U32 undefined, U32 m, bool transposed) {
  U32 poison = 0;
  for (U32 row = 0; row < 8; ++row) {
    if (!in(undefined, 8 * m + row)) continue;
    for (U32 column = 0; column < 8; ++column) {
      if (!w.block->shared.is_undefined(static_cast<U32>(a.at[8 * m + row]) + 2 * column, 2)) continue;
      poison |= 1u << (transposed ? 4 * column + row / 2 : 4 * row + column / 2);
    }
  }
  return poison;
}

// detail: 1 for .trans; vector: how many 8x8 matrices.
void load_matrix(Warp& w, const Instruction& i) {
  if (!require_whole_warp(w, "ldmatrix")) return;
  const bool transposed = i.detail == 1;
  const U32 count = i.vector, rows = count == 4 ? kAllLanes : (1u << (8 * count)) - 1;
  Addresses a;
  get_addresses(w, i, count, 0, &a, rows);
  check_shared(w, &a, 16, 16, "ldmatrix");
  Origin origin;
  const U32 undefined = note_shared_reads(w, a, 16, true, "ldmatrix", &origin);
  const uint8_t* shared = w.block->shared.data();
  for (U32 m = 0; m < count; ++m) {
    Matrix x;
    for (U32 r = 0; r < 8; ++r) {
      if (in(a.mask, 8 * m + r)) {
        std::memcpy(x.element[r], shared + a.at[8 * m + r], 16);
      } else {
        std::memset(x.element[r], 0xff, 16);
      }
    }
    U32* d = w.lanes<U32>(i.operand[m]);
    if (transposed) {
      for (U32 l = 0; l < 32; ++l) {
        d[l] = x.element[2 * (l & 3)][l >> 2] | U32{x.element[2 * (l & 3) + 1][l >> 2]} << 16;
      }
    } else {
      std::memcpy(d, &x, 128);
    }
    w.poison[i.operand[m]] = undefined == 0 ? 0 : undefined_in_matrix(w, a, undefined, m, transposed);
    if (undefined != 0) w.origin[i.operand[m]] = origin;
  }
  w.block->counters[Counter::kSharedLoadBytes] += U64{16} * static_cast<U32>(std::popcount(a.mask));
  count_wavefronts(w, a, 16);
}

void store_matrix(Warp& w, const Instruction& i) {
  if (!require_whole_warp(w, "stmatrix")) return;
  const bool transposed = i.detail == 1;
  const U32 count = i.vector, rows = count == 4 ? kAllLanes : (1u << (8 * count)) - 1;
  Addresses a;
  get_addresses(w, i, 0, 0, &a, rows);
  check_shared(w, &a, 16, 16, "stmatrix");
  U32 poison = 0;
  Origin origin;
  for (U32 m = 0; m < count; ++m) {
    const U32* s = w.lanes<U32>(i.operand[1 + m]);
    if (w.poison[i.operand[1 + m]] != 0) {
      poison |= 255u << (8 * m);
      origin = w.origin[i.operand[1 + m]];
    }
    Matrix x;
    for (U32 l = 0; l < 32; ++l) {
      for (U32 h = 0; h < 2; ++h) {
        const auto value = static_cast<uint16_t>(s[l] >> (16 * h));
        const U32 row = l >> 2, column = 2 * (l & 3) + h;
        x.element[transposed ? column : row][transposed ? row : column] = value;
      }
    }
    for (U32 r = 0; r < 8; ++r) {
      if (in(a.mask, 8 * m + r)) std::memcpy(w.block->shared.data() + a.at[8 * m + r], x.element[r], 16);
    }
  }
  note_shared_writes(w, a, 16, true, poison, origin, "stmatrix");
  w.block->counters[Counter::kSharedStoreBytes] += U64{16} * static_cast<U32>(std::popcount(a.mask));
  count_wavefronts(w, a, 16);
}

void move_matrix(Warp& w, const Instruction& i) {
  if (!require_whole_warp(w, "movmatrix")) return;
  uint16_t x[64], y[64];
  std::memcpy(x, w.lanes<U32>(i.operand[1]), 128);
  for (U32 r = 0; r < 8; ++r) {
    for (U32 c = 0; c < 8; ++c) y[8 * r + c] = x[8 * c + r];
  }
  const U32 poison = w.poison[i.operand[1]];
  std::memcpy(w.lanes<U32>(i.operand[0]), y, 128);
  U32 moved = 0;  // lane 4 r + c/2 takes from lanes 4 c + r/2 and 4 (c + 1) + r/2
  for (U32 l = 0; l < 32; ++l) {
    for (U32 h = 0; h < 2; ++h) moved |= (poison >> (4 * (2 * (l & 3) + h) + (l >> 3)) & 1) << l;
  }
  w.poison[i.operand[0]] = moved;
  if (moved != 0) w.origin[i.operand[0]] = w.origin[i.operand[1]];
}

template <class A, class B>
void add_bytes(OpcodeTable* t, const std::string& types, const std::string& kind, Counter counter, char sum) {
  const std::string four(4, sum), d = kind + types;
  t->add("mma.sync.m16n8k32.row.col." + d, {mma_scalar<A, B, 2>, four + "=rrrrrr" + four, counter, kMayPreempt});
  t->add("mma.sync.m16n8k16.row.col." + d, {mma_scalar<A, B, 1>, four + "=rrr" + four, counter, kMayPreempt});
}

void AddMatrix(OpcodeTable* t) {
  const std::string mma = "mma.sync.";
  t->add(mma + "m16n8k16.row.col.f32.bf16.bf16.f32",
         {mma16<Bf16, 2, 4>, "ffff=rrrrrrffff", Counter::kMmaBf16, kMayPreempt});
  t->add(mma + "m16n8k8.row.col.f32.bf16.bf16.f32",
         {mma16<Bf16, 1, 4>, "ffff=rrrffff", Counter::kMmaBf16, kMayPreempt});
  t->add(mma + "m16n8k16.row.col.f32.f16.f16.f32",
         {mma16<F16, 2, 4>, "ffff=rrrrrrffff", Counter::kMmaF16, kMayPreempt});
  t->add(mma + "m16n8k8.row.col.f32.f16.f16.f32", {mma16<F16, 1, 4>, "ffff=rrrffff", Counter::kMmaF16, kMayPreempt});
  t->add(mma + "m16n8k16.row.col.f16.f16.f16.f16",
         {mma16<F16, 2, 2>, "rr=rrrrrrrr", Counter::kMmaF16AccF16, kMayPreempt});
  t->add(mma + "m16n8k8.row.col.f16.f16.f16.f16", {mma16<F16, 1, 2>, "rr=rrrrr", Counter::kMmaF16AccF16, kMayPreempt});
  t->add(mma + "m16n8k8.row.col.f32.tf32.tf32.f32",
         {mma_scalar<Tf32, Tf32, 2>, "ffff=rrrrrrffff", Counter::kMmaTf32, kMayPreempt});
  t->add(mma + "m16n8k4.row.col.f32.tf32.tf32.f32",
         {mma_scalar<Tf32, Tf32, 1>, "ffff=rrrffff", Counter::kMmaTf32, kMayPreempt});
  add_bytes<Int8<int8_t>, Int8<int8_t>>(t, ".s8.s8.s32", "s32", Counter::kMmaInt8, 'r');
  add_bytes<Int8<uint8_t>, Int8<uint8_t>>(t, ".u8.u8.s32", "s32", Counter::kMmaInt8, 'r');
  add_bytes<Int8<uint8_t>, Int8<int8_t>>(t, ".u8.s8.s32", "s32", Counter::kMmaInt8, 'r');
  add_bytes<Int8<int8_t>, Int8<uint8_t>>(t, ".s8.u8.s32", "s32", Counter::kMmaInt8, 'r');
  add_bytes<Fp8<E4m3>, Fp8<E4m3>>(t, ".e4m3.e4m3.f32", "f32", Counter::kMmaFp8, 'f');
  add_bytes<Fp8<E5m2>, Fp8<E5m2>>(t, ".e5m2.e5m2.f32", "f32", Counter::kMmaFp8, 'f');
  add_bytes<Fp8<E4m3>, Fp8<E5m2>>(t, ".e4m3.e5m2.f32", "f32", Counter::kMmaFp8, 'f');
  add_bytes<Fp8<E5m2>, Fp8<E4m3>>(t, ".e5m2.e4m3.f32", "f32", Counter::kMmaFp8, 'f');
  for (uint8_t count : {1, 2, 4}) {
    const std::string shape = "matrix.sync.m8n8.x" + std::to_string(count);
    const std::string values(count, 'r');
    for (int32_t transposed : {0, 1}) {
      const std::string name = shape + (transposed != 0 ? ".trans" : "") + ".shared.b16";
      t->add("ld" + name, {load_matrix, values + "=m", Counter::kLdmatrix, kMayPreempt, 16, count, transposed});
      t->add("st" + name, {store_matrix, "=m" + values, Counter::kStmatrix, kMayPreempt, 16, count, transposed});
    }
  }
  t->add("movmatrix.sync.m8n8.trans.b16", {move_matrix, "r=r", Counter::kMovmatrix, kMayPreempt});
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashdelta::emulator {
HWY_EXPORT(AddMatrix);
void add_matrix_opcodes(OpcodeTable* table) { HWY_DYNAMIC_DISPATCH(AddMatrix)(table); }
}  // namespace flashdelta::emulator
#endif
