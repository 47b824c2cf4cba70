// Barriers, mbarriers and the copies that complete on them.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/block.hpp"

namespace flashdelta::emulator {
namespace {

void join(uint32_t* into, const uint32_t* from) {
  for (uint32_t a = 0; a < kMaxAgents; ++a) into[a] = std::max(into[a], from[a]);
}

}  // namespace

void Block::barrier_arrive(Warp& warp, uint32_t id, uint32_t threads, bool wait, uint32_t votes) {
  if (id >= barriers_.size() || threads == 0 || threads % 32 != 0) {
    (void)fatal(warp, -1, FindingKind::kBarrierMisuse, fmt::format("barrier {} with {} threads", id, threads));
    return;
  }
  Barrier& b = barriers_[id];
  if (b.arrived == 0) {
    b.expected = threads;
    b.reduction = 0;
    std::fill(std::begin(b.clocks), std::end(b.clocks), 0);
  } else if (b.expected != threads) {
    (void)fatal(warp, -1, FindingKind::kBarrierMisuse,
                fmt::format("barrier {}: {} threads here, {} where others arrived", id, threads, b.expected));
    return;
  }
  join(b.clocks, warp.clocks);
  b.arrived += 32;
  b.reduction += static_cast<uint32_t>(std::popcount(votes));
  if (wait) {
    b.waiting.push_back(warp.id);
    warp.state = Warp::State::kAtBarrier;
    warp.barrier = static_cast<int>(id);
    warp.wait_pc = warp.pc;
  } else {
    advance_clock(warp);
  }
  if (b.arrived == b.expected) release(&b);
}

void Block::release(Barrier* barrier) {
  for (uint32_t id : barrier->waiting) {
    Warp& w = warps_[id];
    w.state = Warp::State::kReady;
    join(w.clocks, barrier->clocks);
    advance_clock(w);
    // bar.red waits at the instruction that wants the count.
    const Instruction& i = state_->kernel->code[w.wait_pc];
    if (i.destinations == 1 && i.kind[0] == 'p') {
      const bool any = barrier->reduction != 0, all = barrier->reduction == barrier->expected;
      w.predicate[i.operand[0]] = (i.detail == 1 ? all : any) ? kAllLanes : 0;
      w.predicate_poison[i.operand[0]] = 0;
    } else if (i.destinations == 1) {
      std::fill_n(w.lanes<uint32_t>(i.operand[0]), 32, barrier->reduction);
      w.poison[i.operand[0]] = 0;
    }
  }
  barrier->waiting.clear();
  barrier->arrived = 0;
  something_moved();
}

// cp.async: the bytes appear now, for the waiting lane alone; everybody else needs a barrier still.
void Block::wait_copies(Warp& warp, size_t groups_left) {
  while (warp.copy_groups.size() > groups_left) {
    for (const CopyPiece& piece : warp.copy_groups.front()) {
      uint8_t* target = shared.data() + piece.target;
      if (piece.read == 16) {
        std::memcpy(target, piece.source, 16);
      } else {
        if (piece.read != 0) std::memcpy(target, piece.source, piece.read);
        std::memset(target + piece.read, 0, size_t{piece.bytes} - piece.read);
      }
      if (!detect_) continue;
      const bool defined = piece.written == nullptr || std::memchr(piece.written, 0, piece.read) == nullptr;
      shared.land(piece.target, piece.bytes, make_epoch(warp.clocks[warp.id], warp.id, piece.lane),
                  defined ? ByteState::kWritten : ByteState::kUndefinedGlobal);
    }
    warp.copy_groups.pop_front();
  }
}

void Block::start_bulk(Warp& warp, uint32_t lane, BulkCopy copy) {
  copy.clock = ++engine_clock_;
  if (detect_) {
    for (const BulkPiece& piece : copy.pieces) {
      if (!start_piece(warp, lane, copy, piece)) break;
    }
  }
  for (const BulkPiece& piece : copy.pieces) {
    if (copy.to_shared) std::memset(shared.data() + piece.shared, 0xff, piece.bytes);
  }
  if (!copy.to_shared) warp.open_bulk = copy.clock;
  bulk_.push_back(std::move(copy));
  something_moved();
}

// A whole row or tile at once: its parts are checked sixteen bytes at a time. False: something is reported.
bool Block::start_piece(Warp& warp, uint32_t lane, const BulkCopy& copy, const BulkPiece& piece) {
  const Accessor who = warp.accessor();
  for (uint32_t at = 0; at < piece.bytes; at += 16) {
    ByteState state = ByteState::kWritten;
    const Conflict* c = copy.to_shared ? shared.write(who, lane, piece.shared + at, 16, ByteState::kInFlight,
                                                      static_cast<int32_t>(warp.pc))
                                       : shared.read(who, lane, piece.shared + at, 16, &state);
    if (c != nullptr) {
      report_conflict(warp, lane, *c, "bulk copy");
      return false;
    }
    if (state != ByteState::kWritten) {
      report_undefined(
          warp, 1u << lane,
          {state == ByteState::kUnwritten ? FindingKind::kUndefinedShared : FindingKind::kUndefinedRegister, -1},
          "a bulk store writes out");
      return false;
    }
    if (!copy.to_shared) {
      // The engine reads until the copy is complete, whatever the issuing warp does meanwhile.
      uint32_t clocks[kMaxAgents];
      std::copy(std::begin(warp.clocks), std::end(warp.clocks), clocks);
      clocks[warp_count()] = copy.clock;
      (void)shared.read({warp_count(), clocks}, kManyLanes, piece.shared + at, 16, &state);
    }
  }
  return true;
}

void Block::deliver(size_t index) {
  const BulkCopy copy = std::move(bulk_[index]);
  bulk_.erase(bulk_.begin() + static_cast<std::ptrdiff_t>(index));
  something_moved();
  for (const BulkPiece& piece : copy.pieces) deliver_piece(copy, piece);
  if (!copy.to_shared) return;
  auto barrier = mbarriers.find(copy.mbarrier);
  if (barrier == mbarriers.end()) return;
  for (const BulkPiece& piece : copy.pieces) barrier->second.bytes -= piece.bytes;
  uint32_t& known = barrier->second.clocks[warp_count()];
  known = std::max(known, copy.clock);
  mbarrier_settle(&barrier->second);
}

void Block::deliver_piece(const BulkCopy& copy, const BulkPiece& piece) {
  uint8_t* here = shared.data() + piece.shared;
  if (!copy.to_shared) {
    if (copy.add_f32) {
      add_to_global(piece);
    } else {
      std::memcpy(piece.global, here, piece.bytes);
    }
    state_->memory->mark_written(piece.global, piece.bytes);
    return;
  }
  if (piece.global == nullptr) {
    std::memset(here, 0, piece.bytes);
  } else {
    std::memcpy(here, piece.global, piece.bytes);
  }
  if (!detect_) return;
  const bool defined = piece.global == nullptr || state_->memory->is_written(piece.global, piece.bytes);
  shared.land(piece.shared, piece.bytes, make_epoch(copy.clock, warp_count(), kManyLanes),
              defined ? ByteState::kWritten : ByteState::kUndefinedGlobal);
}

void Block::add_to_global(const BulkPiece& piece) {
  const auto* from = reinterpret_cast<const float*>(shared.data() + piece.shared);
  auto* to = reinterpret_cast<float*>(piece.global);
  for (uint32_t k = 0; k < piece.bytes / 4; ++k) std::atomic_ref<float>(to[k]).fetch_add(from[k]);
}

void Block::wait_bulk(Warp& warp, size_t groups_left) {
  while (warp.bulk_groups.size() > groups_left) {
    const uint32_t until = warp.bulk_groups.front();
    warp.bulk_groups.pop_front();
    for (size_t k = 0; k < bulk_.size();) {
      if (!bulk_[k].to_shared && bulk_[k].clock <= until) {
        deliver(k);
      } else {
        ++k;
      }
    }
    warp.clocks[warp_count()] = std::max(warp.clocks[warp_count()], until);
  }
}

Mbarrier* Block::find_mbarrier(Warp& warp, uint32_t lane, uint64_t address) {
  auto it = mbarriers.find(address);
  if (it == mbarriers.end()) {
    (void)fatal(warp, static_cast<int>(lane), FindingKind::kMbarrierMisuse,
                fmt::format("no mbarrier was initialised at shared byte {}", address));
    return nullptr;
  }
  if (detect_) {
    ByteState state = ByteState::kWritten;
    const Conflict* c = shared.read(warp.accessor(), lane, static_cast<uint32_t>(address), 8, &state);
    if (c != nullptr) report_conflict(warp, lane, *c, "mbarrier");
  }
  return &it->second;
}

void Block::mbarrier_arrive(Warp& warp, Mbarrier* barrier, uint32_t count) {
  barrier->pending -= count;
  if (barrier->pending < 0) {
    (void)fatal(warp, -1, FindingKind::kMbarrierMisuse, "more arrivals in a phase than the mbarrier expects");
    return;
  }
  join(barrier->clocks, warp.clocks);
  advance_clock(warp);
  mbarrier_settle(barrier);
}

void Block::mbarrier_settle(Mbarrier* barrier) {
  if (barrier->pending != 0 || barrier->bytes != 0) return;
  ++barrier->phase;
  barrier->pending = barrier->expected;
  std::copy(std::begin(barrier->clocks), std::end(barrier->clocks), barrier->released);
  something_moved();
}

void Block::mbarrier_acquire(Warp& warp, const Mbarrier& barrier) {
  join(warp.clocks, barrier.released);
  warp.failed_waits = 0;
}

void Block::mbarrier_failed(Warp& warp, uint64_t address) {
  ++warp.failed_waits;
  warp.waits_at = address;
  warp.wait_pc = warp.pc;
}

}  // namespace flashdelta::emulator
