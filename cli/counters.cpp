#include "counters.hpp"

#include <fmt/core.h>

#include "common.hpp"
#if FLASHDELTA_GPU
#include "device/emulator_device.hpp"
#endif

namespace flashdelta::cli {

void check_counters(const RunOptions& options) {
  if (!options.counters) return;
#if !FLASHDELTA_GPU
  throw Failure(kExitNotSupported, "--counters: this build had no nvcc and has no emulator, which alone counts");
#endif
  if (options.execution.backend != FLASHDELTA_BACKEND_EMULATOR) {
    throw Failure(kExitUsage, "--counters: expected --backend emulator, which alone counts");
  }
}

nlohmann::ordered_json counters_json() {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
#if FLASHDELTA_GPU
  const emulator::Counters& counters = last_emulator_counters();
  for (size_t i = 0; i < counters.value.size(); i++) {
    if (counters.value[i] != 0) json[emulator::counter_name(static_cast<emulator::Counter>(i))] = counters.value[i];
  }
#endif
  return json;
}

std::string counters_table() {
  std::string table = fmt::format("{:<24} {:>16}\n", "counter", "value");
  const nlohmann::ordered_json counters = counters_json();
  for (const auto& [name, value] : counters.items()) {
    table += fmt::format("{:<24} {:>16}\n", name, value.get<uint64_t>());
  }
  return table;
}

}  // namespace flashdelta::cli
