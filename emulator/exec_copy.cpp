// Asynchronous copies, cp.async and bulk, and the mbarriers that bulk copies complete on.
#include <cstring>

#include "emulator/memory-inl.hpp"
#include "emulator/tensor_map.hpp"

HWY_BEFORE_NAMESPACE();
namespace flashdelta::emulator {
namespace HWY_NAMESPACE {

// Operands: [shared], [global], size[, bytes to read | predicate to ignore the source | cache policy].
void copy_async(Warp& w, const Instruction& i) {
  Block& block = *w.block;
  const U32 size = i.operand[2];
  Addresses to, from;
  get_addresses(w, i, 0, 0, &to);
  get_addresses(w, i, 1, 1, &from);
  U32 read[32];
  for (U32 l = 0; l < 32; ++l) {
    read[l] = size;
    if (i.operands == 4 && i.kind[3] == 'r') read[l] = std::min(size, w.lanes<U32>(i.operand[3])[l]);
    if (i.operands == 4 && i.kind[3] == 'p') read[l] = w.predicate_lane(i.operand[3], l) ? 0 : size;
  }
  if (i.operands == 4 && i.kind[3] == 'r' && (w.poison[i.operand[3]] & w.mask) != 0) {
    block.report_undefined(w, w.poison[i.operand[3]] & w.mask, w.origin[i.operand[3]], "the size of a copy depends on");
  }
  check_shared(w, &to, size, size, "cp.async");
  const Target* targets[32];
  // A lane that reads nothing may have any source address.
  const U32 wanted = from.mask;
  U32 reading = 0, partial = 0;
  for (U32 l = 0; l < 32; ++l) {
    if (read[l] == size) reading |= 1u << l;
    if (read[l] != 0 && read[l] != size) partial |= 1u << l;
  }
  from.mask = wanted & reading;
  check_global(w, i, &from, size, size, false, "cp.async", targets);
  U32 checked = from.mask;
  for (U32 l = 0; l < 32 && partial != 0; ++l) {
    if (!in(partial & wanted, l)) continue;
    from.mask = 1u << l;
    check_global(w, i, &from, read[l], 1, false, "cp.async", targets);
    checked |= from.mask;
  }
  from.mask = checked;
  const Accessor who = w.accessor();
  for (U32 l = 0; l < 32; ++l) {
    if (!in(to.mask, l)) continue;
    const auto target = static_cast<U32>(to.at[l]);
    if (block.detect()) {
      const Conflict* c = block.shared.write(who, l, target, size, ByteState::kInFlight, static_cast<int32_t>(w.pc));
      if (c != nullptr) [[unlikely]]
        block.report_conflict(w, l, *c, "cp.async");
    }
    std::memset(block.shared.data() + target, 0xff, size);
    const U32 bytes = in(from.mask, l) ? read[l] : 0;
    CopyPiece piece{target, static_cast<uint8_t>(size), static_cast<uint8_t>(bytes), static_cast<uint8_t>(l)};
    if (bytes != 0) {
      const Region& region = *targets[l]->region;
      piece.source = reinterpret_cast<const uint8_t*>(from.at[l]);
      if (region.written != nullptr) piece.written = region.written.get() + (piece.source - region.data);
    }
    w.open_copies.push_back(piece);
    block.counters[Counter::kCpAsyncBytes] += bytes;
  }
  count_wavefronts(w, to, size);
  count_sectors(w, from);
}

void commit(Warp& w, const Instruction&) {
  w.copy_groups.push_back(std::move(w.open_copies));
  w.open_copies.clear();
}

void wait_group(Warp& w, const Instruction& i) { w.block->wait_copies(w, i.operand[0]); }

void wait_all(Warp& w, const Instruction& i) {
  commit(w, i);
  w.block->wait_copies(w, 0);
}

// Lanes of an mbarrier instruction that name the same one.
struct Party {
  Mbarrier* barrier = nullptr;
  U64 address = 0;
  U32 lanes = 0;
};

// Takes the next party off `left`.
bool next_party(Warp& w, const Addresses& a, U32* left, Party* party) {
  while (*left != 0 && !w.block->aborted()) {
    const auto first = static_cast<U32>(std::countr_zero(*left));
    party->lanes = 0;
    for (U32 l = first; l < 32; ++l) {
      if (in(*left, l) && a.at[l] == a.at[first]) party->lanes |= 1u << l;
    }
    *left &= ~party->lanes;
    party->address = a.at[first];
    party->barrier = w.block->find_mbarrier(w, first, party->address);
    if (party->barrier != nullptr) return true;
  }
  return false;
}

void get_barriers(Warp& w, const Instruction& i, U32 operand, U32 which, Addresses* a) {
  get_addresses(w, i, operand, which, a);
  for (U32 l = 0; l < 32; ++l) {
    if ((a->at[l] & kWindowMask) == kSharedWindow) a->at[l] -= kSharedWindow;
  }
  check_shared(w, a, 8, 8, "mbarrier");
}

void mbarrier_init(Warp& w, const Instruction& i) {
  Addresses a;
  get_barriers(w, i, 0, 0, &a);
  note_shared_writes(w, a, 8, false, 0, {}, "mbarrier.init");
  for (U32 l = 0; l < 32; ++l) {
    if (!in(a.mask, l)) continue;
    const U32 count = w.lanes<U32>(i.operand[1])[l];
    Mbarrier& barrier = w.block->mbarriers[a.at[l]];
    barrier = {};
    barrier.expected = count;
    barrier.pending = count;
  }
}

void mbarrier_invalidate(Warp& w, const Instruction& i) {
  Addresses a;
  get_barriers(w, i, 0, 0, &a);
  for (U32 l = 0; l < 32; ++l) {
    if (in(a.mask, l)) w.block->mbarriers.erase(a.at[l]);
  }
}

// detail: 0 arrive, 1 arrive.expect_tx, 2 expect_tx, 3 complete_tx. The state is the phase that was arrived at.
void mbarrier_arrive(Warp& w, const Instruction& i) {
  Addresses a;
  const bool arrives = i.detail < 2;
  const U32 operand = arrives ? 1 : 0;
  get_barriers(w, i, operand, 0, &a);
  const U32* value = i.operands > operand + 1u ? w.lanes<U32>(i.operand[operand + 1]) : nullptr;
  U32 left = a.mask;
  Party party;
  while (next_party(w, a, &left, &party)) {
    int64_t bytes = 0;
    U32 count = 0;
    for (U32 l = 0; l < 32; ++l) {
      if (!in(party.lanes, l)) continue;
      if (i.detail != 0) bytes += value[l];
      count += i.detail == 0 && value != nullptr ? value[l] : 1;
      if (arrives) w.lanes<U64>(i.operand[0])[l] = party.barrier->phase;
    }
    party.barrier->bytes += i.detail == 3 ? -bytes : bytes;
    if (arrives) {
      w.block->mbarrier_arrive(w, party.barrier, count);
    } else {
      w.block->mbarrier_settle(party.barrier);
    }
  }
  if (arrives) set_defined(w, i.operand[0]);
}

// detail: 1 for .parity. A wait that would suspend is a failed test here; the kernel's loop comes back.
void mbarrier_test(Warp& w, const Instruction& i) {
  Addresses a;
  get_barriers(w, i, 1, 0, &a);
  U32 bits = 0, left = a.mask;
  U64 failed_at = 0;
  Party party;
  while (next_party(w, a, &left, &party)) {
    for (U32 l = 0; l < 32; ++l) {
      if (!in(party.lanes, l)) continue;
      const U64 phase = party.barrier->phase;
      const bool done =
          i.detail == 1 ? (phase & 1) != (w.lanes<U32>(i.operand[2])[l] & 1) : phase != w.lanes<U64>(i.operand[2])[l];
      if (done) bits |= 1u << l;
      if (!done) failed_at = party.address;
    }
    if ((bits & party.lanes) != 0) w.block->mbarrier_acquire(w, *party.barrier);
  }
  write_predicate(w, i.operand[0], bits);
  poison_predicate(w, i.operand[0], 0, {});
  if (bits != w.mask) w.block->mbarrier_failed(w, failed_at);
}

// Copies of this warp count as done when the barrier's phase completes; here they are done at once.
void copy_arrive(Warp& w, const Instruction& i) {
  wait_all(w, i);
  Addresses a;
  get_barriers(w, i, 0, 0, &a);
  U32 left = a.mask;
  Party party;
  while (next_party(w, a, &left, &party)) {
    const auto count = static_cast<U32>(std::popcount(party.lanes));
    if (i.detail == 0) party.barrier->pending += count;  // without .noinc the arrival brings its own count
    w.block->mbarrier_arrive(w, party.barrier, count);
  }
}

// Operands to shared: [shared], [global], bytes, [mbarrier]; from shared: [global], [shared], bytes.
template <bool kToShared, bool kAdds>
void copy_bulk(Warp& w, const Instruction& i) {
  Addresses shared, global, barrier;
  get_addresses(w, i, kToShared ? 0 : 1, kToShared ? 0 : 1, &shared);
  get_addresses(w, i, kToShared ? 1 : 0, kToShared ? 1 : 0, &global);
  if (kToShared) get_barriers(w, i, 3, 2, &barrier);
  const U32* sizes = w.lanes<U32>(i.operand[2]);
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    const U32 bytes = sizes[l];
    shared.mask = global.mask = 1u << l;
    if (bytes % 16 != 0) {
      w.block->report(w, static_cast<int>(l), FindingKind::kSharedMisaligned,
                      "a bulk copy of " + std::to_string(bytes) + " bytes: no multiple of 16");
      continue;
    }
    const Target* targets[32];
    check_shared(w, &shared, bytes, 16, "bulk copy");
    check_global(w, i, &global, bytes, 16, !kToShared, "bulk copy", targets);
    if ((shared.mask & global.mask) == 0 || bytes == 0) continue;
    BulkCopy copy;
    copy.to_shared = kToShared;
    copy.add_f32 = kAdds;
    auto* outside = reinterpret_cast<uint8_t*>(global.at[l]);
    copy.pieces = {{static_cast<U32>(shared.at[l]), outside, bytes}};
    if (kToShared) {
      if (w.block->find_mbarrier(w, l, barrier.at[l]) == nullptr) return;
      copy.mbarrier = barrier.at[l];
    } else if (!kAdds) {
      w.block->claim(w, l, *targets[l], outside, bytes);
    }
    w.block->start_bulk(w, l, std::move(copy));
    w.block->counters[Counter::kBulkBytes] += bytes;
  }
}

// The tensor map that an address in the parameters leads to; false: reported.
bool find_map(Warp& w, U32 lane, U64 address, TensorMap* map) {
  const std::vector<uint8_t>& parameters = w.block->launch_state().launch->parameters;
  const U64 offset = address - kParameterWindow;
  const bool inside = (address & kWindowMask) == kParameterWindow && offset + sizeof(TensorMap) <= parameters.size();
  if (inside && offset % 64 == 0) {
    std::memcpy(map, parameters.data() + offset, sizeof(TensorMap));
    if (map->is_valid()) return true;
  }
  w.block->report(w, static_cast<int>(lane), FindingKind::kGlobalOutOfBounds,
                  "a tensor copy whose map is no tensor map in the kernel's parameters");
  return false;
}

// The pieces of the box at `corner`: a row's 16-byte chunk c lies at c ^ (row & 7).
std::vector<BulkPiece> pieces_of(const TensorMap& map, U32 shared, const std::array<int64_t, 4>& corner) {
  std::vector<BulkPiece> pieces;
  const auto inside = [&](U32 d, int64_t x) { return x >= 0 && static_cast<U64>(x) < map.sizes[d]; };
  for (U32 row = 0; row < map.rows(); ++row) {
    const int64_t y = corner[1] + row % map.box[1], z = corner[2] + row / map.box[1] % map.box[2];
    const int64_t w = corner[3] + row / map.box[1] / map.box[2];
    const bool row_inside = inside(1, y) && inside(2, z) && inside(3, w);
    const U64 start = map.data + static_cast<U64>(y) * map.strides[0] + static_cast<U64>(z) * map.strides[1] +
                      static_cast<U64>(w) * map.strides[2];
    for (U32 chunk = 0; chunk < 8; ++chunk) {
      const int64_t x = corner[0] + chunk * 8;
      auto* global = reinterpret_cast<uint8_t*>(start + static_cast<U64>(x) * 2);
      pieces.push_back(
          {shared + row * 128 + ((chunk ^ (row & 7)) << 4), row_inside && inside(0, x) ? global : nullptr, 16});
    }
  }
  return pieces;
}

// Operands to shared: [shared], [map, {x, y, z, w}], [mbarrier]; from shared: [map, {x, y, z, w}], [shared].
template <bool kToShared>
void copy_tensor(Warp& w, const Instruction& i) {
  Addresses shared, map_at, barrier;
  const U32 map_operand = kToShared ? 1 : 0;
  get_addresses(w, i, kToShared ? 0 : 5, kToShared ? 0 : 1, &shared);
  get_addresses(w, i, map_operand, map_operand, &map_at);
  if (kToShared) get_barriers(w, i, 6, 2, &barrier);
  for (U32 l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    TensorMap map;
    if (!find_map(w, l, map_at.at[l], &map)) continue;
    std::array<int64_t, 4> corner;
    for (U32 d = 0; d < 4; ++d) corner[d] = static_cast<int32_t>(w.lanes<U32>(i.operand[map_operand + 1 + d])[l]);
    Addresses box = shared;
    box.mask = 1u << l;
    check_shared(w, &box, map.box_bytes(), 1024, "tensor copy");
    if (box.mask == 0 || (kToShared && w.block->find_mbarrier(w, l, barrier.at[l]) == nullptr)) continue;
    BulkCopy copy;
    copy.to_shared = kToShared;
    if (kToShared) copy.mbarrier = barrier.at[l];
    copy.pieces = pieces_of(map, static_cast<U32>(shared.at[l]), corner);
    if (!kToShared) std::erase_if(copy.pieces, [](const BulkPiece& piece) { return piece.global == nullptr; });
    bool inside = true;
    for (const BulkPiece& piece : copy.pieces) {
      if (piece.global == nullptr) continue;
      Addresses global;
      global.mask = 1u << l;
      global.at[l] = reinterpret_cast<U64>(piece.global);
      const Target* targets[32];
      check_global(w, i, &global, piece.bytes, 16, !kToShared, "tensor copy", targets);
      inside = global.mask != 0;
      if (!inside) break;
      if (!kToShared) w.block->claim(w, l, *targets[l], piece.global, piece.bytes);
    }
    if (!inside) continue;
    w.block->counters[Counter::kBulkBytes] += map.box_bytes();
    w.block->start_bulk(w, l, std::move(copy));
  }
}

void commit_bulk(Warp& w, const Instruction&) { w.bulk_groups.push_back(w.open_bulk); }
void wait_bulk(Warp& w, const Instruction& i) { w.block->wait_bulk(w, i.operand[0]); }
void prefetch_bulk(Warp&, const Instruction&) {}

void add_mbarrier_rows(OpcodeTable* t) {
  constexpr Counter kBarrier = Counter::kMbarrier;
  const std::string shared = "{.shared,}.b64";
  t->add("mbarrier.init" + shared, {mbarrier_init, "=mr", kBarrier, kMayPreempt});
  t->add("mbarrier.inval" + shared, {mbarrier_invalidate, "=m", kBarrier, kMayPreempt});
  t->add("mbarrier.arrive" + shared, {mbarrier_arrive, "q=m;q=mr", kBarrier, kMayPreempt, 0, 1, 0});
  t->add("mbarrier.arrive.noComplete" + shared, {mbarrier_arrive, "q=mr", kBarrier, kMayPreempt, 0, 1, 0});
  t->add("mbarrier.arrive.expect_tx" + shared, {mbarrier_arrive, "q=mr", kBarrier, kMayPreempt, 0, 1, 1});
  t->add("mbarrier.expect_tx" + shared, {mbarrier_arrive, "=mr", kBarrier, kMayPreempt, 0, 1, 2});
  t->add("mbarrier.complete_tx" + shared, {mbarrier_arrive, "=mr", kBarrier, kMayPreempt, 0, 1, 3});
  t->add("mbarrier.test_wait" + shared, {mbarrier_test, "p=mq", kBarrier, kMayPreempt, 0, 1, 0});
  t->add("mbarrier.try_wait" + shared, {mbarrier_test, "p=mq;p=mqr", kBarrier, kMayPreempt, 0, 1, 0});
  t->add("mbarrier.test_wait.parity" + shared, {mbarrier_test, "p=mr", kBarrier, kMayPreempt, 0, 1, 1});
  t->add("mbarrier.try_wait.parity" + shared, {mbarrier_test, "p=mr;p=mrr", kBarrier, kMayPreempt, 0, 1, 1});
}

void AddCopy(OpcodeTable* t) {
  t->add("cp.async.shared.global", {copy_async, "=mml;=mmlr;=mmlp;=mmlq", Counter::kCpAsync, kMayPreempt});
  t->add("cp.async.commit_group", {commit, "=", Counter::kOther, kMayPreempt});
  t->add("cp.async.wait_group", {wait_group, "=l", Counter::kOther, kMayPreempt});
  t->add("cp.async.wait_all", {wait_all, "=", Counter::kOther, kMayPreempt});
  t->add("cp.async.mbarrier.arrive{.shared,}.b64", {copy_arrive, "=m", Counter::kMbarrier, kMayPreempt, 0, 1, 0});
  t->add("cp.async.mbarrier.arrive.noinc{.shared,}.b64", {copy_arrive, "=m", Counter::kMbarrier, kMayPreempt, 0, 1, 1});
  add_mbarrier_rows(t);
  t->add("cp.async.bulk.shared.global.mbarrier::complete_tx::bytes",
         {copy_bulk<true, false>, "=mmrm;=mmrmq", Counter::kBulkCopies, kMayPreempt});
  t->add("cp.async.bulk.tensor.4d.shared.global.tile.mbarrier::complete_tx::bytes",
         {copy_tensor<true>, "=mmrrrrm", Counter::kBulkCopies, kMayPreempt});
  t->add("cp.async.bulk.tensor.4d.global.shared.tile.bulk_group",
         {copy_tensor<false>, "=mrrrrm", Counter::kBulkCopies, kMayPreempt});
  t->add("cp.async.bulk.global.shared.bulk_group",
         {copy_bulk<false, false>, "=mmr;=mmrq", Counter::kBulkCopies, kMayPreempt});
  t->add("cp.reduce.async.bulk.global.shared.bulk_group.add.f32",
         {copy_bulk<false, true>, "=mmr", Counter::kBulkCopies, kMayPreempt});
  t->add("cp.async.bulk.commit_group", {commit_bulk, "=", Counter::kOther, kMayPreempt});
  t->add("cp.async.bulk.wait_group{,.read}", {wait_bulk, "=l", Counter::kOther, kMayPreempt});
  t->add("cp.async.bulk.prefetch.L2.global", prefetch_bulk, "=mr", Counter::kOther);
}

}  // namespace HWY_NAMESPACE

void add_copy_opcodes(OpcodeTable* table) { HWY_NAMESPACE::AddCopy(table); }

}  // namespace flashdelta::emulator
HWY_AFTER_NAMESPACE();
