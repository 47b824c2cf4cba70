// Runs a test kernel on the emulator: modules are decoded once a program, buffers become regions.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "emulator/emulator.hpp"
#include "emulator/kernels.hpp"

namespace flashdelta::test {

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test_kernels("detectors").empty()) GTEST_SKIP() << "this build had no nvcc: there is no PTX to run";
  }
};

inline const emulator::Module& test_module(const std::string& file) {
  static std::map<std::string, emulator::Module> modules;
  auto it = modules.find(file);
  if (it == modules.end()) {
    it = modules.emplace(file, emulator::Module()).first;
    const Status status = it->second.load(test_kernels(file));
    EXPECT_TRUE(status.ok()) << status.message;
  }
  return it->second;
}

struct Outcome {
  Status status;
  emulator::Report report;
  emulator::Counters counters;
};

// One launch. Buffers are named after their place: "buffer 0", ...
class Launcher {
 public:
  Launcher(const std::string& file, const std::string& kernel) : file_(file) {
    launch.kernel = kernel;
    launch.threads = 2;
  }

  template <class T>
  Launcher& buffer(std::vector<T>& data, emulator::Access access = {}) {
    memory.add(data.data(), data.size() * sizeof(T), "buffer " + std::to_string(memory.regions().size()), access);
    return *this;
  }
  template <class T>
  Launcher& output(std::vector<T>& data) {
    return buffer(data, {.readable = true, .writable = true, .initialised = false});
  }
  // Kernel parameters in order, each at its natural alignment.
  template <class... T>
  Launcher& parameters(const T&... values) {
    launch.parameters.clear();
    (append(values), ...);
    return *this;
  }

  Outcome run(uint32_t seed = 0) {
    Outcome r;
    launch.seed = seed;
    r.status = test_module(file_).launch(memory, launch, &r.report, &r.counters);
    return r;
  }

  emulator::Launch launch;
  emulator::Memory memory;

 private:
  template <class T>
  void append(const T& value) {
    const size_t at = (launch.parameters.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    launch.parameters.resize(at + sizeof(T));
    std::memcpy(launch.parameters.data() + at, &value, sizeof(T));
  }

  std::string file_;
};

}  // namespace flashdelta::test
