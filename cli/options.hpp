// The flags that more than one subcommand takes, each read and checked in one place.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common.hpp"
#include "io/call.hpp"

namespace flashdelta::cli {

// Numbers as the flags want them: all of the text, nothing else. An error names the flag.
int64_t parse_integer(std::string_view flag, std::string_view text, int64_t least, int64_t most = INT64_MAX);
double parse_finite(std::string_view flag, std::string_view text);

// Options whose text is checked when it is parsed.
CLI::Option* add_integer(CLI::App* app, const std::string& flag, int64_t* value, int64_t least, int64_t most,
                         const std::string& help);
CLI::Option* add_finite(CLI::App* app, const std::string& flag, double* value, const std::string& help);

// One name of a short list.
template <typename Value>
CLI::Option* add_choice(CLI::App* app, const std::string& flag, Value* value,
                        std::vector<std::pair<std::string_view, Value>> names, const std::string& help) {
  std::string all;
  for (const auto& [name, meaning] : names) all += (all.empty() ? "" : "|") + std::string(name);
  const auto parse = [=](const std::string& text) {
    for (const auto& [name, meaning] : names) {
      if (name != text) continue;
      *value = meaning;
      return;
    }
    fail_argument(flag, all, "'" + text + "'");
  };
  return app->add_option_function<std::string>(flag, parse, help)->type_name(all);
}

// --dtype: bf16, fp16 or fp32.
CLI::Option* add_float_dtype(CLI::App* app, flashdelta_dtype* dtype);

// "sm80, sm86, ..".
std::string arch_names();

// OP, by any of its names.
CLI::Option* add_operation(CLI::App* app, std::optional<Operation>* operation);

// Flags of the call itself. check_call_flags: usage error where one of them means nothing to the operation.
void add_call_flags(CLI::App* app, CallOptions* options);
void check_call_flags(const CLI::App& app, Operation operation);

// --backend, --arch, --threads.
struct ExecutionOptions {
  flashdelta_backend backend = FLASHDELTA_BACKEND_AUTO;
  int32_t arch = 0;
  int64_t threads = 0;
};
void add_execution_flags(CLI::App* app, ExecutionOptions* options);

// What run and check share.
struct RunOptions {
  const CLI::App* parser = nullptr;
  std::optional<Operation> operation;
  std::vector<std::string> inputs;
  std::string output;  // "": none (check alone)
  CallOptions call;
  ExecutionOptions execution;
  bool json = false;
  bool counters = false;
};
void add_run_options(CLI::App* app, RunOptions* options, bool output_required);

bool is_attention(Operation operation);
bool is_backward(Operation operation);

}  // namespace flashdelta::cli
