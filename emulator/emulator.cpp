// The public face: loading, finding, launching, and the names of what is found and counted.
#include "emulator/emulator.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "emulator/block.hpp"
#include "emulator/program.hpp"

namespace flashdelta::emulator {

Status Module::load(std::string_view ptx) {
  ParsedModule parsed;
  FLASHDELTA_RETURN_IF_ERROR(parse_ptx(ptx, &parsed));
  auto program = std::make_shared<Program>();
  FLASHDELTA_RETURN_IF_ERROR(decode_module(parsed, program.get()));
  program_ = std::move(program);
  return {};
}

std::vector<KernelInfo> Module::kernels() const {
  std::vector<KernelInfo> infos;
  for (const Kernel& kernel : program_->kernels) infos.push_back(kernel.info);
  return infos;
}

namespace {

Status find_kernel(const Program& program, std::string_view name, const Kernel** found) {
  *found = nullptr;
  for (const Kernel& kernel : program.kernels) {
    if (kernel.info.name == name) {
      *found = &kernel;
      return {};
    }
  }
  for (const Kernel& kernel : program.kernels) {
    if (kernel.info.name.find(name) == std::string::npos) continue;
    if (*found != nullptr) return invalid("kernel", "a name that only one kernel has", name);
    *found = &kernel;
  }
  if (*found == nullptr) return invalid("kernel", "a kernel of the module", name);
  return {};
}

}  // namespace

Status Module::find(std::string_view name, KernelInfo* info) const {
  const Kernel* kernel = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(find_kernel(*program_, name, &kernel));
  *info = kernel->info;
  return {};
}

Status Module::variable(std::string_view name, void** address, size_t* bytes) const {
  auto it = program_->variables.find(name);
  if (it == program_->variables.end()) return invalid("variable", "a variable of the module", name);
  *address = it->second.storage.get();
  *bytes = it->second.bytes;
  return {};
}

namespace {

void add_finding(Report* report, const Finding& finding) {
  for (Finding& known : report->findings) {
    if (known.kind == finding.kind && known.kernel == finding.kernel && known.pc == finding.pc) {
      known.count += finding.count;
      return;
    }
  }
  report->findings.push_back(finding);
}

// A limit of the profile: reported as a finding, and the launch is refused.
Status over(Report* report, const Kernel& kernel, FindingKind kind, std::string sentence) {
  Finding finding;
  finding.kind = kind;
  finding.kernel = kernel.info.name;
  finding.sentence = sentence;
  if (report != nullptr) add_finding(report, finding);
  return not_supported(std::move(sentence));
}

Status check_launch(const Kernel& kernel, const Launch& launch, Report* report) {
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  const Limits& limits = launch.limits;
  if (threads == 0) return invalid("block", "at least one thread", "0");
  if (uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2] == 0)
    return invalid("grid", "at least one block", "0");
  if (launch.parameters.size() != kernel.info.parameter_bytes) {
    return invalid("parameters", fmt::format("{} bytes", kernel.info.parameter_bytes),
                   fmt::format("{}", launch.parameters.size()));
  }
  if (threads > std::min<uint64_t>(limits.threads_per_block, 1024)) {
    return over(report, kernel, FindingKind::kOverThreadLimit,
                fmt::format("{} threads a block, {} allowed", threads, limits.threads_per_block));
  }
  if (kernel.info.max_threads != 0 && threads > kernel.info.max_threads) {
    return over(report, kernel, FindingKind::kOverThreadLimit,
                fmt::format("{} threads a block, the kernel was compiled for {}", threads, kernel.info.max_threads));
  }
  if (kernel.info.required_block[0] != 0 && kernel.info.required_block != launch.block) {
    return invalid("block", "the size that .reqntid declares", "another");
  }
  const uint64_t shared = uint64_t{kernel.dynamic_shared_offset} + launch.dynamic_shared_bytes;
  if (shared > limits.shared_per_block) {
    return over(report, kernel, FindingKind::kOverSharedLimit,
                fmt::format("{} bytes of shared memory, {} allowed", shared, limits.shared_per_block));
  }
  if (launch.registers_per_thread > limits.registers_per_thread ||
      launch.registers_per_thread * threads > limits.registers_per_block) {
    return over(
        report, kernel, FindingKind::kOverRegisterLimit,
        fmt::format("{} registers for each of {} threads, {} a thread and {} a block allowed",
                    launch.registers_per_thread, threads, limits.registers_per_thread, limits.registers_per_block));
  }
  return {};
}

// Page by page, so untouched tensors cost nothing: the allocator hands out zero pages.
void prepare_owners(LaunchState* state) {
  for (const auto& [address, region] : state->memory->regions()) {
    if (!region->access.writable || region->bytes == 0) continue;
    const size_t granules = region->bytes / state->kernel->global_granule + 1;
    state->owners[region.get()].block.reset(static_cast<uint32_t*>(std::calloc(granules, sizeof(uint32_t))));
  }
}

void run_blocks(LaunchState* state, Report* report, Counters* counters) {
  const Launch& launch = *state->launch;
  const uint64_t count = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (state->seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937(state->seed));
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  auto work = [&] {
    Block block(state);
    for (uint64_t k = next++; k < count; k = next++) block.run(order[k]);
    const std::lock_guard<std::mutex> lock(mutex);
    if (counters != nullptr) counters->add(block.counters);
    for (const Finding& finding : block.findings) add_finding(report, finding);
  };
  unsigned threads = launch.threads > 0 ? static_cast<unsigned>(launch.threads) : std::thread::hardware_concurrency();
  threads = static_cast<unsigned>(std::clamp<uint64_t>(threads, 1, count));
  std::vector<std::thread> helpers;
  for (unsigned k = 1; k < threads; ++k) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

// What the first schedule started from, for the next to start from again.
class Snapshot {
 public:
  explicit Snapshot(const Memory& memory) {
    for (const auto& [address, region] : memory.regions()) {
      if (!region->access.writable) continue;
      Copy copy{region.get(), std::vector<uint8_t>(region->data, region->data + region->bytes), {}};
      if (region->written) copy.written.assign(region->written.get(), region->written.get() + region->bytes);
      copies_.push_back(std::move(copy));
    }
  }
  void restore() const {
    for (const Copy& copy : copies_) {
      std::copy(copy.data.begin(), copy.data.end(), copy.region->data);
      std::copy(copy.written.begin(), copy.written.end(), copy.region->written.get());
    }
  }

 private:
  struct Copy {
    Region* region;
    std::vector<uint8_t> data, written;
  };
  std::vector<Copy> copies_;
};

}  // namespace

Status Module::launch(Memory& memory, const Launch& launch, Report* report, Counters* counters) const {
  const Kernel* kernel = nullptr;
  FLASHDELTA_RETURN_IF_ERROR(find_kernel(*program_, launch.kernel, &kernel));
  FLASHDELTA_RETURN_IF_ERROR(check_launch(*kernel, launch, report));
  Report own;
  std::unique_ptr<Snapshot> snapshot;
  if (launch.schedules > 1) snapshot = std::make_unique<Snapshot>(memory);
  for (uint32_t k = 0; k < std::max(launch.schedules, 1u); ++k) {
    if (k > 0) snapshot->restore();
    LaunchState state;
    state.program = program_.get();
    state.kernel = kernel;
    state.launch = &launch;
    state.memory = &memory;
    state.seed = launch.seed + k;
    state.shared_bytes = kernel->dynamic_shared_offset + launch.dynamic_shared_bytes;
    state.count_wavefronts = counters != nullptr && k == 0;
    if (launch.detect) prepare_owners(&state);
    run_blocks(&state, report != nullptr ? report : &own, k == 0 ? counters : nullptr);
  }
  return {};
}

void Counters::add(const Counters& other) {
  for (size_t k = 0; k < value.size(); ++k) value[k] += other.value[k];
}

bool Report::has(FindingKind kind) const {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.kind == kind; });
}

std::string Report::text() const {
  std::string all;
  for (const Finding& f : findings) all += f.text() + "\n";
  return all;
}

std::string Finding::text() const {
  std::string where = kernel;
  if (warp >= 0) where += fmt::format(", block ({}, {}, {}), warp {}", block[0], block[1], block[2], warp);
  if (lane >= 0) where += fmt::format(", lane {}", lane);
  std::string lines;
  for (const SourceLine& l : source) lines += fmt::format("{}{}:{}", lines.empty() ? " at " : " < ", l.file, l.line);
  return fmt::format("{}: {} [{}{}]{}", finding_name(kind), sentence, where, lines,
                     count > 1 ? fmt::format(" ({} times)", count) : std::string());
}

const char* finding_name(FindingKind kind) {
  static constexpr const char* kNames[] = {"shared race between warps",
                                           "shared race within a warp",
                                           "async copy not waited for",
                                           "write over an async copy",
                                           "async copy never waited for",
                                           "shared memory out of bounds",
                                           "misaligned shared access",
                                           "global memory out of bounds",
                                           "misaligned global access",
                                           "local memory out of bounds",
                                           "undefined register",
                                           "undefined shared memory",
                                           "undefined global memory",
                                           "deadlock",
                                           "barrier misuse",
                                           "mbarrier misuse",
                                           "divergence",
                                           "global write conflict",
                                           "over the shared-memory limit",
                                           "over the register limit",
                                           "over the thread limit",
                                           "trap",
                                           "no progress"};
  static_assert(std::size(kNames) == static_cast<size_t>(FindingKind::kCount));
  return kind < FindingKind::kCount ? kNames[static_cast<size_t>(kind)] : "unknown";
}

const char* counter_name(Counter counter) {
  static constexpr const char* kNames[] = {"instructions",
                                           "mma_bf16",
                                           "mma_f16",
                                           "mma_f16_acc_f16",
                                           "mma_tf32",
                                           "mma_int8",
                                           "mma_fp8",
                                           "ldmatrix",
                                           "stmatrix",
                                           "movmatrix",
                                           "cp_async",
                                           "cp_async_bytes",
                                           "bulk_copies",
                                           "bulk_bytes",
                                           "global_load",
                                           "global_load_bytes",
                                           "global_store",
                                           "global_store_bytes",
                                           "global_sectors",
                                           "shared_load",
                                           "shared_load_bytes",
                                           "shared_store",
                                           "shared_store_bytes",
                                           "shared_wavefronts",
                                           "shared_wavefronts_ideal",
                                           "atomic",
                                           "ex2",
                                           "mufu",
                                           "fp32",
                                           "fp16",
                                           "fp64",
                                           "convert",
                                           "integer",
                                           "move",
                                           "predicate",
                                           "shuffle",
                                           "vote",
                                           "warp_sync",
                                           "barrier",
                                           "mbarrier",
                                           "branch",
                                           "divergent_branch",
                                           "parameter_load",
                                           "local",
                                           "other"};
  static_assert(std::size(kNames) == static_cast<size_t>(Counter::kCount));
  return counter < Counter::kCount ? kNames[static_cast<size_t>(counter)] : "unknown";
}

}  // namespace flashdelta::emulator
