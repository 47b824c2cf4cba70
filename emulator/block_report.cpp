// What a block has to say: findings, each place in the code once, with a count.
#include <fmt/core.h>

#include <bit>

#include "emulator/block.hpp"

namespace flashdelta::emulator {

void Block::report(const Warp& warp, int lane, FindingKind kind, std::string sentence) {
  const int32_t location = warp.pc < state_->kernel->code.size() ? state_->kernel->code[warp.pc].location : -1;
  Finding f;
  f.kind = kind;
  f.kernel = state_->kernel->info.name;
  f.block = index_;
  f.warp = static_cast<int>(warp.id);
  f.lane = lane;
  f.pc = warp.pc;
  for (Finding& known : findings) {
    if (known.kind == kind && known.pc == f.pc) {
      ++known.count;
      return;
    }
  }
  f.source = state_->program->source(location);
  f.sentence = std::move(sentence);
  findings.push_back(std::move(f));
}

namespace {

std::string place(const LaunchState& state, int32_t pc) {
  if (pc < 0) return {};
  const std::vector<SourceLine> lines = state.program->source(state.kernel->code[static_cast<size_t>(pc)].location);
  if (lines.empty()) return {};
  std::string text;
  for (const SourceLine& line : lines)
    text += fmt::format("{}{}:{}", text.empty() ? " at " : " < ", line.file, line.line);
  return text;
}

}  // namespace

void Block::report_undefined(const Warp& warp, uint32_t lanes, const Origin& origin, std::string_view where) {
  const char* what = origin.kind == FindingKind::kUndefinedShared   ? "shared memory that nobody wrote"
                     : origin.kind == FindingKind::kUndefinedGlobal ? "global memory that nobody wrote"
                                                                    : "a register that was never written";
  report(warp, std::countr_zero(lanes), origin.kind,
         fmt::format("{} {}{}", where, what, origin.pc < 0 ? std::string() : ", read" + place(*state_, origin.pc)));
}

void Block::report_conflict(const Warp& warp, uint32_t lane, const Conflict& c, std::string_view what) {
  const uint32_t agent = epoch_agent(c.other), other_lane = epoch_lane(c.other);
  std::string who = agent == warp_count() ? "the copy engine" : fmt::format("warp {}", agent);
  if (agent != warp_count() && other_lane < 32) who += fmt::format(" lane {}", other_lane);
  std::string text;
  if (c.kind == FindingKind::kAsyncCopyNotWaited) {
    text = fmt::format("{}: byte {} is the target of a copy by {}{} that no wait covers yet", what, c.address, who,
                       place(*state_, c.other_pc));
  } else if (c.kind == FindingKind::kWriteOverAsyncCopy) {
    text = fmt::format("{}: byte {} is written while a copy by {}{} is in flight", what, c.address, who,
                       place(*state_, c.other_pc));
  } else {
    text = fmt::format("{}: byte {} was {} by {}{} with no synchronisation between", what, c.address,
                       c.other_pc < 0 ? "read" : "written", who, place(*state_, c.other_pc));
  }
  report(warp, lane < 32 ? static_cast<int>(lane) : -1, c.kind, std::move(text));
}

void Block::report_shared_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                                  uint32_t align) {
  const uint32_t limit = shared.bytes();
  const bool outside = bytes > limit || address > limit - bytes;
  report(warp, static_cast<int>(lane), outside ? FindingKind::kSharedOutOfBounds : FindingKind::kSharedMisaligned,
         outside ? fmt::format("{}: {} bytes at byte {} of {} bytes of shared memory", what, bytes,
                               static_cast<int64_t>(address), limit)
                 : fmt::format("{}: shared byte {} is no multiple of {}", what, address, align));
}

// The target is null where no region holds the bytes.
void Block::report_global_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                                  uint32_t align, const Target* target, bool writes) {
  const std::string place = state_->memory->describe(address);
  const bool allowed =
      target != nullptr && (writes ? target->region->access.writable : target->region->access.readable);
  const char* why = target == nullptr ? "" : writes ? ", which is read-only" : ", which is write-only";
  report(warp, static_cast<int>(lane), allowed ? FindingKind::kGlobalMisaligned : FindingKind::kGlobalOutOfBounds,
         allowed ? fmt::format("{}: {} is not aligned to {} bytes", what, place, align)
                 : fmt::format("{}: {} bytes at {}{}", what, bytes, place, why));
}

void Block::report_private_address(const Warp& warp, uint32_t lane, const char* what, uint64_t address, uint32_t bytes,
                                   uint64_t limit) {
  report(warp, static_cast<int>(lane), FindingKind::kLocalOutOfBounds,
         fmt::format("{}: {} bytes at byte {} of {}", what, bytes, address, limit));
}

void Block::report_partial_warp(const Warp& warp, const char* what) {
  (void)fatal(warp, -1, FindingKind::kDivergence,
              fmt::format("{} is executed by the whole warp, but only lanes {:#010x} reach it", what, warp.mask));
}

// Ends the block; always true, for the caller to return on.
bool Block::fatal(const Warp& warp, int lane, FindingKind kind, std::string sentence) {
  report(warp, lane, kind, std::move(sentence));
  aborted_ = true;
  return true;
}

void Block::report_deadlock() {
  std::string text;
  const Warp* waits = nullptr;
  for (const Warp& w : warps_) {
    text += text.empty() ? "" : "; ";
    if (w.state == Warp::State::kDone) {
      text += fmt::format("warp {} has returned", w.id);
      continue;
    }
    if (waits == nullptr) waits = &w;
    if (w.state == Warp::State::kAtBarrier) {
      const Barrier& b = barriers_[static_cast<size_t>(w.barrier)];
      text += fmt::format("warp {} waits at barrier {} ({} of {} threads are there)", w.id, w.barrier, b.arrived,
                          b.expected);
    } else {
      const Mbarrier& m = mbarriers[w.waits_at];
      text += fmt::format("warp {} waits for the mbarrier at byte {} ({} arrivals and {} bytes missing)", w.id,
                          w.waits_at, m.pending, m.bytes);
    }
    text += place(*state_, static_cast<int32_t>(w.wait_pc));
  }
  (void)fatal(*waits, -1, FindingKind::kDeadlock, std::move(text));
}

void Block::check_end() {
  if (aborted_) return;
  for (const Warp& w : warps_) {
    bool in_flight = !w.open_copies.empty();
    for (const auto& group : w.copy_groups) in_flight = in_flight || !group.empty();
    if (in_flight)
      report(w, -1, FindingKind::kAsyncCopyNeverWaited, "the warp returned with cp.async copies in flight");
  }
  if (!bulk_.empty()) {
    // Stores that nobody waits for still land; loads would land in another block's memory.
    while (!bulk_.empty()) {
      if (bulk_.front().to_shared) {
        report(warps_[0], -1, FindingKind::kAsyncCopyNeverWaited, "the block ended with bulk copies in flight");
      }
      deliver(0);
    }
  }
}

}  // namespace flashdelta::emulator
