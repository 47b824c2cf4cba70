// One block being run: its warps, shared memory, barriers, copies in flight, and the scheduler that picks a warp at
// random. A warp's whole state is data, so switching warps is returning from run_warp; there is one Block an OS thread,
// used for one grid index after the other.
#pragma once

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/emulator.hpp"
#include "emulator/program.hpp"
#include "emulator/shared_memory.hpp"

namespace flashdelta::emulator {

class Block;
constexpr uint32_t kAllLanes = 0xffffffffu;

// Where an undefined value came from: the kind of finding it makes, and the instruction that brought it in.
struct Origin {
  FindingKind kind = FindingKind::kUndefinedRegister;
  int32_t pc = -1;
};

// Lanes that wait for others: at `reconverge` the top entry's lanes take over, from its pc.
struct StackEntry {
  uint32_t pc = 0;
  uint32_t mask = 0;
  uint32_t reconverge = 0;
};

// Four to sixteen bytes of one lane on their way from global to shared memory.
struct CopyPiece {
  uint32_t target = 0;
  uint8_t bytes = 0;  // written; what is beyond `read` is zero
  uint8_t read = 0;   // of them read from the source
  uint8_t lane = 0;
  const uint8_t* source = nullptr;
  const uint8_t* written = nullptr;  // the source's flags; null: all of it is initialised
};

struct alignas(64) Warp {
  Block* block = nullptr;
  const Kernel* kernel = nullptr;
  uint32_t id = 0;

  // Registers: lane l of slot s is file[32 * s + l]. `poison` holds a bit a lane: the value is undefined.
  uint32_t* file = nullptr;
  uint32_t* poison = nullptr;
  Origin* origin = nullptr;
  uint32_t* predicate = nullptr;  // a bit a lane
  uint32_t* predicate_poison = nullptr;
  Origin* predicate_origin = nullptr;

  uint32_t pc = 0, next_pc = 0;
  uint32_t reconverge = UINT32_MAX;
  uint32_t existing = 0;  // lanes that the block has threads for
  uint32_t alive = 0;     // and that have not returned
  uint32_t active = 0;    // and that are on this path
  uint32_t mask = 0;      // and whose guard is true for the current instruction
  std::vector<StackEntry> stack;

  enum class State : uint8_t { kReady, kAtBarrier, kDone };
  State state = State::kReady;
  int barrier = -1;
  uint32_t wait_pc = 0;       // the instruction that waits
  uint32_t failed_waits = 0;  // tests of an mbarrier that failed since anything in the block moved
  uint64_t waits_at = 0;      // the mbarrier's address

  uint32_t clocks[kMaxAgents] = {};
  std::vector<CopyPiece> open_copies;
  std::deque<std::vector<CopyPiece>> copy_groups;
  uint32_t open_bulk = 0;  // last bulk store started, as the copy engine's clock
  std::deque<uint32_t> bulk_groups;

  template <class T>
  T* lanes(uint32_t slot) {
    return reinterpret_cast<T*>(file + size_t{32} * slot);
  }
  Accessor accessor() const { return {id, clocks}; }
  // Of the lanes of the current instruction.
  void set_poison(uint32_t slot, uint32_t lanes, const Origin* from);
  bool predicate_lane(uint32_t operand, uint32_t lane) const { return (predicate_bits(operand) >> lane & 1) != 0; }
  uint32_t predicate_bits(uint32_t operand) const {
    const uint32_t bits = predicate[operand & 0x7fffffffu];
    return (operand >> 31) != 0 ? ~bits : bits;
  }
};

// A hardware barrier of bar.sync and bar.arrive.
struct Barrier {
  uint32_t arrived = 0;  // threads
  uint32_t expected = 0;
  uint32_t reduction = 0;  // bar.red: threads whose predicate is true
  std::vector<uint32_t> waiting;
  uint32_t clocks[kMaxAgents] = {};
};

struct Mbarrier {
  uint32_t expected = 0;
  int64_t pending = 0;
  int64_t bytes = 0;  // that bulk copies still owe
  uint64_t phase = 0;
  uint32_t clocks[kMaxAgents] = {};    // of those that arrived in the phase under way
  uint32_t released[kMaxAgents] = {};  // and in the one that is complete
};

// What a bulk copy moves in one piece.
struct BulkPiece {
  uint32_t shared = 0;
  uint8_t* global = nullptr;  // null: zeros
  uint32_t bytes = 0;
};

// A bulk copy in flight; a tensor's box is many pieces.
struct BulkCopy {
  bool to_shared = true;
  bool add_f32 = false;  // cp.reduce.async.bulk
  std::vector<BulkPiece> pieces;
  uint64_t mbarrier = UINT64_MAX;
  uint32_t clock = 0;  // of the copy engine
};

// State that all blocks of a launch share; the write owners are there while detection is on.
struct LaunchState {
  const Program* program = nullptr;
  const Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  Memory* memory = nullptr;
  uint32_t seed = 0;
  uint32_t shared_bytes = 0;
  bool count_wavefronts = false;
  struct Owners {
    struct Free {
      void operator()(uint32_t* p) const { std::free(p); }
    };
    std::unique_ptr<uint32_t[], Free> block;  // the block that wrote a granule, plus 1
  };
  std::unordered_map<const Region*, Owners> owners;
};

// A region and, while detection is on and it may be written, who wrote each granule of it.
struct Target {
  Region* region = nullptr;
  uint32_t* owners = nullptr;
};

class Block {
 public:
  explicit Block(LaunchState* state);

  void run(uint64_t linear_index);

  // Called by instructions.
  void report(const Warp& warp, int lane, FindingKind kind, std::string sentence);
  void report_undefined(const Warp& warp, uint32_t lanes, const Origin& origin, std::string_view where);
  void report_conflict(const Warp& warp, uint32_t lane, const Conflict& conflict, std::string_view what);
  void report_shared_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                             uint32_t align);
  void report_global_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                             uint32_t align, const Target* target, bool writes);
  void report_private_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                              uint64_t limit);
  void report_partial_warp(const Warp& warp, const char* what);
  [[nodiscard]] bool fatal(const Warp& warp, int lane, FindingKind kind, std::string sentence);
  void diverge(Warp& warp, uint32_t taken, uint32_t target);
  void leave(Warp& warp, uint32_t lanes);
  void barrier_arrive(Warp& warp, uint32_t id, uint32_t threads, bool wait, uint32_t votes);
  void synchronise_warp(Warp& warp);
  void wait_copies(Warp& warp, size_t groups_left);
  void start_bulk(Warp& warp, uint32_t lane, BulkCopy copy);
  void wait_bulk(Warp& warp, size_t groups_left);
  Mbarrier* find_mbarrier(Warp& warp, uint32_t lane, uint64_t address);
  void mbarrier_arrive(Warp& warp, Mbarrier* barrier, uint32_t count);
  void mbarrier_settle(Mbarrier* barrier);
  void mbarrier_acquire(Warp& warp, const Mbarrier& barrier);
  void mbarrier_failed(Warp& warp, uint64_t address);
  const Target* find_region(const Instruction& i, uint64_t address, uint64_t bytes);
  void claim(Warp& warp, uint32_t lane, const Target& target, const uint8_t* address, uint32_t bytes);

  bool aborted() const { return aborted_; }
  bool detect() const { return detect_; }
  bool count_wavefronts() const { return state_->count_wavefronts; }
  const LaunchState& launch_state() const { return *state_; }
  uint64_t linear_index() const { return linear_index_; }
  uint32_t warp_count() const { return static_cast<uint32_t>(warps_.size()); }
  size_t local_offset(const Warp& warp, uint32_t lane) const {
    return (size_t{warp.id} * 32 + lane) * state_->kernel->info.local_bytes;
  }
  uint8_t* local_memory() { return local_.data(); }
  uint8_t* local_written() { return local_written_.data(); }

  SharedMemory shared;
  Counters counters;
  std::unordered_map<uint64_t, Mbarrier> mbarriers;
  uint64_t clock = 0;  // %clock: instructions of this block so far
  std::vector<Finding> findings;

 private:
  void start(uint64_t linear_index);
  void fill_specials(Warp& warp);
  void run_warp(Warp& warp);
  bool pop(Warp& warp);
  Warp* pick();
  void report_deadlock();
  void check_end();
  void deliver(size_t index);
  bool start_piece(Warp& warp, uint32_t lane, const BulkCopy& copy, const BulkPiece& piece);
  void deliver_piece(const BulkCopy& copy, const BulkPiece& piece);
  void add_to_global(const BulkPiece& piece);
  void something_moved();
  void advance_clock(Warp& warp);
  void release(Barrier* barrier);
  uint32_t random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  LaunchState* state_;
  bool detect_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> file_, poison_, predicates_, predicate_poison_;
  std::vector<Origin> origins_, predicate_origins_;
  std::vector<uint8_t> local_, local_written_;
  std::vector<Barrier> barriers_;
  std::vector<BulkCopy> bulk_;
  std::vector<Target> targets_;  // the region that an instruction touched last
  uint32_t engine_clock_ = 0;
  uint32_t random_ = 1;
  uint32_t last_picked_ = 0;
  uint64_t linear_index_ = 0;
  std::array<uint32_t, 3> index_{};
  uint64_t budget_ = 0;
  bool aborted_ = false;
};

}  // namespace flashdelta::emulator
