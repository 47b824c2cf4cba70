#include "emulator/block.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

namespace flashdelta::emulator {

void Warp::set_poison(uint32_t slot, uint32_t lanes, const Origin* from) {
  if (from != nullptr && (lanes & mask) != 0) origin[slot] = *from;
  poison[slot] = (poison[slot] & ~mask) | (lanes & mask);
}

Block::Block(LaunchState* state) : state_(state), detect_(state->launch->detect) {
  const Launch& launch = *state->launch;
  const Kernel& kernel = *state->kernel;
  const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  const uint32_t count = (threads + 31) / 32;
  shared.resize(state->shared_bytes, count + (kernel.has_bulk_copies ? 1 : 0), kernel.granule);
  warps_.resize(count);
  file_.resize(size_t{count} * kernel.slots * 32 + 16);
  poison_.resize(size_t{count} * kernel.slots);
  origins_.resize(size_t{count} * kernel.slots);
  predicates_.resize(size_t{count} * kernel.predicates);
  predicate_poison_.resize(size_t{count} * kernel.predicates);
  predicate_origins_.resize(size_t{count} * kernel.predicates);
  local_.resize(size_t{count} * 32 * kernel.info.local_bytes);
  local_written_.resize(local_.size());
  barriers_.resize(16);
  targets_.resize(kernel.code.size());
  // Whole vectors of lanes lie in one cache line pair.
  auto* file = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(file_.data()) + 63) & ~uintptr_t{63});
  for (uint32_t i = 0; i < count; ++i) {
    Warp& w = warps_[i];
    w.block = this;
    w.kernel = &kernel;
    w.id = i;
    w.file = file + size_t{i} * kernel.slots * 32;
    w.poison = poison_.data() + size_t{i} * kernel.slots;
    w.origin = origins_.data() + size_t{i} * kernel.slots;
    w.predicate = predicates_.data() + size_t{i} * kernel.predicates;
    w.predicate_poison = predicate_poison_.data() + size_t{i} * kernel.predicates;
    w.predicate_origin = predicate_origins_.data() + size_t{i} * kernel.predicates;
    const uint32_t lanes = std::min(32u, threads - 32 * i);
    w.existing = lanes == 32 ? kAllLanes : (1u << lanes) - 1;
  }
}

// Registers and memory start as NaN patterns, all of them undefined.
void Block::start(uint64_t linear_index) {
  const Launch& launch = *state_->launch;
  const Kernel& kernel = *state_->kernel;
  linear_index_ = linear_index;
  index_ = {static_cast<uint32_t>(linear_index % launch.grid[0]),
            static_cast<uint32_t>(linear_index / launch.grid[0] % launch.grid[1]),
            static_cast<uint32_t>(linear_index / launch.grid[0] / launch.grid[1])};
  random_ = state_->seed * 2654435761u ^ static_cast<uint32_t>(linear_index) * 73856093u;
  if (random_ == 0) random_ = 1;
  shared.reset();
  std::fill(file_.begin(), file_.end(), 0xffffffffu);
  std::fill(poison_.begin(), poison_.end(), detect_ ? kAllLanes : 0);
  std::fill(origins_.begin(), origins_.end(), Origin{});
  std::fill(predicates_.begin(), predicates_.end(), 0);
  std::fill(predicate_poison_.begin(), predicate_poison_.end(), detect_ ? kAllLanes : 0);
  std::fill(predicate_origins_.begin(), predicate_origins_.end(), Origin{});
  std::fill(local_.begin(), local_.end(), 0xff);
  std::fill(local_written_.begin(), local_written_.end(), detect_ ? 0 : 1);
  std::fill(barriers_.begin(), barriers_.end(), Barrier{});
  mbarriers.clear();
  bulk_.clear();
  engine_clock_ = 0;
  clock = 0;
  aborted_ = false;
  budget_ = launch.block_instruction_budget;
  last_picked_ = warp_count() - 1;
  for (Warp& w : warps_) {
    w.pc = 0;
    w.reconverge = UINT32_MAX;
    w.alive = w.active = w.existing;
    w.stack.clear();
    w.state = Warp::State::kReady;
    w.failed_waits = 0;
    std::fill(std::begin(w.clocks), std::end(w.clocks), 0);
    w.clocks[w.id] = 1;
    w.open_copies.clear();
    w.copy_groups.clear();
    w.open_bulk = 0;
    w.bulk_groups.clear();
    for (const ConstantSlot& c : kernel.constants) {
      w.poison[c.slot] = 0;
      for (uint32_t l = 0; l < 32; ++l) {
        if (c.wide) {
          w.lanes<uint64_t>(c.slot)[l] = c.value;
        } else {
          w.lanes<uint32_t>(c.slot)[l] = static_cast<uint32_t>(c.value);
        }
      }
    }
    for (const ConstantPredicate& c : kernel.constant_predicates) {
      w.predicate[c.index] = c.value ? kAllLanes : 0;
      w.predicate_poison[c.index] = 0;
    }
    fill_specials(w);
  }
}

namespace {

uint32_t special_value(Special special, uint32_t thread, const std::array<uint32_t, 3>& index,
                       const LaunchState& state) {
  const Launch& launch = *state.launch;
  const uint32_t lane = thread % 32;
  const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  switch (special) {
    case Special::kTidX: return thread % launch.block[0];
    case Special::kTidY: return thread / launch.block[0] % launch.block[1];
    case Special::kTidZ: return thread / launch.block[0] / launch.block[1];
    case Special::kNtidX: return launch.block[0];
    case Special::kNtidY: return launch.block[1];
    case Special::kNtidZ: return launch.block[2];
    case Special::kCtaidX: return index[0];
    case Special::kCtaidY: return index[1];
    case Special::kCtaidZ: return index[2];
    case Special::kNctaidX: return launch.grid[0];
    case Special::kNctaidY: return launch.grid[1];
    case Special::kNctaidZ: return launch.grid[2];
    case Special::kLaneId: return lane;
    case Special::kWarpId: return thread / 32;
    case Special::kNwarpId: return (threads + 31) / 32;
    case Special::kLaneMaskEq: return 1u << lane;
    case Special::kLaneMaskLe: return (2u << lane) - 1;
    case Special::kLaneMaskLt: return (1u << lane) - 1;
    case Special::kLaneMaskGe: return ~((1u << lane) - 1);
    case Special::kLaneMaskGt: return ~((2u << lane) - 1);
    case Special::kDynamicShared: return launch.dynamic_shared_bytes;
    case Special::kTotalShared: return state.shared_bytes;
    case Special::kOne:
    case Special::kNsmId: return 1;
    default: return 0;
  }
}

}  // namespace

void Block::fill_specials(Warp& warp) {
  for (const SpecialSlot& s : state_->kernel->specials) {
    warp.poison[s.slot] = 0;
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t value = special_value(s.special, warp.id * 32 + l, index_, *state_);
      if (s.wide) {
        warp.lanes<uint64_t>(s.slot)[l] = value;
      } else {
        warp.lanes<uint32_t>(s.slot)[l] = value;
      }
    }
  }
}

void Block::run(uint64_t linear_index) {
  start(linear_index);
  while (Warp* warp = pick()) {
    run_warp(*warp);
    if (aborted_) return;
  }
  check_end();
}

// A random warp among those that can run; a bulk copy in flight may land instead. Null: all have returned, or nobody
// can run.
Warp* Block::pick() {
  Warp* candidates[32];
  uint32_t count = 0;
  bool all_done = true, all_spin = true;
  for (uint32_t k = 1; k <= warp_count(); ++k) {
    Warp& w = warps_[(last_picked_ + k) % warp_count()];
    all_done = all_done && w.state == Warp::State::kDone;
    if (w.state != Warp::State::kReady) continue;
    candidates[count++] = &w;
    all_spin = all_spin && w.failed_waits >= 2;
  }
  if (all_done) return nullptr;
  if (!bulk_.empty() && (all_spin || (state_->seed != 0 && random() % 4 == 0))) {
    deliver(state_->seed != 0 ? random() % bulk_.size() : 0);
    return pick();
  }
  if (all_spin) {  // also when there is no candidate
    report_deadlock();
    return nullptr;
  }
  Warp* chosen = candidates[state_->seed != 0 ? random() % count : 0];
  last_picked_ = chosen->id;
  return chosen;
}

// Takes up the lanes that wait at a reconvergence point; false: the warp has returned.
bool Block::pop(Warp& warp) {
  while (!warp.stack.empty()) {
    const StackEntry top = warp.stack.back();
    warp.stack.pop_back();
    warp.active = top.mask & warp.alive;
    warp.pc = top.pc;
    warp.reconverge = top.reconverge;
    if (warp.active != 0 && warp.pc != warp.reconverge) return true;
  }
  return false;
}

void Block::run_warp(Warp& warp) {
  const Instruction* code = state_->kernel->code.data();
  const bool preempt = state_->seed != 0 && warp_count() > 1;
  bool fresh = true;  // just scheduled: runs at least one instruction
  while (true) {
    if (warp.pc == warp.reconverge || warp.active == 0) {
      if (!pop(warp)) {
        warp.state = Warp::State::kDone;
        something_moved();
        return;
      }
    }
    const Instruction& i = code[warp.pc];
    warp.mask = warp.active;
    if (i.guard >= 0) {
      const uint32_t bits = warp.predicate[i.guard];
      warp.mask &= i.guard_negated ? ~bits : bits;
      if (const uint32_t bad = warp.predicate_poison[i.guard] & warp.active; bad != 0) [[unlikely]] {
        report_undefined(warp, bad, warp.predicate_origin[i.guard], "a branch or a guard depends on");
      }
    }
    if (preempt && !fresh && (i.flags & kMayPreempt) != 0 && (random() & 15) == 0) return;
    fresh = false;
    if (warp.mask == 0) {
      ++warp.pc;
      continue;
    }
    warp.next_pc = warp.pc + 1;
    ++counters[i.counter];
    ++counters[Counter::kInstructions];
    if (++clock > budget_) {
      if (fatal(warp, -1, FindingKind::kNoProgress,
                fmt::format("the block ran {} instructions without ending", budget_)))
        return;
    }
    const uint32_t failed_before = warp.failed_waits;
    i.run(warp, i);
    warp.pc = warp.next_pc;
    if (warp.state != Warp::State::kReady || aborted_ || warp.failed_waits > failed_before) return;
    // A warp that does more than poll is no part of a deadlock.
    if (failed_before != 0 && (i.flags & kMayPreempt) != 0) warp.failed_waits = 0;
  }
}

void Block::diverge(Warp& warp, uint32_t taken, uint32_t target) {
  const uint32_t rest = warp.active & ~taken;
  if (rest == 0) {
    warp.next_pc = target;
    return;
  }
  ++counters[Counter::kDivergentBranch];
  const uint32_t meet = state_->kernel->code[warp.pc].reconverge;
  // A loop that lanes leave one after the other meets at the same place each time: one entry is enough.
  if (meet != warp.reconverge) warp.stack.push_back({meet, warp.active, warp.reconverge});
  if (warp.next_pc != meet) warp.stack.push_back({warp.next_pc, rest, meet});
  warp.reconverge = meet;
  warp.active = taken;
  warp.next_pc = target;
}

void Block::leave(Warp& warp, uint32_t lanes) {
  warp.alive &= ~lanes;
  warp.active &= ~lanes;
}

void Block::something_moved() {
  for (Warp& w : warps_) w.failed_waits = 0;
}

void Block::advance_clock(Warp& warp) {
  if (++warp.clocks[warp.id] < kMaxClock) return;
  (void)fatal(warp, -1, FindingKind::kNoProgress,
              "more synchronisations in one block than the race detector can tell apart");
}

void Block::synchronise_warp(Warp& warp) { advance_clock(warp); }

const Target* Block::find_region(const Instruction& i, uint64_t address, uint64_t bytes) {
  Target& target = targets_[static_cast<size_t>(&i - state_->kernel->code.data())];
  if (target.region != nullptr && target.region->holds(address, bytes)) return &target;
  Region* region = state_->memory->find(address);
  if (region == nullptr) region = state_->program->variable_memory.find(address);
  if (region == nullptr || !region->holds(address, bytes)) return nullptr;
  auto owners = state_->owners.find(region);
  target = {region, owners == state_->owners.end() ? nullptr : owners->second.block.get()};
  return &target;
}

// Notes this block as the writer of the bytes.
void Block::claim(Warp& warp, uint32_t lane, const Target& target, const uint8_t* address, uint32_t bytes) {
  if (target.owners == nullptr) return;
  const uint32_t granule = state_->kernel->global_granule;
  const auto me = static_cast<uint32_t>(linear_index_) + 1;
  const auto offset = static_cast<size_t>(address - target.region->data);
  for (size_t g = offset / granule; g <= (offset + bytes - 1) / granule; ++g) {
    std::atomic_ref<uint32_t> owner(target.owners[g]);
    if (owner.load(std::memory_order_relaxed) == me) continue;
    const uint32_t before = owner.exchange(me, std::memory_order_relaxed);
    if (before == 0 || before == me) continue;
    report(warp, static_cast<int>(lane), FindingKind::kGlobalWriteConflict,
           fmt::format("writes byte {} of {}, which block {} (in linear order) wrote too", g * granule,
                       target.region->name, before - 1));
    return;
  }
}

}  // namespace flashdelta::emulator
