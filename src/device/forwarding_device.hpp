// A device that passes every call on to another: for those that watch what goes by.
#pragma once

#include "device/device.hpp"

namespace flashdelta {

class ForwardingDevice : public Device {
 public:
  // device: outlives this one.
  explicit ForwardingDevice(Device& device) : device_(device) {}

  const DeviceInfo& info() const override { return device_.info(); }
  Status prepare(std::string_view kernel) override { return device_.prepare(kernel); }
  Status launch(const KernelLaunch& launch, void* stream) override { return device_.launch(launch, stream); }
  bool map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const override {
    return device_.map_tensor(layout, map);
  }
  Status allocate(size_t bytes, void** memory) override { return device_.allocate(bytes, memory); }
  void release(void* memory) override { device_.release(memory); }
  Status synchronize(void* stream) override { return device_.synchronize(stream); }
  Status copy_to_device(void* to, const void* from, size_t bytes) override {
    return device_.copy_to_device(to, from, bytes);
  }
  Status copy_to_host(void* to, const void* from, size_t bytes) override {
    return device_.copy_to_host(to, from, bytes);
  }

 private:
  Device& device_;
};

}  // namespace flashdelta
