// flashdelta: the command line. Data goes to stdout, everything else to stderr; docs/cli.md has the exit codes.
#include <fmt/core.h>

#include <exception>
#include <new>
#include <span>
#include <string>

#include "commands.hpp"
#include "common.hpp"

namespace flashdelta::cli {
namespace {

[[noreturn]] void fail_parse(const CLI::App& app, std::span<const Command> commands, const CLI::ParseError& error) {
  std::string names;
  for (const Command& command : commands) {
    const std::string name = command.parser->get_name();
    if (command.parser->parsed()) {
      throw Failure(kExitUsage, fmt::format("{} (see flashdelta {} --help)", error.what(), name));
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  const auto rest = app.remaining();
  fail_argument("subcommand", names + " (see flashdelta --help)", rest.empty() ? "none" : "'" + rest.front() + "'");
}

int run(int argc, char** argv) {
  CLI::App app("Softmax attention and the gated delta rule.");
  app.name("flashdelta");
  app.set_version_flag("--version", std::string("flashdelta ") + flashdelta_version());
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  const Command commands[] = {add_info(app), add_plan(app), add_run(app), add_check(app), add_bench(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    print(fmt::format("{}\n", version.what()));
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    fail_parse(app, commands, error);
  }
  for (const Command& command : commands) {
    if (command.parser->parsed()) return command.run();
  }
  return kExitUsage;
}

int guarded_run(int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    finish_output();
    return code;
  } catch (const Failure& failure) {
    note(failure.what());
    return failure.code;
  } catch (const std::bad_alloc&) {
    note("out of memory");
    return kExitNotSupported;
  } catch (const std::exception& error) {
    note(fmt::format("internal error: {}", error.what()));
    return kExitInternal;
  }
}

}  // namespace
}  // namespace flashdelta::cli

int main(int argc, char** argv) {
  flashdelta::cli::handle_signals();
  return flashdelta::cli::guarded_run(argc, argv);
}
