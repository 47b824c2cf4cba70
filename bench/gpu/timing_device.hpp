// A Device that keeps the time of each launch, kernel by kernel.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bench/gpu/runtime_device.hpp"
#include "device/forwarding_device.hpp"

namespace flashdelta::bench {

class TimingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  Status launch(const KernelLaunch& launch, void* stream) override {
    cudaEvent_t begin, end;
    check_cuda(cudaEventCreate(&begin), "an event");
    check_cuda(cudaEventCreate(&end), "an event");
    check_cuda(cudaEventRecord(begin, static_cast<cudaStream_t>(stream)), "an event");
    const Status status = ForwardingDevice::launch(launch, stream);
    check_cuda(cudaEventRecord(end, static_cast<cudaStream_t>(stream)), "an event");
    check_cuda(cudaEventSynchronize(end), "a launch");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "a time");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    times_[std::string(launch.kernel)].push_back(ms);
    return status;
  }

  // Prints each kernel's median in ms.
  void print() {
    for (auto& [kernel, times] : times_) {
      std::sort(times.begin(), times.end());
      std::printf("  %-45s %8.4f\n", kernel.c_str(), times[times.size() / 2]);
    }
  }

 private:
  std::map<std::string, std::vector<float>> times_;
};

}  // namespace flashdelta::bench
