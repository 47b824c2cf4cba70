// The one list of cases: the tests run it on every backend against the oracle, `flashdelta bench` times it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/call.hpp"

namespace flashdelta {

struct Case {
  std::string name;    // unique, lower_snake
  std::string source;  // why it is there: a public issue ("FA #2750"), a contract rule, a benchmark shape
  Operation operation = Operation::attention_forward;
  CallOptions options;
  bool bench = false;  // part of the default `bench` list
  // On the tolerance, for the GPU kernels: they round U to 16 bits, and where keys repeat those errors add up.
  double gpu_factor = 1;
  // Makes the inputs, fresh for each seed. Rows that no sequence owns are NaN.
  TensorMap (*inputs)(const Case& self, uint64_t seed) = nullptr;
  // Shape parameters that `inputs` reads; a case list row sets what it needs.
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  std::vector<int64_t> lengths_q, lengths_k;  // one entry a sequence
  int64_t heads_q = 1, heads_k = 1;           // of the delta rule: heads_q is HV
  int64_t head_dim = 128, head_dim_v = 128;
  std::string variant;  // what the maker does differently: gate, beta, key and logit forms
};

const std::vector<Case>& cases();

// What cases() has scaled down, at the size of its source: gigabytes and minutes on a CPU, so for a GPU.
std::vector<Case> full_size_cases();

}  // namespace flashdelta
