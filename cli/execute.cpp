#include "execute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>

#include "common.hpp"
#include "io/bound_call.hpp"
#include "io/tensor_file.hpp"
#include "progress_bar.hpp"

namespace flashdelta::cli {
namespace {

constexpr std::string_view attention_tensors[] = {
    "q", "k", "v", "sink", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "cache_batch_idx", "page_table"};
constexpr std::string_view gated_delta_tensors[] = {"q",
                                                    "k",
                                                    "v",
                                                    "g",
                                                    "beta",
                                                    "A_log",
                                                    "a",
                                                    "dt_bias",
                                                    "b",
                                                    "initial_state",
                                                    "initial_state_indices",
                                                    "final_state_indices",
                                                    "token_state_indices",
                                                    "num_accepted_tokens",
                                                    "cu_seqlens"};

bool reads(Operation operation, std::string_view name) {
  const auto names = is_attention(operation) ? std::span<const std::string_view>(attention_tensors)
                                             : std::span<const std::string_view>(gated_delta_tensors);
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status last_error(flashdelta_status code) {
  return code == FLASHDELTA_OK ? Status{} : Status{code, flashdelta_last_error()};
}

Status check_on(const Call& call, const flashdelta_execution& execution) {
  if (is_attention(call.operation)) return last_error(flashdelta_attention_forward_check(&call.attention, &execution));
  return last_error(flashdelta_gated_delta_forward_check(&call.gated_delta, &execution));
}

}  // namespace

const char* backend_name(flashdelta_backend backend) {
  switch (backend) {
    case FLASHDELTA_BACKEND_AUTO: return "auto";
    case FLASHDELTA_BACKEND_CPU: return "cpu";
    case FLASHDELTA_BACKEND_CUDA: return "cuda";
    default: return "emulator";
  }
}

void refuse_backward(Operation operation, const ExecutionOptions& options) {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = options.backend;
  if (operation == Operation::attention_backward) {
    flashdelta_attention_backward_args args;
    flashdelta_attention_backward_init(&args);
    throw_if_failed(last_error(flashdelta_attention_backward(&args, &execution, nullptr, 0)));
  }
  if (operation == Operation::gated_delta_backward) {
    flashdelta_gated_delta_backward_args args;
    flashdelta_gated_delta_backward_init(&args);
    throw_if_failed(last_error(flashdelta_gated_delta_backward(&args, &execution, nullptr, 0)));
  }
}

void throw_if_unavailable(flashdelta_backend backend) {
  throw_if_failed(last_error(flashdelta_backend_available(backend)));
}

TensorMap read_inputs(const std::vector<std::string>& paths, Operation operation) {
  TensorMap tensors;
  std::vector<std::string> other_kinds;
  for (const std::string& path : paths) throw_if_failed(read_tensors(path, &tensors, &other_kinds));
  std::vector<std::string> unused;
  for (const std::string& text : other_kinds) {
    const size_t colon = text.rfind(": ");
    const std::string name = text.substr(0, colon);
    if (reads(operation, name)) {
      fail_argument(name, fmt::format("BF16, F16, F32, I32 or I64 in at most {} dimensions", FLASHDELTA_MAX_NDIM),
                    text.substr(colon + 2));
    }
    unused.push_back(name);
  }
  for (const auto& [name, tensor] : tensors) {
    if (!reads(operation, name)) unused.push_back(name);
  }
  std::sort(unused.begin(), unused.end());
  constexpr size_t shown = 12;
  const size_t more = unused.size() > shown ? unused.size() - shown : 0;
  unused.resize(unused.size() - more);
  if (more > 0) unused.push_back(fmt::format("and {} more", more));
  if (!unused.empty()) note(fmt::format("ignored: {}", fmt::join(unused, ", ")));
  return tensors;
}

flashdelta_execution make_execution(const ExecutionOptions& options, const Call& call) {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.arch = options.arch;
  execution.num_threads = static_cast<int32_t>(options.threads);
  execution.backend = options.backend;
  if (options.backend == FLASHDELTA_BACKEND_AUTO) {
    // Here auto is the best backend that supports the call: files' tensors go to any memory.
    execution.backend = FLASHDELTA_BACKEND_CUDA;
    if (!check_on(call, execution).ok()) execution.backend = FLASHDELTA_BACKEND_CPU;
  }
  throw_if_failed(check_on(call, execution));
  return execution;
}

Executed execute(const RunOptions& options) {
  const Operation operation = *options.operation;
  check_call_flags(*options.parser, operation);
  refuse_backward(operation, options.execution);
  throw_if_unavailable(options.execution.backend);
  Executed executed;
  throw_if_failed(make_call(operation, read_inputs(options.inputs, operation), options.call, &executed.call));
  flashdelta_execution execution = make_execution(options.execution, executed.call);
  executed.backend = execution.backend;
  if (!options.output.empty()) throw_if_failed(check_output(options.output));
  note(fmt::format("backend {}", backend_name(execution.backend)));
  ProgressBar bar{std::string(operation_name(operation))};
  bar.attach(&execution);
  BoundCall bound;
  throw_if_failed(bound.bind(executed.call, execution));
  const auto start = std::chrono::steady_clock::now();
  throw_if_failed(bound.run());
  executed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  throw_if_failed(bound.fetch());
  executed.cost = call_cost(executed.call);
  return executed;
}

std::string format_rate(double flops, double seconds) {
  const double rate = seconds > 0 ? flops / seconds : 0;
  if (rate >= 1e12) return fmt::format("{:.2f} TFLOP/s", rate * 1e-12);
  return fmt::format("{:.2f} GFLOP/s", rate * 1e-9);
}

std::string format_time(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string format_shape(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

nlohmann::ordered_json describe(const Executed& executed) {
  return {{"schema_version", schema_version},
          {"operation", operation_name(executed.call.operation)},
          {"backend", backend_name(executed.backend)},
          {"seconds", executed.seconds},
          {"gflops", executed.seconds > 0 ? executed.cost.flops / executed.seconds * 1e-9 : 0.0}};
}

}  // namespace flashdelta::cli
