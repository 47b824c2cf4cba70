// check: run, then every output against the float64 oracle.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "common.hpp"
#include "counters.hpp"
#include "execute.hpp"

namespace flashdelta::cli {
namespace {

// Which rows of a large output are compared; fixed, so that a check can be repeated.
constexpr uint64_t sampling_seed = 1;

std::string check_table(const std::vector<OutputError>& errors) {
  std::string table =
      fmt::format("{:<12} {:>10} {:>10}  {:<22} {}\n", "tensor", "error", "tolerance", "rows checked", "verdict");
  for (const OutputError& e : errors) {
    const std::string rows = fmt::format("{} of {}", e.rows_checked, e.rows);
    table += fmt::format("{:<12} {:>10.2e} {:>10.0e}  {:<22} {}\n", e.name, e.relative_l2, e.tolerance, rows,
                         e.fault.empty() ? coloured("ok", true) : coloured("WRONG", false) + ": " + e.fault);
  }
  return table;
}

nlohmann::ordered_json check_json(const Executed& executed, const std::vector<OutputError>& errors, bool passed) {
  auto document = describe(executed);
  document["passed"] = passed;
  auto& tensors = document["tensors"] = nlohmann::ordered_json::array();
  for (const OutputError& e : errors) {
    tensors.push_back({{"name", e.name},
                       {"error", e.relative_l2},
                       {"tolerance", e.tolerance},
                       {"rows_checked", e.rows_checked},
                       {"rows", e.rows},
                       {"passed", e.fault.empty()},
                       {"fault", e.fault}});
  }
  return document;
}

int check_command(const RunOptions& options) {
  check_counters(options);
  const Executed executed = execute(options);
  if (!options.output.empty()) throw_if_failed(write_tensors(options.output, executed.call.outputs));
  std::vector<OutputError> errors;
  throw_if_failed(check_call(executed.call, sampling_seed, &errors));
  const bool passed = std::all_of(errors.begin(), errors.end(), [](const auto& e) { return e.fault.empty(); });
  if (options.json) {
    auto document = check_json(executed, errors, passed);
    if (options.counters) document["counters"] = counters_json();
    print_json(document);
  } else {
    print(check_table(errors));
    print(fmt::format("{} on {}: {}, {}\n", operation_name(executed.call.operation), backend_name(executed.backend),
                      format_time(executed.seconds), format_rate(executed.cost.flops, executed.seconds)));
    if (options.counters) print(counters_table());
  }
  if (!passed) note("the result is wrong: an output is beyond its tolerance");
  return passed ? kExitOk : kExitCheckFailed;
}

}  // namespace

Command add_check(CLI::App& app) {
  auto* parser = app.add_subcommand("check", "Run an operation and compare it with the float64 oracle");
  const auto options = std::make_shared<RunOptions>();
  add_run_options(parser, options.get(), false);
  return {parser, [=] { return check_command(*options); }};
}

}  // namespace flashdelta::cli
