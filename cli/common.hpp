// What every subcommand meets: exit codes, the one kind of failure, checked output, interrupts.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "io/tensor_file.hpp"

namespace flashdelta::cli {

enum ExitCode {
  kExitOk = 0,
  kExitCheckFailed = 1,
  kExitUsage = 2,         // a wrong argument, or a file that holds the wrong thing
  kExitNotSupported = 3,  // right, but not on this machine, backend or version
  kExitFile = 4,          // a file cannot be opened, read or written
  kExitInternal = 70,     // a bug of flashdelta's
  kExitInterrupted = 130,
  kExitTerminated = 143,
};

// Ends the program with a code and one line on stderr.
struct Failure : std::runtime_error {
  Failure(ExitCode exit_code, const std::string& message) : std::runtime_error(message), code(exit_code) {}
  ExitCode code;
};

[[noreturn]] void fail_argument(std::string_view argument, std::string_view expected, std::string_view got);
void throw_if_failed(const Status& status);
void throw_if_failed(const FileError& error);

// Data, to stdout. A write that fails is a Failure; finish_output is the last one's check.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& document);
void finish_output();

// One line to stderr: "flashdelta: ...", control characters escaped.
void note(std::string_view message);

// Colours, where stdout is a terminal and NO_COLOR is not set.
std::string coloured(std::string_view text, bool good);

// SIGINT and SIGTERM end the program with 130 and 143 and remove the output in progress; a reader that closes a pipe is
// an error of writing, not a signal.
void handle_signals();

constexpr int schema_version = 1;

}  // namespace flashdelta::cli
