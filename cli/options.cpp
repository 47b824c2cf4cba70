#include "options.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "core/profiles.hpp"

namespace flashdelta::cli {
namespace {

constexpr const char* attention_flags[] = {"--causal", "--window", "--softcap"};
constexpr const char* gated_delta_flags[] = {"--l2norm",           "--state-layout",    "--chunk",
                                             "--context-parallel", "--decay-threshold", "--beta-scale",
                                             "--checkpoint-every"};

// CLI11 splits "--flag value" itself; this one sees the value's text before anything converts it.
CLI::Option* add_text(CLI::App* app, const std::string& flag, const std::string& value_name, const std::string& help,
                      std::function<void(const std::string&)> parse) {
  return app->add_option_function<std::string>(flag, std::move(parse), help)->type_name(value_name);
}

void parse_window(const std::string& text, CallOptions* options) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos) fail_argument("--window", "two numbers LEFT,RIGHT", "'" + text + "'");
  options->window_left = parse_integer("--window", std::string_view(text).substr(0, comma), -1);
  options->window_right = parse_integer("--window", std::string_view(text).substr(comma + 1), -1);
}

}  // namespace

int64_t parse_integer(std::string_view flag, std::string_view text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return value;
  const std::string range = most == INT64_MAX ? fmt::format("a whole number from {}", least)
                                              : fmt::format("a whole number from {} to {}", least, most);
  fail_argument(flag, range, fmt::format("'{}'", text));
}

double parse_finite(std::string_view flag, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  fail_argument(flag, "a finite number", fmt::format("'{}'", text));
}

CLI::Option* add_integer(CLI::App* app, const std::string& flag, int64_t* value, int64_t least, int64_t most,
                         const std::string& help) {
  return add_text(app, flag, "N", help,
                  [=](const std::string& text) { *value = parse_integer(flag, text, least, most); });
}

CLI::Option* add_finite(CLI::App* app, const std::string& flag, double* value, const std::string& help) {
  return add_text(app, flag, "F", help, [=](const std::string& text) { *value = parse_finite(flag, text); });
}

CLI::Option* add_float_dtype(CLI::App* app, flashdelta_dtype* dtype) {
  return add_choice<flashdelta_dtype>(app, "--dtype", dtype,
                                      {{"bf16", FLASHDELTA_BF16}, {"fp16", FLASHDELTA_FP16}, {"fp32", FLASHDELTA_FP32}},
                                      "of q, k and v (default bf16)");
}

std::string arch_names() {
  std::string names;
  for (const ArchProfile& arch : arch_profiles()) names += fmt::format("{}{}", names.empty() ? "" : ", ", arch.name);
  return names;
}

CLI::Option* add_operation(CLI::App* app, std::optional<Operation>* operation) {
  const std::string help =
      "attention-forward, attention-backward, gated-delta-forward or gated-delta-backward "
      "(gdn-forward and gdn-backward are the last two)";
  return add_text(app, "OP", "", help, [=](const std::string& text) {
    *operation = parse_operation(text);
    if (!*operation) {
      fail_argument("OP", "attention-forward, attention-backward, gated-delta-forward or gated-delta-backward",
                    "'" + text + "'");
    }
  });
}

void add_call_flags(CLI::App* app, CallOptions* options) {
  add_text(app, "--scale", "F", "multiplies q k^T (default: head size to the power -0.5)",
           [=](const std::string& text) { options->scale = parse_finite("--scale", text); });
  constexpr const char* attention = "Attention";
  app->add_flag("--causal", options->causal, "no key after the query, aligned to the last key")->group(attention);
  add_text(app, "--window", "L,R", "keys seen before and after the query's place, itself included; -1: all",
           [=](const std::string& text) { parse_window(text, options); })
      ->group(attention);
  add_finite(app, "--softcap", &options->softcap, "scores become F tanh(score / F); 0: off")->group(attention);

  constexpr const char* delta = "Gated delta rule";
  app->add_flag("--l2norm", options->l2norm, "normalise q and k")->group(delta);
  add_choice<flashdelta_state_layout>(app, "--state-layout", &options->state_layout,
                                      {{"kv", FLASHDELTA_STATE_KV}, {"vk", FLASHDELTA_STATE_VK}},
                                      "order of a state's last two dimensions (default kv)")
      ->group(delta);
  add_choice<int>(app, "--chunk", &options->chunk, {{"0", 0}, {"32", 32}, {"64", 64}},
                  "tokens a chunk; 0: the plan's (default)")
      ->group(delta);
  add_choice<flashdelta_context_parallel>(app, "--context-parallel", &options->context_parallel,
                                          {{"off", FLASHDELTA_CONTEXT_PARALLEL_OFF},
                                           {"exact", FLASHDELTA_CONTEXT_PARALLEL_EXACT},
                                           {"decay_start", FLASHDELTA_CONTEXT_PARALLEL_DECAY_START}},
                                          "cut long sequences into parallel segments (default exact)")
      ->group(delta);
  add_finite(app, "--decay-threshold", &options->decay_threshold,
             "decay_start: the log decay from which an old state counts as nothing (default -9)")
      ->group(delta);
  add_text(app, "--beta-scale", "1|2", "beta = F sigmoid(b) (default 1)", [=](const std::string& text) {
    options->beta_scale = parse_finite("--beta-scale", text);
    if (options->beta_scale != 1 && options->beta_scale != 2) fail_argument("--beta-scale", "1 or 2", "'" + text + "'");
  })->group(delta);
  add_integer(app, "--checkpoint-every", &options->checkpoint_every, 0, INT64_MAX,
              "also write the state after every N tokens, a multiple of 64; 0: none (default)")
      ->group(delta);
}

void check_call_flags(const CLI::App& app, Operation operation) {
  const auto refuse = [&](const char* flag, const char* operations) {
    if (app.count(flag) != 0) fail_argument(flag, operations, operation_name(operation));
  };
  if (is_attention(operation)) {
    for (const char* flag : gated_delta_flags) refuse(flag, "a gated delta operation");
  } else {
    for (const char* flag : attention_flags) refuse(flag, "an attention operation");
  }
}

void add_execution_flags(CLI::App* app, ExecutionOptions* options) {
  constexpr const char* group = "Execution";
  add_choice<flashdelta_backend>(app, "--backend", &options->backend,
                                 {{"auto", FLASHDELTA_BACKEND_AUTO},
                                  {"cpu", FLASHDELTA_BACKEND_CPU},
                                  {"cuda", FLASHDELTA_BACKEND_CUDA},
                                  {"emulator", FLASHDELTA_BACKEND_EMULATOR}},
                                 "auto: cuda, else cpu (default)")
      ->group(group);
  add_text(app, "--arch", "NAME", "plan under the limits of this architecture, as sm120", [=](const std::string& text) {
    const ArchProfile* arch = parse_arch(text);
    if (arch == nullptr) fail_argument("--arch", arch_names(), "'" + text + "'");
    options->arch = arch->major * 10 + arch->minor;
  })->group(group);
  add_integer(app, "--threads", &options->threads, 0, INT32_MAX, "CPU threads; 0: all (default)")->group(group);
}

void add_run_options(CLI::App* app, RunOptions* options, bool output_required) {
  options->parser = app;
  add_operation(app, &options->operation)->required();
  app->add_option("IN", options->inputs, "a safetensors file, or .npy files that bear their tensors' names")
      ->required()
      ->type_name("");
  auto* output = app->add_option("-o,--output", options->output, "the safetensors file to write")->type_name("OUT");
  if (output_required) output->required();
  app->add_flag("--json", options->json, "one JSON document on stdout");
  app->add_flag("--counters", options->counters, "what the emulator counted: instructions, bytes, wavefronts");
  add_call_flags(app, &options->call);
  add_execution_flags(app, &options->execution);
}

bool is_attention(Operation operation) {
  return operation == Operation::attention_forward || operation == Operation::attention_backward;
}

bool is_backward(Operation operation) {
  return operation == Operation::attention_backward || operation == Operation::gated_delta_backward;
}

}  // namespace flashdelta::cli
