// A block's shared memory and its shadow. For each byte the shadow knows whether it was written, by whom and when, and
// who read it since, "when" being the accessing warp's count of synchronisations (a vector clock, as FastTrack keeps
// it). Sixteen bytes that are always accessed together share one record; smaller accesses split it into granules.
//
// Agents are the block's warps and, last, the bulk-copy engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emulator/emulator.hpp"

namespace flashdelta::emulator {

constexpr uint32_t kMaxAgents = 40;  // 32 warps and the copy engine, rounded up to whole vectors
constexpr uint32_t kManyLanes = 63;
constexpr uint32_t kMaxClock = (1u << 20) - 1;

// A point in time of one lane: clock, agent, lane.
using Epoch = uint32_t;
constexpr Epoch make_epoch(uint32_t clock, uint32_t agent, uint32_t lane) { return clock << 12 | agent << 6 | lane; }
constexpr uint32_t epoch_clock(Epoch e) { return e >> 12; }
constexpr uint32_t epoch_agent(Epoch e) { return e >> 6 & 63; }
constexpr uint32_t epoch_lane(Epoch e) { return e & 63; }

enum class ByteState : uint8_t { kUnwritten, kWritten, kInFlight, kUndefinedRegister, kUndefinedGlobal, kSplit };

// Who accesses: its agent number and what it knows of everybody's clocks, its own among them.
struct Accessor {
  uint32_t agent = 0;
  const uint32_t* clocks = nullptr;
};

struct Conflict {
  FindingKind kind = FindingKind::kCount;
  uint32_t address = 0;
  Epoch other = 0;
  int32_t other_pc = -1;  // instruction of an earlier write; -1: a read
};

class SharedMemory {
 public:
  void resize(uint32_t bytes, uint32_t agents, uint32_t granule);
  void reset();  // NaN patterns everywhere, nothing written

  uint8_t* data() { return data_.get(); }
  uint32_t bytes() const { return bytes_; }

  // Notes an access of one lane and returns the first conflict with an earlier one, null for none. `state` collects the
  // worst of the bytes read.
  const Conflict* read(const Accessor& who, uint32_t lane, uint32_t address, uint32_t bytes, ByteState* state);
  const Conflict* write(const Accessor& who, uint32_t lane, uint32_t address, uint32_t bytes, ByteState state,
                        int32_t pc);
  // Some of the bytes were never written, or written with an undefined value.
  bool is_undefined(uint32_t address, uint32_t bytes) const;
  // A copy in flight has arrived: its bytes count as written at that epoch.
  void land(uint32_t address, uint32_t bytes, Epoch epoch, ByteState state);

 private:
  struct Record {
    Epoch* write;
    ByteState* state;
    int32_t* pc;
    Epoch* reads;
  };
  struct Layer {
    std::vector<Epoch> write;
    std::vector<ByteState> state;
    std::vector<int32_t> pc;
    std::vector<Epoch> reads;  // [record][agent]
  };

  Record record(Layer& layer, uint32_t index) {
    return {&layer.write[index], &layer.state[index], &layer.pc[index], &layer.reads[size_t{index} * stride_]};
  }
  bool is_whole_cell(uint32_t address, uint32_t bytes) const {
    return bytes == 16 && address % 16 == 0 && cells_.state[address / 16] != ByteState::kSplit;
  }
  void split(uint32_t cell);
  void unify(uint32_t cell);
  const Conflict* read_record(const Record& r, const Accessor& who, uint32_t lane, uint32_t address, ByteState* state);
  const Conflict* write_record(const Record& r, const Accessor& who, uint32_t lane, uint32_t address, ByteState state,
                               int32_t pc);
  const Conflict* find_reader(const Record& r, const Accessor& who, uint32_t lane, uint32_t address);
  const Conflict* conflict(FindingKind kind, uint32_t address, Epoch other, int32_t pc) {
    conflict_ = {kind, address, other, pc};
    return &conflict_;
  }
  // An earlier epoch happened before this access, or is the same lane's.
  static bool ordered(Epoch e, const Accessor& who, uint32_t lane) {
    const uint32_t agent = epoch_agent(e);
    const uint32_t known = who.clocks[agent];
    if (epoch_clock(e) < known) return true;
    if (agent != who.agent) return epoch_clock(e) == known;
    return epoch_lane(e) == lane && lane != kManyLanes;
  }
  static FindingKind race_kind(Epoch other, const Accessor& who) {
    return epoch_agent(other) == who.agent ? FindingKind::kSharedRaceWithinWarp : FindingKind::kSharedRaceBetweenWarps;
  }

  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  uint32_t bytes_ = 0, agents_ = 0, stride_ = 0, shift_ = 2;
  Layer cells_, granules_;
  Conflict conflict_;
};

inline const Conflict* SharedMemory::read_record(const Record& r, const Accessor& who, uint32_t lane, uint32_t address,
                                                 ByteState* state) {
  const Conflict* found = nullptr;
  if (*r.state != ByteState::kWritten) [[unlikely]] {
    if (*r.state == ByteState::kInFlight) {
      found = conflict(FindingKind::kAsyncCopyNotWaited, address, *r.write, *r.pc);
    } else {
      *state = *r.state;
    }
  }
  if (found == nullptr && !ordered(*r.write, who, lane)) [[unlikely]] {
    found = conflict(race_kind(*r.write, who), address, *r.write, *r.pc);
  }
  Epoch& last = r.reads[who.agent];
  const uint32_t now = who.clocks[who.agent];
  const bool others_too = epoch_clock(last) == now && epoch_lane(last) != lane;
  last = make_epoch(now, who.agent, others_too ? kManyLanes : lane);
  return found;
}

inline const Conflict* SharedMemory::read(const Accessor& who, uint32_t lane, uint32_t address, uint32_t bytes,
                                          ByteState* state) {
  if (is_whole_cell(address, bytes)) [[likely]] {
    return read_record(record(cells_, address / 16), who, lane, address, state);
  }
  for (uint32_t cell = address / 16; cell <= (address + bytes - 1) / 16; ++cell) split(cell);
  const Conflict* found = nullptr;
  for (uint32_t g = address >> shift_; g <= (address + bytes - 1) >> shift_; ++g) {
    const Conflict* c = read_record(record(granules_, g), who, lane, g << shift_, state);
    if (found == nullptr) found = c;
  }
  return found;
}

inline const Conflict* SharedMemory::write_record(const Record& r, const Accessor& who, uint32_t lane, uint32_t address,
                                                  ByteState state, int32_t pc) {
  const Conflict* found = nullptr;
  if (*r.state == ByteState::kInFlight) [[unlikely]] {
    found = conflict(FindingKind::kWriteOverAsyncCopy, address, *r.write, *r.pc);
  } else if (!ordered(*r.write, who, lane)) [[unlikely]] {
    found = conflict(race_kind(*r.write, who), address, *r.write, *r.pc);
  }
  // All agents at once: a reader whose clock we have not passed may still be reading. Our own epoch always looks so.
  int32_t unordered = 0;
  for (uint32_t a = 0; a < stride_; ++a) {
    unordered |= static_cast<int32_t>(r.reads[a] >> 12) >= static_cast<int32_t>(who.clocks[a] + (a != who.agent));
  }
  if (unordered != 0 && found == nullptr) [[unlikely]]
    found = find_reader(r, who, lane, address);
  *r.write = make_epoch(who.clocks[who.agent], who.agent, lane);
  *r.state = state;
  *r.pc = pc;
  for (uint32_t a = 0; a < stride_; ++a) r.reads[a] = 0;
  return found;
}

inline const Conflict* SharedMemory::write(const Accessor& who, uint32_t lane, uint32_t address, uint32_t bytes,
                                           ByteState state, int32_t pc) {
  if (is_whole_cell(address, bytes)) [[likely]] {
    return write_record(record(cells_, address / 16), who, lane, address, state, pc);
  }
  for (uint32_t cell = address / 16; cell <= (address + bytes - 1) / 16; ++cell) split(cell);
  const Conflict* found = nullptr;
  for (uint32_t g = address >> shift_; g <= (address + bytes - 1) >> shift_; ++g) {
    const Conflict* c = write_record(record(granules_, g), who, lane, g << shift_, state, pc);
    if (found == nullptr) found = c;
  }
  if (bytes == 16 && address % 16 == 0) unify(address / 16);
  return found;
}

inline void SharedMemory::split(uint32_t cell) {
  if (cells_.state[cell] == ByteState::kSplit) return;
  const uint32_t per_cell = 16u >> shift_;
  for (uint32_t g = cell * per_cell; g < (cell + 1) * per_cell; ++g) {
    granules_.write[g] = cells_.write[cell];
    granules_.state[g] = cells_.state[cell];
    granules_.pc[g] = cells_.pc[cell];
    std::copy_n(&cells_.reads[size_t{cell} * stride_], stride_, &granules_.reads[size_t{g} * stride_]);
  }
  cells_.state[cell] = ByteState::kSplit;
}

// After one write of all sixteen bytes the granules are alike again.
inline void SharedMemory::unify(uint32_t cell) {
  const uint32_t g = cell * (16u >> shift_);
  cells_.write[cell] = granules_.write[g];
  cells_.state[cell] = granules_.state[g];
  cells_.pc[cell] = granules_.pc[g];
  std::copy_n(&granules_.reads[size_t{g} * stride_], stride_, &cells_.reads[size_t{cell} * stride_]);
}

}  // namespace flashdelta::emulator
