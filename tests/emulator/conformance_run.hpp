// Runs a case of conformance.h on the emulator.
#pragma once

#include "emulator/conformance.h"
#include "emulator/harness.hpp"

namespace flashdelta::test {

inline const ConformanceCase& conformance_case(const std::string& name) {
  for (const ConformanceCase& c : kConformanceCases) {
    if (name == c.name) return c;
  }
  ADD_FAILURE() << "no case " << name;
  return kConformanceCases[0];
}

struct ConformanceRun {
  uint32_t inputs = 0, outputs = 0;  // words a lane
  std::vector<uint32_t> in, out;

  uint32_t lanes() const { return static_cast<uint32_t>(out.size()) / outputs; }
  uint32_t input(uint32_t lane, uint32_t k) const { return in[lane * inputs + k]; }
  uint32_t output(uint32_t lane, uint32_t k) const { return out[lane * outputs + k]; }
};

inline ConformanceRun run_conformance(const ConformanceCase& c) {
  ConformanceRun r;
  r.inputs = static_cast<uint32_t>(std::strlen(c.inputs));
  r.outputs = c.outputs;
  r.in.resize(c.blocks * 32 * r.inputs);
  for (uint32_t i = 0; i < r.in.size(); ++i) r.in[i] = conformance_word(c.inputs[i % r.inputs], i);
  r.out.assign(size_t{c.blocks} * 32 * c.outputs, 0xdeadbeef);
  Launcher launcher("conformance", c.name);
  launcher.buffer(r.in, {.writable = false}).output(r.out).parameters(r.in.data(), r.out.data());
  launcher.launch.grid = {c.blocks, 1, 1};
  const Outcome outcome = launcher.run(1);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_TRUE(outcome.report.silent()) << outcome.report.text();
  return r;
}

// An mma's operands as matrices: A [16][k], B [k][8], C and D [16][8], of one warp.
template <class Decode>
struct MmaOperands {
  MmaOperands(const ConformanceRun& r, uint32_t warp, uint32_t k, uint32_t element_bits, Decode decode) : k_count(k) {
    const uint32_t per_register = 32 / element_bits, per_block = 4 * per_register, blocks = k / per_block;
    auto element = [&](uint32_t operand, uint32_t row, uint32_t column) {
      const uint32_t lane = 32 * warp + 4 * (row % 8) + column % per_block / per_register;
      return decode(r.input(lane, operand) >> (element_bits * (column % per_register)));
    };
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t c = 0; c < k; ++c) a[row][c] = element(2 * (c / per_block) + row / 8, row, c);
    }
    for (uint32_t n = 0; n < 8; ++n) {
      for (uint32_t c = 0; c < k; ++c) b[c][n] = element(2 * blocks + c / per_block, n, c);
    }
  }
  double exact(uint32_t row, uint32_t n, double start, double* magnitude) const {
    double sum = start;
    *magnitude = std::abs(start);
    for (uint32_t c = 0; c < k_count; ++c) {
      sum += a[row][c] * b[c][n];
      *magnitude += std::abs(a[row][c] * b[c][n]);
    }
    return sum;
  }

  uint32_t k_count;
  double a[16][32] = {}, b[32][8] = {};
};

// Where D's element lies: register and lane of the warp.
inline uint32_t sum_register(uint32_t row, uint32_t n) { return 2 * (row / 8) + n % 2; }
inline uint32_t sum_lane(uint32_t row, uint32_t n) { return 4 * (row % 8) + n / 2; }

}  // namespace flashdelta::test
