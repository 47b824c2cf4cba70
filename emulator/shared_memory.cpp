#include "emulator/shared_memory.hpp"

#include <cstdlib>

namespace flashdelta::emulator {

void SharedMemory::resize(uint32_t bytes, uint32_t agents, uint32_t granule) {
  bytes_ = bytes;
  agents_ = agents;
  stride_ = (agents + 3) / 4 * 4;
  shift_ = granule == 1 ? 0 : granule == 2 ? 1 : 2;
  const uint32_t cells = (bytes + 15) / 16;
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(1024, (size_t{bytes} / 1024 + 1) * 1024)));
  cells_.resize(size_t{cells} * (stride_ + 4));
  granules_.resize(cells_.size() << (4 - shift_));
}

void SharedMemory::reset() {
  std::memset(data_.get(), 0xff, bytes_);
  std::fill(cells_.begin(), cells_.end(), 0);
  static_assert(static_cast<uint32_t>(ByteState::kUnwritten) == 0);
}

void SharedMemory::land(uint32_t address, uint32_t bytes, Epoch epoch, ByteState state) {
  auto put = [&](Record r) {
    write_of(r) = epoch;
    state_of(r) = static_cast<uint32_t>(state);
  };
  for (uint32_t at = address; at < address + bytes;) {
    if (at % 16 == 0 && at + 16 <= address + bytes && state_at(cells_, at / 16) != ByteState::kSplit) {
      put(record(cells_, at / 16));
      at += 16;
    } else {
      split(at / 16);
      put(record(granules_, at >> shift_));
      at = ((at >> shift_) + 1) << shift_;
    }
  }
}

bool SharedMemory::is_undefined(uint32_t address, uint32_t bytes) const {
  auto undefined = [](ByteState s) { return s != ByteState::kWritten && s != ByteState::kInFlight; };
  for (uint32_t g = address >> shift_; g <= (address + bytes - 1) >> shift_; ++g) {
    const ByteState cell = state_at(cells_, (g << shift_) / 16);
    if (undefined(cell == ByteState::kSplit ? state_at(granules_, g) : cell)) return true;
  }
  return false;
}

const Conflict* SharedMemory::find_reader(Record r, const Accessor& who, uint32_t lane, uint32_t address) {
  for (uint32_t a = 0; a < agents_; ++a) {
    const Epoch e = r[a];
    if (e != 0 && !ordered(e, who, lane)) return conflict(race_kind(e, who), address, e, -1);
  }
  return nullptr;
}

}  // namespace flashdelta::emulator
