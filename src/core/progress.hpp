// Counts finished work over threads and lets the caller's callback, on the calling thread alone, stop the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "flashdelta/flashdelta.h"

namespace flashdelta {

class Progress {
 public:
  Progress(const flashdelta_execution& execution, int64_t total)
      : callback_(execution.progress), user_(execution.progress_user), total_(total) {}

  // Any thread, after `units` more of the work; false: stop.
  bool add(int64_t units) {
    const int64_t done = done_.fetch_add(units, std::memory_order_relaxed) + units;
    if (callback_ != nullptr && std::this_thread::get_id() == caller_ && callback_(user_, done, total_) != 0) {
      cancelled_.store(true, std::memory_order_relaxed);
    }
    return !cancelled();
  }

  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  int32_t (*callback_)(void*, int64_t, int64_t);
  void* user_;
  int64_t total_;
  std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<int64_t> done_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace flashdelta
