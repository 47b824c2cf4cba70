// info: what this build is and what this machine lends it.
#include <fmt/core.h>
#include <omp.h>

#include <fstream>
#include <memory>

#include "commands.hpp"
#include "common.hpp"
#include "core/profiles.hpp"
#include "cpu/simd.hpp"
#include "cpu/simd_targets.hpp"
#include "execute.hpp"
#if FLASHDELTA_GPU
#include "device/device.hpp"
#endif

// After simd_targets.hpp, so that HWY_TARGETS is what the backend was compiled for.
#include <hwy/targets.h>

namespace flashdelta::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Of the instruction sets that the backend was compiled for: all, or those that this processor has.
Json target_names(bool on_this_cpu) {
  Json names = Json::array();
  const int64_t mask = HWY_TARGETS & (on_this_cpu ? hwy::SupportedTargets() : -1);
  for (int64_t bits = mask; bits != 0; bits &= bits - 1) names.push_back(hwy::TargetName(bits & -bits));
  return names;
}

Json backends_json() {
  Json backends = Json::array();
  for (const auto backend : {FLASHDELTA_BACKEND_CPU, FLASHDELTA_BACKEND_CUDA, FLASHDELTA_BACKEND_EMULATOR}) {
    const bool available = flashdelta_backend_available(backend) == FLASHDELTA_OK;
    std::string_view reason = available ? "" : flashdelta_last_error();
    const std::string prefix = std::string(backend_name(backend)) + ": ";
    if (reason.starts_with(prefix)) reason.remove_prefix(prefix.size());
    backends.push_back({{"name", backend_name(backend)}, {"available", available}, {"reason", reason}});
  }
  return backends;
}

// The GPUs that the driver shows; none where the build has no GPU code or the machine no driver.
Json devices_json() {
  Json devices = Json::array();
#if FLASHDELTA_GPU
  Device* device = nullptr;
  for (int ordinal = 0; open_cuda_device(ordinal, &device).ok(); ordinal++) {
    const DeviceInfo& info = device->info();
    devices.push_back({{"name", info.name},
                       {"profile", info.arch == nullptr ? Json(nullptr) : Json(info.arch->name)},
                       {"sm_count", info.sm_count},
                       {"shared_bytes_block", info.shared_bytes_block}});
  }
#endif
  return devices;
}

Json profiles_json() {
  Json profiles = Json::array();
  for (const ArchProfile& arch : arch_profiles()) {
    profiles.push_back({{"name", arch.name},
                        {"target", arch.target},
                        {"shared_bytes_block", arch.shared_bytes_block},
                        {"shared_bytes_sm", arch.shared_bytes_sm},
                        {"shared_bytes_reserved", arch.shared_bytes_reserved},
                        {"threads_sm", arch.threads_sm},
                        {"registers_sm", arch.registers_sm}});
  }
  return profiles;
}

Json number_or_null(const std::optional<double>& number) { return number ? Json(*number) : Json(nullptr); }

Json cards_json() {
  Json cards = Json::array();
  for (const DeviceProfile& card : device_profiles()) {
    cards.push_back({{"name", card.name},
                     {"arch", card.arch->name},
                     {"sm_count", card.sm_count},
                     {"mma_sync_bf16_tflops", number_or_null(card.mma_sync_bf16_tflops)},
                     {"memory_tb_per_s", number_or_null(card.memory_tb_per_s)}});
  }
  return cards;
}

Json info_json() {
  return {
      {"schema_version", schema_version},
      {"version", flashdelta_version()},
      {"build",
       {{"compiler", FLASHDELTA_COMPILER},
        {"type", FLASHDELTA_BUILD_TYPE},
        {"cuda_toolkit", std::string_view(FLASHDELTA_CUDA_TOOLKIT).empty() ? Json(nullptr) : FLASHDELTA_CUDA_TOOLKIT},
        {"highway_targets", target_names(false)}}},
      {"cpu",
       {{"model", cpu_model()},
        {"instruction_sets", target_names(true)},
        {"in_use", cpu::simd_target()},
        {"threads", omp_get_max_threads()}}},
      {"devices", devices_json()},
      {"backends", backends_json()},
      {"profiles", profiles_json()},
      {"cards", cards_json()}};
}

std::string words(const Json& names) {
  std::string all;
  for (const Json& name : names) all += (all.empty() ? "" : " ") + name.get<std::string>();
  return all.empty() ? "none" : all;
}

std::string number_text(const Json& number) {
  return number.is_null() ? "unknown" : fmt::format("{:.2f}", number.get<double>());
}

// The JSON document's facts for people; one source for both.
std::string info_text(const Json& info) {
  const Json& build = info["build"];
  const Json& processor = info["cpu"];
  std::string text = fmt::format("flashdelta {}\n", info["version"].get<std::string>());
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18} {}\n", name, value);
  };
  line("compiler", build["compiler"].get<std::string>());
  line("build type", build["type"].get<std::string>());
  line("CUDA toolkit", build["cuda_toolkit"].is_null() ? "none" : build["cuda_toolkit"].get<std::string>());
  line("compiled for", words(build["highway_targets"]));
  line("CPU", processor["model"].get<std::string>());
  line("CPU code in use", processor["in_use"].get<std::string>() + " of " + words(processor["instruction_sets"]));
  line("threads", std::to_string(processor["threads"].get<int>()));
  if (info["devices"].empty()) line("GPU devices", "none");
  for (const Json& device : info["devices"]) {
    line("GPU device", fmt::format("{}, {} SMs, {} bytes of shared memory a block", device["name"].get<std::string>(),
                                   device["sm_count"].get<int>(), device["shared_bytes_block"].get<int64_t>()));
  }
  text += "backends\n";
  for (const Json& backend : info["backends"]) {
    line(backend["name"].get<std::string>(),
         backend["available"].get<bool>() ? "available" : "no; " + backend["reason"].get<std::string>());
  }
  text += "profiles              shared memory a block, an SM (bytes)    threads an SM\n";
  for (const Json& arch : info["profiles"]) {
    line(arch["name"].get<std::string>(),
         fmt::format("{:>22} {:>14} {:>19}", arch["shared_bytes_block"].get<int64_t>(),
                     arch["shared_bytes_sm"].get<int64_t>(), arch["threads_sm"].get<int64_t>()));
  }
  text += "cards                 SMs   bf16 mma.sync TFLOP/s   memory TB/s\n";
  for (const Json& card : info["cards"]) {
    line(card["name"].get<std::string>(),
         fmt::format("{:>4} {:>23} {:>13}   ({})", card["sm_count"].get<int>(),
                     number_text(card["mma_sync_bf16_tflops"]), number_text(card["memory_tb_per_s"]),
                     card["arch"].get<std::string>()));
  }
  return text;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto* parser = app.add_subcommand("info", "Show the build, the processor, devices, backends and profiles");
  const auto json = std::make_shared<bool>(false);
  parser->add_flag("--json", *json, "one JSON document on stdout");
  return {parser, [=] {
            const Json info = info_json();
            if (*json) {
              print_json(info);
            } else {
              print(info_text(info));
            }
            return kExitOk;
          }};
}

}  // namespace flashdelta::cli
