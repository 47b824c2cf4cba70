// Addresses of 32 lanes: where they lead, whether they may be used, and how shared memory's banks serve them.
#if defined(FLASHDELTA_EMULATOR_MEMORY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHDELTA_EMULATOR_MEMORY_INL
#undef FLASHDELTA_EMULATOR_MEMORY_INL
#else
#define FLASHDELTA_EMULATOR_MEMORY_INL
#endif

#include <algorithm>

#include "emulator/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

enum class Space : int32_t { kGlobal, kShared, kLocal, kParameter, kGeneric };

struct Addresses {
  U64 at[32];
  U32 mask = 0;  // lanes that may go on
};

// A memory operand (0, 1 or 2) of an instruction, in those of the given lanes whose address is defined.
HWY_INLINE void get_addresses(Warp& w, const Instruction& i, U32 operand, U32 which, Addresses* a,
                              U32 lanes = kAllLanes) {
  const U64 offset = static_cast<U64>(i.offset[which]);
  if ((i.flags & (kAddress64 << which)) != 0) {
    const U64* base = w.lanes<U64>(i.operand[operand]);
    for (U32 l = 0; l < 32; ++l) a->at[l] = base[l] + offset;
  } else {
    const U32* base = w.lanes<U32>(i.operand[operand]);
    for (U32 l = 0; l < 32; ++l) a->at[l] = base[l] + static_cast<U32>(offset);
  }
  a->mask = w.mask & lanes;
  if (const U32 bad = w.poison[i.operand[operand]] & a->mask; bad != 0) [[unlikely]] {
    w.block->report_undefined(w, bad, w.origin[i.operand[operand]], "an address depends on");
    a->mask &= ~bad;
  }
}

// Takes lanes out whose shared address is misaligned or outside the block's memory, and reports them.
HWY_INLINE void check_shared(Warp& w, Addresses* a, U32 bytes, U32 align, const char* what) {
  const U32 limit = w.block->shared.bytes();
  const U64 last = limit < bytes ? 0 : limit - bytes;
  U64 wrong = limit < bytes;
  for (U32 l = 0; l < 32; ++l) wrong |= (a->at[l] & (align - 1)) | static_cast<U64>(a->at[l] > last);
  if (wrong == 0) return;
  U32 bad = 0;
  for (U32 l = 0; l < 32; ++l) {
    if (limit < bytes || (a->at[l] & (align - 1)) != 0 || a->at[l] > last) bad |= 1u << l;
  }
  bad &= a->mask;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(bad, l)) continue;
    w.block->report_shared_address(w, l, what, a->at[l], bytes, align);
  }
  a->mask &= ~bad;
}

// The same for global memory; leaves the region of each lane in `targets`.
HWY_INLINE void check_global(Warp& w, const Instruction& i, Addresses* a, U32 bytes, U32 align, bool writes,
                             const char* what, const Target** targets) {
  const Target* target = nullptr;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a->mask, l)) continue;
    if (target == nullptr || !target->region->holds(a->at[l], bytes)) {
      target = w.block->find_region(i, a->at[l], bytes);
    }
    targets[l] = target;
    const bool allowed =
        target != nullptr && (writes ? target->region->access.writable : target->region->access.readable);
    if (allowed && a->at[l] % align == 0) continue;
    a->mask &= ~(1u << l);
    w.block->report_global_address(w, l, what, a->at[l], bytes, align, target, writes);
  }
}

// Shared memory serves 128 bytes a wavefront from 32 banks of 4 bytes. Lanes are served in phases of 8 (16-byte
// accesses), 16 (8-byte) or 32; a phase takes as many wavefronts as a bank has different words to give. The ideal is
// one a phase.
HWY_INLINE void count_phase(const U64* at, U32 mask, U32 lanes, U32 bytes, Counters* counters) {
  if (mask == 0) return;
  U32 words[32][8];
  U32 count[32] = {};
  U32 most = 1;
  for (U32 l = 0; l < lanes; ++l) {
    if (!in(mask, l)) continue;
    for (U32 k = 0; k < (bytes + 3) / 4; ++k) {
      const U32 word = static_cast<U32>(at[l] / 4) + k, bank = word % 32;
      U32 n = 0;
      while (n < std::min(count[bank], 8u) && words[bank][n] != word) ++n;
      if (n < count[bank] && n < 8) continue;
      if (count[bank] < 8) words[bank][count[bank]] = word;
      most = std::max(most, ++count[bank]);
    }
  }
  (*counters)[Counter::kSharedWavefronts] += most;
  ++(*counters)[Counter::kSharedWavefrontsIdeal];
}

HWY_INLINE void count_wavefronts(Warp& w, const Addresses& a, U32 bytes) {
  if (!w.block->count_wavefronts()) return;
  const U32 lanes = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
  Counters& counters = w.block->counters;
  for (U32 first = 0; first < 32; first += lanes) {
    const U32 mask = lanes == 32 ? a.mask : a.mask >> first & ((1u << lanes) - 1);
    if (bytes == 16 && mask == 0xff) {
      U32 columns = 0;  // eight different 16-byte columns cover all banks once
      for (U32 l = 0; l < 8; ++l) columns |= 1u << (a.at[first + l] >> 4 & 7);
      if (columns == 0xff) {
        ++counters[Counter::kSharedWavefronts];
        ++counters[Counter::kSharedWavefrontsIdeal];
        continue;
      }
    }
    count_phase(a.at + first, mask, lanes, bytes, &counters);
  }
}

// 32-byte pieces of global memory that one instruction touches.
HWY_INLINE void count_sectors(Warp& w, const Addresses& a) {
  U64 sectors[32];
  U32 count = 0;
  bool sorted = true;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    const U64 sector = a.at[l] >> 5;
    if (count > 0 && sectors[count - 1] == sector) continue;
    sorted = sorted && (count == 0 || sectors[count - 1] < sector);
    sectors[count++] = sector;
  }
  if (!sorted) {
    std::sort(sectors, sectors + count);
    count = static_cast<U32>(std::unique(sectors, sectors + count) - sectors);
  }
  w.block->counters[Counter::kGlobalSectors] += count;
}

// Notes 32 lanes' reads of shared memory; the result has a bit for each lane that read something undefined.
HWY_INLINE U32 note_shared_reads(Warp& w, const Addresses& a, U32 bytes, bool whole_warp, const char* what,
                                 Origin* origin) {
  Block& block = *w.block;
  if (!block.detect()) return 0;
  const Accessor who = w.accessor();
  U32 undefined = 0;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    ByteState state = ByteState::kWritten;
    const U32 lane = whole_warp ? kManyLanes : l;
    const Conflict* c = block.shared.read(who, lane, static_cast<U32>(a.at[l]), bytes, &state);
    if (c != nullptr) [[unlikely]]
      block.report_conflict(w, l, *c, what);
    if (state != ByteState::kWritten) [[unlikely]] {
      undefined |= 1u << l;
      origin->kind = state == ByteState::kUnwritten         ? FindingKind::kUndefinedShared
                     : state == ByteState::kUndefinedGlobal ? FindingKind::kUndefinedGlobal
                                                            : FindingKind::kUndefinedRegister;
      origin->pc = static_cast<int32_t>(w.pc);
    }
  }
  return undefined;
}

HWY_INLINE void note_shared_writes(Warp& w, const Addresses& a, U32 bytes, bool whole_warp, U32 poison,
                                   const Origin& origin, const char* what) {
  Block& block = *w.block;
  if (!block.detect()) return;
  const Accessor who = w.accessor();
  const ByteState undefined =
      origin.kind == FindingKind::kUndefinedGlobal ? ByteState::kUndefinedGlobal : ByteState::kUndefinedRegister;
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    const ByteState state = in(poison, l) ? undefined : ByteState::kWritten;
    const U32 lane = whole_warp ? kManyLanes : l;
    const Conflict* c =
        block.shared.write(who, lane, static_cast<U32>(a.at[l]), bytes, state, static_cast<int32_t>(w.pc));
    if (c != nullptr) [[unlikely]]
      block.report_conflict(w, l, *c, what);
  }
}

// A warp-wide instruction that only some lanes reach; ends the block and is false.
HWY_INLINE bool require_whole_warp(Warp& w, const char* what) {
  if (w.mask == kAllLanes) [[likely]]
    return true;
  w.block->report_partial_warp(w, what);
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
