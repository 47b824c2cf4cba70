// bench: times cases; warm-up first, then the median and the spread of the runs.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "bench_cases.hpp"
#include "commands.hpp"
#include "common.hpp"
#include "cpu/cpu.hpp"
#include "execute.hpp"
#include "io/bound_call.hpp"
#include "progress_bar.hpp"

namespace flashdelta::cli {
namespace {

constexpr uint64_t input_seed = 1;

enum class Format { table, json, csv };

struct BenchOptions {
  BenchSelection selection;
  ExecutionOptions execution;
  int64_t repeat = 5, warmup = 1;
  Format format = Format::table;
  bool json = false, list = false;
};

struct Timing {
  std::string name, dtype, backend;
  Operation operation = Operation::attention_forward;
  int threads = 0;
  double median = 0, least = 0, most = 0;  // seconds
  CallCost cost;
  int64_t tokens = 0;

  double per_second(double amount) const { return median > 0 ? amount / median : 0; }
};

double run_once(BoundCall& call) {
  const auto start = std::chrono::steady_clock::now();
  throw_if_failed(call.run());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Query tokens: all of q's dimensions but heads and features.
int64_t token_count(const Call& call) {
  int64_t tokens = 1;
  const auto& shape = call.inputs.at("q").shape();
  for (size_t i = 0; i + 2 < shape.size(); i++) tokens *= shape[i];
  return tokens;
}

Timing time_case(const Case& c, const BenchOptions& options) {
  Call call;
  throw_if_failed(make_call(c.operation, c.inputs(c, input_seed), c.options, &call));
  flashdelta_execution execution = make_execution(options.execution, call);
  ProgressBar bar(c.name);
  bar.attach(&execution);
  BoundCall bound;
  throw_if_failed(bound.bind(call, execution));
  for (int64_t i = 0; i < options.warmup; i++) run_once(bound);
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.repeat; i++) seconds.push_back(run_once(bound));
  std::sort(seconds.begin(), seconds.end());
  Timing timing;
  timing.name = c.name;
  timing.dtype = dtype_name(c.dtype);
  timing.backend = backend_name(execution.backend);
  timing.operation = c.operation;
  timing.threads = cpu::thread_count(execution);
  const size_t middle = seconds.size() / 2;
  timing.median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  timing.least = seconds.front();
  timing.most = seconds.back();
  timing.cost = call_cost(call);
  timing.tokens = token_count(call);
  return timing;
}

nlohmann::ordered_json timing_json(const Timing& t) {
  return {{"name", t.name},
          {"operation", operation_name(t.operation)},
          {"dtype", t.dtype},
          {"backend", t.backend},
          {"threads", t.threads},
          {"median_s", t.median},
          {"min_s", t.least},
          {"max_s", t.most},
          {"gflops", t.per_second(t.cost.flops) * 1e-9},
          {"gbytes_per_s", t.per_second(t.cost.bytes) * 1e-9},
          {"tokens_per_s", t.per_second(static_cast<double>(t.tokens))}};
}

constexpr std::string_view csv_header =
    "name,operation,dtype,backend,threads,median_s,min_s,max_s,gflops,gbytes_per_s,tokens_per_s\n";

std::string csv_line(const Timing& t) {
  return fmt::format("{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g}\n", t.name, operation_name(t.operation),
                     t.dtype, t.backend, t.threads, t.median, t.least, t.most, t.per_second(t.cost.flops) * 1e-9,
                     t.per_second(t.cost.bytes) * 1e-9, t.per_second(static_cast<double>(t.tokens)));
}

constexpr std::string_view row_format = "{:<{}}  {:<19} {:<5} {:>11} {:>11} {:>11} {:>16} {:>12}\n";

std::string table_header(size_t width) {
  return fmt::format(fmt::runtime(row_format), "case", width, "operation", "dtype", "median", "min", "max", "rate",
                     "tokens/s");
}

std::string table_line(const Timing& t, size_t width) {
  return fmt::format(fmt::runtime(row_format), t.name, width, operation_name(t.operation), t.dtype,
                     format_time(t.median), format_time(t.least), format_time(t.most),
                     format_rate(t.cost.flops, t.median),
                     fmt::format("{:.0f}", t.per_second(static_cast<double>(t.tokens))));
}

size_t name_width(const std::vector<Case>& chosen) {
  size_t width = 4;
  for (const Case& c : chosen) width = std::max(width, c.name.size());
  return width;
}

int list_cases(const BenchOptions& options) {
  const auto wanted = [&](const Case& c) {
    return !options.selection.operation || c.operation == *options.selection.operation;
  };
  const size_t width = name_width(cases());
  auto list = nlohmann::ordered_json::array();
  for (const Case& c : cases()) {
    if (!wanted(c)) continue;
    list.push_back(
        {{"name", c.name}, {"operation", operation_name(c.operation)}, {"bench", c.bench}, {"source", c.source}});
    if (options.format == Format::table) {
      print(fmt::format("{:<{}}  {:<19}  {:<5}  {}\n", c.name, width, operation_name(c.operation),
                        c.bench ? "bench" : "", c.source));
    } else if (options.format == Format::csv) {
      print(fmt::format("{},{},{}\n", c.name, operation_name(c.operation), c.bench ? "bench" : ""));
    }
  }
  if (options.format == Format::json) print_json({{"schema_version", schema_version}, {"cases", std::move(list)}});
  return kExitOk;
}

int bench_command(BenchOptions& options) {
  if (options.json) options.format = Format::json;
  if (options.selection.operation) refuse_backward(*options.selection.operation, options.execution);
  if (options.list) return list_cases(options);
  throw_if_unavailable(options.execution.backend);
  const std::vector<Case> chosen = select_cases(options.selection);
  const size_t width = name_width(chosen);
  auto results = nlohmann::ordered_json::array();
  std::string named_backend;
  for (const Case& c : chosen) {
    const Timing timing = time_case(c, options);
    if (timing.backend != named_backend) note(fmt::format("backend {}, {} threads", timing.backend, timing.threads));
    named_backend = timing.backend;
    if (options.format == Format::table)
      print((results.empty() ? table_header(width) : "") + table_line(timing, width));
    if (options.format == Format::csv) print((results.empty() ? std::string(csv_header) : "") + csv_line(timing));
    results.push_back(timing_json(timing));
    finish_output();  // a row shows when it is there
  }
  if (options.format == Format::json) {
    print_json({{"schema_version", schema_version},
                {"warmup", options.warmup},
                {"repeat", options.repeat},
                {"results", std::move(results)}});
  }
  return kExitOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto* parser = app.add_subcommand("bench", "Time the case list, cases of it, or one case from flags");
  const auto options = std::make_shared<BenchOptions>();
  add_bench_selection(parser, &options->selection);
  parser->add_flag("--list", options->list, "show the cases; those marked bench are the default");
  add_integer(parser, "--repeat", &options->repeat, 1, 1000000, "timed runs (default 5)");
  add_integer(parser, "--warmup", &options->warmup, 0, 1000000, "runs before them (default 1)");
  add_choice<Format>(parser, "--format", &options->format,
                     {{"table", Format::table}, {"json", Format::json}, {"csv", Format::csv}}, "(default table)");
  parser->add_flag("--json", options->json, "--format json");
  add_execution_flags(parser, &options->execution);
  return {parser, [=] { return bench_command(*options); }};
}

}  // namespace flashdelta::cli
