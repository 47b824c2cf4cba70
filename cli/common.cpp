#include "common.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "io/file_access.hpp"
#include "progress_bar.hpp"

namespace flashdelta::cli {
namespace {

void interrupted(int signal) {
  remove_partial_output();
  ProgressBar::erase_from_signal_handler();
  const char* message = signal == SIGINT ? "flashdelta: interrupted\n" : "flashdelta: terminated\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message, std::strlen(message));
  ::_exit(signal == SIGINT ? kExitInterrupted : kExitTerminated);
}

void check_stdout(bool ok) {
  if (!ok) throw Failure(kExitFile, fmt::format("stdout: cannot write: {}", std::strerror(errno)));
}

}  // namespace

void fail_argument(std::string_view argument, std::string_view expected, std::string_view got) {
  throw Failure(kExitUsage, invalid(argument, expected, got).message);
}

void throw_if_failed(const Status& status) {
  switch (status.code) {
    case FLASHDELTA_OK: return;
    case FLASHDELTA_INVALID_ARGUMENT: throw Failure(kExitUsage, status.message);
    case FLASHDELTA_NOT_SUPPORTED:
    case FLASHDELTA_DEVICE_ERROR:
    case FLASHDELTA_OUT_OF_MEMORY: throw Failure(kExitNotSupported, status.message);
    case FLASHDELTA_CANCELLED: throw Failure(kExitInterrupted, status.message);
    default: throw Failure(kExitInternal, fmt::format("{}: {}", flashdelta_status_name(status.code), status.message));
  }
}

void throw_if_failed(const FileError& error) {
  if (error.ok()) return;
  throw Failure(error.kind == FileError::Kind::malformed ? kExitUsage : kExitFile, error.message);
}

void print(std::string_view text) { check_stdout(std::fwrite(text.data(), 1, text.size(), stdout) == text.size()); }

void print_json(const nlohmann::ordered_json& document) {
  print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void finish_output() { check_stdout(std::fflush(stdout) == 0 && std::ferror(stdout) == 0); }

void note(std::string_view message) { fmt::print(stderr, "flashdelta: {}\n", printable(message, 2000)); }

std::string coloured(std::string_view text, bool good) {
  static const bool wanted = ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return wanted ? fmt::format("\x1b[{}m{}\x1b[0m", good ? 32 : 31, text) : std::string(text);
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = interrupted;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    // A shell that starts a job in the background has it ignore SIGINT: that stays.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace flashdelta::cli
