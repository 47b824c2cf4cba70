#include "progress_bar.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace flashdelta::cli {
namespace {

constexpr auto first_after = std::chrono::milliseconds(500);
constexpr auto again_after = std::chrono::milliseconds(100);
constexpr std::string_view erase_line = "\r\x1b[K";

bool terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

std::atomic<bool> ProgressBar::visible_{false};

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), next_(start_ + first_after) {}

ProgressBar::~ProgressBar() { erase_from_signal_handler(); }

void ProgressBar::attach(flashdelta_execution* execution) {
  if (!terminal()) return;
  execution->progress_user = this;
  execution->progress = [](void* bar, int64_t done, int64_t total) -> int32_t {
    static_cast<ProgressBar*>(bar)->update(done, total);
    return 0;
  };
}

void ProgressBar::erase_from_signal_handler() {
  if (!visible_.exchange(false)) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, erase_line.data(), erase_line.size());
}

void ProgressBar::update(int64_t done, int64_t total) {
  const auto now = Clock::now();
  if (now < next_ || total <= 0) return;
  next_ = now + again_after;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  constexpr int width = 30;
  const int filled = static_cast<int>(share * width);
  const std::string left = share > 0 ? fmt::format("{:.0f} s left", elapsed / share - elapsed) : "";
  visible_.store(true);
  fmt::print(stderr, "{}{} [{:=<{}}{:<{}}] {:3.0f}%  {}", erase_line, label_, "", filled, "", width - filled,
             share * 100, left);
  std::fflush(stderr);
}

}  // namespace flashdelta::cli
