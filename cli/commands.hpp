// The subcommands. Each adds itself to the parser and hands back what to do when it was the one chosen; the int is the
// exit code, a Failure any other end.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace flashdelta::cli {

struct Command {
  CLI::App* parser = nullptr;
  std::function<int()> run;
};

Command add_info(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_run(CLI::App& app);
Command add_check(CLI::App& app);
Command add_bench(CLI::App& app);

}  // namespace flashdelta::cli
