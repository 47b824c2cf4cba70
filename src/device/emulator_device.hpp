// The PTX emulator as a device: "device" memory is host memory, a launch returns when it is done, and what the
// detectors find is a DEVICE_ERROR with their report.
#pragma once

#include "device/device.hpp"
#include "emulator/emulator.hpp"

namespace flashdelta {

class EmulatorDevice final : public Device {
 public:
  // arch: whose limits hold. threads: OS threads a launch uses, 0 all. seed 0: warps take turns; else at random.
  EmulatorDevice(const ArchProfile& arch, int threads, uint32_t seed);

  const DeviceInfo& info() const override { return info_; }
  Status prepare(std::string_view kernel) override;
  Status launch(const KernelLaunch& launch, void* stream) override;
  bool map_tensor(const TensorLayout& layout, EncodedTensorMap* map) const override;
  Status allocate(size_t bytes, void** memory) override;
  void release(void* memory) override;
  Status synchronize(void*) override { return {}; }
  Status copy_to_device(void* to, const void* from, size_t bytes) override;
  Status copy_to_host(void* to, const void* from, size_t bytes) override;

  // Of all launches so far.
  const emulator::Counters& counters() const { return counters_; }

 private:
  DeviceInfo info_;
  int threads_;
  uint32_t seed_;
  emulator::Counters counters_;
};

// Counters of this thread's last call on the emulator backend; all zero before one.
const emulator::Counters& last_emulator_counters();

}  // namespace flashdelta
