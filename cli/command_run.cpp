// run: one call on tensors from a file, its outputs to a file.
#include <fmt/core.h>

#include <memory>

#include "commands.hpp"
#include "common.hpp"
#include "counters.hpp"
#include "execute.hpp"

namespace flashdelta::cli {
namespace {

int run_command(const RunOptions& options) {
  check_counters(options);
  const Executed executed = execute(options);
  throw_if_failed(write_tensors(options.output, executed.call.outputs));
  std::string written;
  auto outputs = nlohmann::ordered_json::array();
  for (const auto& [name, tensor] : executed.call.outputs) {
    written += fmt::format("{}{} {} {}", written.empty() ? "" : ", ", name, dtype_name(tensor.dtype()),
                           format_shape(tensor.shape()));
    outputs.push_back({{"name", name}, {"dtype", dtype_name(tensor.dtype())}, {"shape", tensor.shape()}});
  }
  note(fmt::format("{} in {} ({}); {}: {}", operation_name(executed.call.operation), format_time(executed.seconds),
                   format_rate(executed.cost.flops, executed.seconds), options.output, written));
  if (options.json) {
    auto document = describe(executed);
    document["output"] = options.output;
    document["outputs"] = std::move(outputs);
    if (options.counters) document["counters"] = counters_json();
    print_json(document);
  } else if (options.counters) {
    print(counters_table());
  }
  return kExitOk;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto* parser = app.add_subcommand("run", "Run an operation on the tensors of a file");
  const auto options = std::make_shared<RunOptions>();
  add_run_options(parser, options.get(), true);
  return {parser, [=] { return run_command(*options); }};
}

}  // namespace flashdelta::cli
