// The list of primitives whose results a real GPU and the emulator must agree on, and the inputs they get.
//
// A case is a kernel (const uint32_t* in, uint32_t* out) of one warp a block: lane l of block b reads its input words
// at in[(32 b + l) * inputs], one a letter, and writes its results at out[(32 b + l) * outputs]. Letters:
//   i two bf16 integers    r two bf16    h two fp16 integers    H two fp16    c fp32 integer    f fp32 in [-2, 2)
//   F fp32 of any size     p the same, positive     e for ex2     t in [-6, 6)     u any bits     s a shift, 0 to 40
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

enum ConformanceRule {
  kBitForBit,
  kProduct,  // within 2^-20 of the sum of |a b|, and of |c|
  kTwoUlp,
  kTwoUlpOrTiny,  // lg2: also within 2^-22, near 1 where the result is near 0
  kCoarse,        // tanh, sin, cos: within 2^-10
};

// name, input letters, output words, blocks, rule
#define FOR_EACH_CONFORMANCE_CASE(x)                                                                                 \
  x(mma_bf16_integer, "iiiiiicccc", 4, 8, kBitForBit) x(mma_bf16_random, "rrrrrrffff", 4, 8, kProduct)               \
      x(mma_f16_integer, "hhhhhhcccc", 4, 8, kBitForBit) x(mma_f16_random, "HHHHHHffff", 4, 8, kProduct)             \
          x(mma_f16_half_sums, "hhhhhhhh", 2, 8, kBitForBit) x(mma_bf16_k8_integer, "iiicccc", 4, 8, kBitForBit)     \
              x(mma_tf32_integer, "cccccccccc", 4, 8, kBitForBit) x(mma_s8, "uuuuuuuuuu", 4, 8, kBitForBit)          \
                  x(load_matrix, "uuuu", 4, 4, kBitForBit) x(load_matrix_trans, "uuuu", 4, 4, kBitForBit)            \
                      x(load_matrix_few, "uuuu", 6, 4, kBitForBit) x(store_matrix, "uuuu", 4, 4, kBitForBit)         \
                          x(store_matrix_trans, "uuuu", 4, 4, kBitForBit) x(move_matrix, "u", 1, 4, kBitForBit)      \
                              x(shuffles, "us", 10, 4, kBitForBit) x(votes, "u", 9, 4, kBitForBit)                   \
                                  x(pack, "FF", 8, 32, kBitForBit) x(unpack, "u", 7, 8, kBitForBit)                  \
                                      x(to_integer, "F", 8, 32, kBitForBit) x(from_integer, "u", 4, 16, kBitForBit)  \
                                          x(integer, "uus", 24, 16, kBitForBit) x(single, "FFF", 16, 32, kBitForBit) \
                                              x(half_precision, "HHH", 7, 32, kBitForBit)                            \
                                                  x(bf16_precision, "rrr", 7, 32, kBitForBit)                        \
                                                      x(ex2, "e", 1, 64, kTwoUlp) x(rcp, "F", 1, 64, kTwoUlp)        \
                                                          x(reciprocal_root, "p", 1, 64, kTwoUlp)                    \
                                                              x(square_root, "p", 1, 64, kTwoUlp)                    \
                                                                  x(lg2, "p", 1, 64, kTwoUlpOrTiny)                  \
                                                                      x(tangent, "t", 1, 32, kCoarse)                \
                                                                          x(sine, "t", 2, 32, kCoarse)

struct ConformanceCase {
  const char* name;
  const char* inputs;
  uint32_t outputs;
  uint32_t blocks;
  ConformanceRule rule;
};

#define CONFORMANCE_ROW(name, inputs, outputs, blocks, rule) {#name, inputs, outputs, blocks, rule},
inline const ConformanceCase kConformanceCases[] = {FOR_EACH_CONFORMANCE_CASE(CONFORMANCE_ROW)};
#undef CONFORMANCE_ROW

// The same words on every machine: no library's random numbers, no floating-point arithmetic that rounds.
inline uint32_t conformance_hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline uint32_t conformance_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// Integers of -8 to 7 as bf16 or fp16 bits; both are exact in fp32 too.
inline uint32_t conformance_small(uint32_t hash) { return conformance_float(static_cast<float>(hash % 16) - 8.0f); }
inline uint32_t conformance_small_half(uint32_t hash) {
  static const uint16_t kHalves[8] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
  return kHalves[hash % 8] | (hash & 8) << 12;
}

inline uint32_t conformance_word(char letter, uint32_t index) {
  const uint32_t h = conformance_hash(index * 2 + 1), g = conformance_hash(h + 0x9e3779b9u);
  const uint32_t sign = h & 0x80000000u;
  auto scaled = [&](float from, float steps) { return conformance_float(from + static_cast<float>(h >> 8) * steps); };
  switch (letter) {
    case 'i': return conformance_small(h) >> 16 | (conformance_small(g) & 0xffff0000u);
    case 'r': return (h & 0x80ff80ffu) | 0x3f003f00u;  // 0.5 to 2
    case 'h': return conformance_small_half(h) | conformance_small_half(g) << 16;
    case 'H': return (h & 0x87ff87ffu) | 0x38003800u;  // 0.5 to 2
    case 'c': return conformance_small(h);
    case 'f': return scaled(-2.0f, 0x1p-22f);
    case 'F': return sign | ((g % 80 + 87) << 23) | (h & 0x7fffffu);  // 2^-40 to 2^40
    case 'p': return (g % 4 == 0 ? 126 + (g >> 8 & 1) : g % 250 + 1) << 23 | (h & 0x7fffffu);
    case 'e': return scaled(-130.0f, 0x1p-16f);  // -130 to 126
    case 't': return scaled(-6.0f, 0x1p-20f * 0.75f);
    case 's': return h % 41;
    default: return h;
  }
}
