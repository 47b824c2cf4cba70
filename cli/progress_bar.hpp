// A bar on stderr for work that takes long: only where stderr is a terminal, only after half a second.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "flashdelta/flashdelta.h"

namespace flashdelta::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // The library calls this bar, where there is a terminal. The bar must outlive the call.
  void attach(flashdelta_execution* execution);

  static void erase_from_signal_handler();

 private:
  using Clock = std::chrono::steady_clock;

  void update(int64_t done, int64_t total);

  std::string label_;
  Clock::time_point start_ = Clock::now(), next_;
  static std::atomic<bool> visible_;
};

}  // namespace flashdelta::cli
