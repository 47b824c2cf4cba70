// Runs a program as a shell would: its exit code, stdout and stderr.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashdelta {

struct ProgramResult {
  int code = -1;  // of an exit; 128 + signal where one killed it
  std::string out, err;
};

// Send `signal` once stderr holds `after`.
struct SignalWhen {
  int signal = 0;
  std::string after;
};

// stdout_path: a file or device in stdout's place; "": captured.
inline ProgramResult run_program(std::vector<std::string> arguments, const SignalWhen& interrupt = {},
                                 const std::string& stdout_path = "") {
  int out[2], err[2];
  if (::pipe(out) != 0 || ::pipe(err) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no fork");
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);  // a test run in the background has it ignored
    if (!stdout_path.empty()) out[1] = ::open(stdout_path.c_str(), O_WRONLY);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    for (const int fd : {out[0], out[1], err[0], err[1]}) ::close(fd);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);

  ProgramResult result;
  bool sent = interrupt.signal == 0;
  pollfd ends[] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[] = {&result.out, &result.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    ::poll(ends, 2, -1);
    for (int i = 0; i < 2; i++) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(ends[i].fd, buffer, sizeof(buffer));
      if (got > 0) {
        texts[i]->append(buffer, static_cast<size_t>(got));
      } else {
        ::close(ends[i].fd);
        ends[i].fd = -1;
      }
    }
    if (!sent && result.err.find(interrupt.after) != std::string::npos) {
      ::kill(child, interrupt.signal);
      sent = true;
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace flashdelta
