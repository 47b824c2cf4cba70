// Global memory as kernels see it: regions of host memory, each with its rights and with a shadow that knows which
// bytes were ever written. The device layer adds a region for each allocation and keeps it across launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace flashdelta::emulator {

struct Access {
  bool readable = true;
  bool writable = true;
  bool initialised = true;  // false: reading a byte before a kernel or mark_written wrote it is undefined
};

struct Region {
  uint8_t* data = nullptr;
  size_t bytes = 0;
  std::string name;
  Access access;
  std::unique_ptr<uint8_t[]> written;  // one flag a byte; null: all of it is initialised

  bool holds(uint64_t address, size_t size) const {
    const auto first = reinterpret_cast<uint64_t>(data);
    return address >= first && address - first <= bytes && bytes - (address - first) >= size;
  }
};

class Memory {
 public:
  void add(void* data, size_t bytes, std::string name, Access access = {});
  void remove(const void* data);
  // The host wrote these bytes (a copy to the device, a memset), or they are to count as never written.
  void mark_written(const void* data, size_t bytes);
  void mark_unwritten(const void* data, size_t bytes);
  bool is_written(const void* data, size_t bytes) const;

  Region* find(uint64_t address) const;          // the region that holds this byte; null: none
  std::string describe(uint64_t address) const;  // "96 bytes past the end of k (38400 bytes)"
  const std::map<uint64_t, std::unique_ptr<Region>>& regions() const { return regions_; }

 private:
  std::map<uint64_t, std::unique_ptr<Region>> regions_;  // by first address
};

}  // namespace flashdelta::emulator
