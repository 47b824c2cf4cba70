#include "emulator/memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace flashdelta::emulator {

void Memory::add(void* data, size_t bytes, std::string name, Access access) {
  auto region = std::make_unique<Region>();
  region->data = static_cast<uint8_t*>(data);
  region->bytes = bytes;
  region->name = std::move(name);
  region->access = access;
  if (!access.initialised) region->written = std::make_unique<uint8_t[]>(bytes);
  regions_[reinterpret_cast<uint64_t>(data)] = std::move(region);
}

void Memory::remove(const void* data) { regions_.erase(reinterpret_cast<uint64_t>(data)); }

Region* Memory::find(uint64_t address) const {
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  Region* region = std::prev(after)->second.get();
  return region->holds(address, 1) ? region : nullptr;
}

namespace {

// The shadow of [data, data + bytes), cut at the region's end; empty where there is none.
struct ShadowRange {
  uint8_t* first = nullptr;
  size_t bytes = 0;
};

ShadowRange shadow_of(const Memory& memory, const void* data, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(data);
  Region* region = memory.find(address);
  if (region == nullptr || region->written == nullptr) return {};
  const size_t offset = address - reinterpret_cast<uint64_t>(region->data);
  return {region->written.get() + offset, std::min(bytes, region->bytes - offset)};
}

}  // namespace

void Memory::mark_written(const void* data, size_t bytes) {
  const ShadowRange shadow = shadow_of(*this, data, bytes);
  if (shadow.bytes != 0) std::memset(shadow.first, 1, shadow.bytes);
}

void Memory::mark_unwritten(const void* data, size_t bytes) {
  const ShadowRange shadow = shadow_of(*this, data, bytes);
  if (shadow.bytes != 0) std::memset(shadow.first, 0, shadow.bytes);
}

bool Memory::is_written(const void* data, size_t bytes) const {
  const ShadowRange shadow = shadow_of(*this, data, bytes);
  return std::all_of(shadow.first, shadow.first + shadow.bytes, [](uint8_t flag) { return flag != 0; });
}

std::string Memory::describe(uint64_t address) const {
  auto after = regions_.upper_bound(address);
  std::string text = "no region is near";
  uint64_t nearest = UINT64_MAX;
  if (after != regions_.begin()) {
    const Region& below = *std::prev(after)->second;
    const uint64_t offset = address - reinterpret_cast<uint64_t>(below.data);
    if (offset < below.bytes) return fmt::format("byte {} of {} ({} bytes)", offset, below.name, below.bytes);
    nearest = offset - below.bytes;
    text = fmt::format("{} bytes past the end of {} ({} bytes)", nearest, below.name, below.bytes);
  }
  if (after != regions_.end() && after->first - address < nearest) {
    text =
        fmt::format("{} bytes before {} ({} bytes)", after->first - address, after->second->name, after->second->bytes);
  }
  return text;
}

}  // namespace flashdelta::emulator
