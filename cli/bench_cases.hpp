// Which cases bench times: names of the list, or one from flags.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cases/cases.hpp"

namespace flashdelta::cli {

struct BenchSelection {
  const CLI::App* parser = nullptr;
  std::optional<Operation> operation;
  std::vector<std::string> names;
  // One case from flags; 0: not said.
  int64_t batch = 1, heads_q = 16, heads_k = 0, seqlen = 0, seqlen_k = 0, head_dim = 128, head_dim_v = 0;
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  CallOptions call;
};

void add_bench_selection(CLI::App* app, BenchSelection* selection);

// In the list's order. Usage errors: an unknown name, one of another operation, flags that do not go together.
std::vector<Case> select_cases(const BenchSelection& selection);

}  // namespace flashdelta::cli
