// Runs the PTX that nvcc emits on the CPU, under an architecture's limits, and reports what a GPU run hides: races,
// reads of copies that have not landed, accesses out of bounds, undefined values, deadlocks. Exact instruction counts.
//
//   Module module;                        Memory memory;                      // global memory the kernel may touch
//   module.load(ptx_text);                memory.add(q, bytes, "q", {.writable = false});
//   Launch launch{.kernel = "attention"}; Report report; Counters counters;
//   module.launch(memory, launch, &report, &counters);
//
// A call's Status says whether the launch was possible; what the kernel did wrong is in the report.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "emulator/memory.hpp"

namespace flashdelta::emulator {

enum class FindingKind : uint8_t {
  kSharedRaceBetweenWarps,
  kSharedRaceWithinWarp,
  kAsyncCopyNotWaited,    // shared memory read before the cp.async or bulk copy into it has completed
  kWriteOverAsyncCopy,    // shared memory written, or a second copy started, while a copy into it is in flight
  kAsyncCopyNeverWaited,  // the kernel ended with copies in flight
  kSharedOutOfBounds,
  kSharedMisaligned,
  kGlobalOutOfBounds,  // outside every region of Memory, or a write to a read-only one
  kGlobalMisaligned,
  kLocalOutOfBounds,   // local memory or kernel parameters
  kUndefinedRegister,  // a register never written reached an output, an address or a branch
  kUndefinedShared,    // likewise shared memory never written
  kUndefinedGlobal,    // likewise global memory never written
  kDeadlock,           // who waits where is in the sentence
  kBarrierMisuse,
  kMbarrierMisuse,
  kDivergence,           // a warp-wide instruction that not all its lanes reach, or with a wrong mask
  kGlobalWriteConflict,  // two blocks wrote one address without atomics
  kOverSharedLimit,
  kOverRegisterLimit,
  kOverThreadLimit,
  kTrap,
  kNoProgress,  // the instruction budget of a block ran out
  kCount
};
const char* finding_name(FindingKind kind);  // "shared race between warps"

struct SourceLine {
  std::string file;
  int line = 0;  // 0: unknown (compiled without -lineinfo)
};

// One place in a kernel where one thing went wrong; the example is the first one met, count says how often.
struct Finding {
  FindingKind kind = FindingKind::kCount;
  std::string kernel;
  std::array<uint32_t, 3> block{};
  int warp = -1;
  int lane = -1;                   // -1: the whole warp, or unknown
  std::vector<SourceLine> source;  // innermost first, then the lines it was inlined at
  std::string sentence;
  uint64_t count = 1;
  uint32_t pc = 0;  // index of the decoded instruction

  std::string text() const;  // everything in one line
};

struct Report {
  std::vector<Finding> findings;

  bool silent() const { return findings.empty(); }
  bool has(FindingKind kind) const;
  std::string text() const;
};

// Warp instructions unless the name says bytes or wavefronts.
enum class Counter : uint8_t {
  kInstructions,
  kMmaBf16,  // m16n8k16 (and m16n8k8), bf16 in, fp32 accumulation
  kMmaF16,   // the same, fp16 in
  kMmaF16AccF16,
  kMmaTf32,
  kMmaInt8,
  kMmaFp8,
  kLdmatrix,
  kStmatrix,
  kMovmatrix,
  kCpAsync,
  kCpAsyncBytes,  // bytes read from global memory: zero-filled ones do not count
  kBulkCopies,
  kBulkBytes,
  kGlobalLoad,
  kGlobalLoadBytes,
  kGlobalStore,
  kGlobalStoreBytes,
  kGlobalSectors,    // 32-byte sectors touched by loads, stores and cp.async
  kSharedLoad,       // ld.shared; ldmatrix has its own counter
  kSharedLoadBytes,  // with ldmatrix
  kSharedStore,
  kSharedStoreBytes,  // with stmatrix; cp.async has its own counter
  kSharedWavefronts,
  kSharedWavefrontsIdeal,
  kAtomic,
  kEx2,
  kMufu,  // the other special functions: rcp, rsqrt, sqrt, lg2, sin, cos, tanh
  kFp32,
  kFp16,  // fp16 and bf16 arithmetic
  kFp64,
  kConvert,
  kInteger,
  kMove,       // mov, selp, cvta, special registers
  kPredicate,  // setp and logic on predicates
  kShuffle,
  kVote,  // vote, match, redux, elect, activemask
  kWarpSync,
  kBarrier,
  kMbarrier,
  kBranch,
  kDivergentBranch,
  kParameterLoad,
  kLocal,  // local-memory loads and stores
  kOther,
  kCount
};
const char* counter_name(Counter counter);  // "mma_bf16"

struct Counters {
  std::array<uint64_t, static_cast<size_t>(Counter::kCount)> value{};

  uint64_t& operator[](Counter c) { return value[static_cast<size_t>(c)]; }
  uint64_t operator[](Counter c) const { return value[static_cast<size_t>(c)]; }
  void add(const Counters& other);
};

// The architecture's limits, as the caller's profile has them.
struct Limits {
  uint32_t shared_per_block = 101376;
  uint32_t registers_per_thread = 255;
  uint32_t registers_per_block = 65536;
  uint32_t threads_per_block = 1024;
};

struct Launch {
  std::string kernel;  // the PTX name, or any part of it that only one kernel has
  std::array<uint32_t, 3> grid{1, 1, 1};
  std::array<uint32_t, 3> block{32, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  std::vector<uint8_t> parameters;  // laid out as KernelInfo::parameters says
  Limits limits;
  uint32_t registers_per_thread = 0;  // PTX does not say; ptxas does. 0: not checked
  uint32_t seed = 0;                  // 0: warps take turns, blocks in order; else both at random
  uint32_t schedules = 1;             // runs with seed, seed + 1, ..; outputs restored before each but the first
  int threads = 0;                    // OS threads that share the blocks; 0: all cores
  bool detect = true;                 // races, undefined values, write conflicts; bounds are always checked
  uint64_t block_instruction_budget = 4'000'000'000;  // warp instructions, then kNoProgress
};

struct KernelInfo {
  struct Parameter {
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  std::string name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t max_threads = 0;                  // .maxntid or .reqntid as a product; 0: not declared
  std::array<uint32_t, 3> required_block{};  // .reqntid; zeros: not declared
  uint32_t local_bytes = 0;                  // a thread's local memory as PTX declares it; spills are not known
};

struct Program;  // a decoded module

class Module {
 public:
  // Refuses, by name and line, the first opcode or form that the emulator does not know. May be called once.
  Status load(std::string_view ptx);
  std::vector<KernelInfo> kernels() const;
  Status find(std::string_view name, KernelInfo* info) const;  // exact, else the only kernel whose name contains it
  // Address and size of a module's __device__ or __constant__ variable, to fill before a launch.
  Status variable(std::string_view name, void** address, size_t* bytes) const;
  // report and counters may be null; both are added to, not cleared. With null counters wavefronts are not computed.
  Status launch(Memory& memory, const Launch& launch, Report* report, Counters* counters) const;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace flashdelta::emulator
