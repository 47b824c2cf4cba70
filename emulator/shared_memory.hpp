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
  // Words of one record: every agent's last read, then the last write, its instruction, and the state.
  using Record = uint32_t*;
  using Layer = std::vector<uint32_t>;
  Epoch& write_of(Record r) const { return r[stride_]; }
  uint32_t& pc_of(Record r) const { return r[stride_ + 1]; }
  uint32_t& state_of(Record r) const { return r[stride_ + 2]; }
  Record record(Layer& layer, uint32_t index) const { return layer.data() + size_t{index} * (stride_ + 4); }
  ByteState state_at(const Layer& layer, uint32_t index) const {
    return static_cast<ByteState>(layer[size_t{index} * (stride_ + 4) + stride_ + 2]);
  }
  bool is_whole_cell(uint32_t address, uint32_t bytes) const {
    return bytes == 16 && address % 16 == 0 && state_at(cells_, address / 16) != ByteState::kSplit;
  }
  void split(uint32_t cell);
  void unify(uint32_t cell);
  const Conflict* read_record(Record r, const Accessor& who, uint32_t lane, uint32_t address, ByteState* state);
  const Conflict* write_record(Record r, const Accessor& who, uint32_t lane, uint32_t address, ByteState state,
                               int32_t pc);
  const Conflict* find_reader(Record r, const Accessor& who, uint32_t lane, uint32_t address);
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

inline const Conflict* SharedMemory::read_record(Record r, const Accessor& who, uint32_t lane, uint32_t address,
                                                 ByteState* state) {
  const Conflict* found = nullptr;
  if (const auto now = static_cast<ByteState>(state_of(r)); now != ByteState::kWritten) [[unlikely]] {
    if (now == ByteState::kInFlight) {
      found = conflict(FindingKind::kAsyncCopyNotWaited, address, write_of(r), static_cast<int32_t>(pc_of(r)));
    } else {
      *state = now;
    }
  }
  if (found == nullptr && !ordered(write_of(r), who, lane)) [[unlikely]] {
    found = conflict(race_kind(write_of(r), who), address, write_of(r), static_cast<int32_t>(pc_of(r)));
  }
  Epoch& last = r[who.agent];
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

inline const Conflict* SharedMemory::write_record(Record r, const Accessor& who, uint32_t lane, uint32_t address,
                                                  ByteState state, int32_t pc) {
  const Conflict* found = nullptr;
  if (static_cast<ByteState>(state_of(r)) == ByteState::kInFlight) [[unlikely]] {
    found = conflict(FindingKind::kWriteOverAsyncCopy, address, write_of(r), static_cast<int32_t>(pc_of(r)));
  } else if (!ordered(write_of(r), who, lane)) [[unlikely]] {
    found = conflict(race_kind(write_of(r), who), address, write_of(r), static_cast<int32_t>(pc_of(r)));
  }
  // All agents at once: a reader whose clock we have not passed may still be reading. Our own epoch always looks so.
  int32_t unordered = 0;
  for (uint32_t a = 0; a < stride_; ++a) {
    unordered |= static_cast<int32_t>(r[a] >> 12) >= static_cast<int32_t>(who.clocks[a] + (a != who.agent));
  }
  if (unordered != 0 && found == nullptr) [[unlikely]]
    found = find_reader(r, who, lane, address);
  write_of(r) = make_epoch(who.clocks[who.agent], who.agent, lane);
  state_of(r) = static_cast<uint32_t>(state);
  pc_of(r) = static_cast<uint32_t>(pc);
  for (uint32_t a = 0; a < stride_; ++a) r[a] = 0;
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
  if (state_at(cells_, cell) == ByteState::kSplit) return;
  const uint32_t per_cell = 16u >> shift_;
  for (uint32_t g = cell * per_cell; g < (cell + 1) * per_cell; ++g) {
    std::copy_n(record(cells_, cell), stride_ + 3, record(granules_, g));
  }
  state_of(record(cells_, cell)) = static_cast<uint32_t>(ByteState::kSplit);
}

// After one write of all sixteen bytes the granules are alike again.
inline void SharedMemory::unify(uint32_t cell) {
  std::copy_n(record(granules_, cell * (16u >> shift_)), stride_ + 3, record(cells_, cell));
}

}  // namespace flashdelta::emulator
