// What lanes of a warp say to each other: shuffles, votes, matches, reductions, warp barriers.
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "emulator/block.hpp"
#include "emulator/opcodes.hpp"

namespace flashdelta::emulator {
namespace {

bool in(uint32_t mask, uint32_t lane) { return (mask >> lane & 1) != 0; }

// Every running lane that the mask names must be here, and nobody else.
void check_members(Warp& w, uint32_t slot, const char* what) {
  const uint32_t member = w.lanes<uint32_t>(slot)[std::countr_zero(w.mask)];
  if ((member & w.alive) == w.mask) [[likely]]
    return;
  w.block->report(w, -1, FindingKind::kDivergence,
                  fmt::format("{} with mask {:#010x} is reached by lanes {:#010x} of the {:#010x} that run", what,
                              member, w.mask, w.alive));
}

void write_predicate(Warp& w, uint32_t operand, uint32_t bits, uint32_t poison) {
  w.predicate[operand] = (w.predicate[operand] & ~w.mask) | (bits & w.mask);
  w.predicate_poison[operand] = (w.predicate_poison[operand] & ~w.mask) | (poison & w.mask);
}

void write_poison(Warp& w, uint32_t slot, uint32_t poison, const Origin& origin) {
  w.poison[slot] = (w.poison[slot] & ~w.mask) | (poison & w.mask);
  if ((poison & w.mask) != 0) w.origin[slot] = origin;
}

enum Shuffle { kUp, kDown, kButterfly, kIndex };

// c: bits 0-4 the clamp, bits 8-12 the segment mask.
template <Shuffle kMode>
void shuffle(Warp& w, const Instruction& i) {
  check_members(w, i.operand[5], "shfl.sync");
  const uint32_t *b = w.lanes<uint32_t>(i.operand[3]), *c = w.lanes<uint32_t>(i.operand[4]);
  uint32_t source[32], poison = 0, inside = 0;
  std::copy_n(w.lanes<uint32_t>(i.operand[2]), 32, source);
  const uint32_t source_poison = w.poison[i.operand[2]] | ~w.mask;  // a lane that is not here gives nothing
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (uint32_t l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    const uint32_t segment = c[l] >> 8 & 31, clamp = c[l] & 31, by = b[l] & 31;
    const int last = static_cast<int>((l & segment) | (clamp & ~segment));
    const int lane = static_cast<int>(l), step = static_cast<int>(by);
    int from = kMode == kUp          ? lane - step
               : kMode == kDown      ? lane + step
               : kMode == kButterfly ? lane ^ step
                                     : static_cast<int>((l & segment) | (by & ~segment));
    const bool ok = kMode == kUp ? from >= last : from <= last;
    if (!ok) from = lane;
    d[l] = source[from];
    if (in(source_poison, static_cast<uint32_t>(from))) poison |= 1u << l;
    if (ok) inside |= 1u << l;
  }
  const Origin origin = w.poison[i.operand[2]] != 0
                            ? w.origin[i.operand[2]]
                            : Origin{FindingKind::kUndefinedRegister, static_cast<int32_t>(w.pc)};
  if ((poison | w.poison[i.operand[0]]) != 0) write_poison(w, i.operand[0], poison, origin);
  if ((i.flags & kHasPredicate) != 0) write_predicate(w, i.operand[1], inside, 0);
}

// detail: 0 all, 1 any, 2 uni, 3 ballot.
void vote(Warp& w, const Instruction& i) {
  check_members(w, i.operand[2], "vote.sync");
  const uint32_t bits = w.predicate_bits(i.operand[1]) & w.mask;
  const uint32_t bad = w.predicate_poison[i.operand[1] & 0x7fffffffu] & w.mask;
  const Origin origin = w.predicate_origin[i.operand[1] & 0x7fffffffu];
  if (i.detail == 3) {
    for (uint32_t l = 0; l < 32; ++l) {
      if (in(w.mask, l)) w.lanes<uint32_t>(i.operand[0])[l] = bits;
    }
    write_poison(w, i.operand[0], bad != 0 ? kAllLanes : 0, origin);
    return;
  }
  const bool all = bits == w.mask, any = bits != 0;
  const bool result = i.detail == 0 ? all : i.detail == 1 ? any : all || !any;
  write_predicate(w, i.operand[0], result ? kAllLanes : 0, bad != 0 ? kAllLanes : 0);
  if (bad != 0) w.predicate_origin[i.operand[0]] = origin;
}

template <class T>
void match_any(Warp& w, const Instruction& i) {
  check_members(w, i.operand[2], "match.sync");
  T a[32];
  std::copy_n(w.lanes<T>(i.operand[1]), 32, a);
  for (uint32_t l = 0; l < 32; ++l) {
    if (!in(w.mask, l)) continue;
    uint32_t same = 0;
    for (uint32_t k = 0; k < 32; ++k) same |= static_cast<uint32_t>(in(w.mask, k) && a[k] == a[l]) << k;
    w.lanes<uint32_t>(i.operand[0])[l] = same;
  }
  write_poison(w, i.operand[0], (w.poison[i.operand[1]] & w.mask) != 0 ? kAllLanes : 0, w.origin[i.operand[1]]);
}

template <class T>
void match_all(Warp& w, const Instruction& i) {
  check_members(w, i.operand[3], "match.sync");
  const T* a = w.lanes<T>(i.operand[2]);
  const T first = a[std::countr_zero(w.mask)];
  bool all = true;
  for (uint32_t l = 0; l < 32; ++l) all = all && (!in(w.mask, l) || a[l] == first);
  const uint32_t poison = (w.poison[i.operand[2]] & w.mask) != 0 ? kAllLanes : 0;
  const Origin origin = w.origin[i.operand[2]];
  for (uint32_t l = 0; l < 32; ++l) {
    if (in(w.mask, l)) w.lanes<uint32_t>(i.operand[0])[l] = all ? w.mask : 0;
  }
  write_poison(w, i.operand[0], poison, origin);
  if ((i.flags & kHasPredicate) != 0) write_predicate(w, i.operand[1], all ? kAllLanes : 0, poison);
}

template <class Op, class T>
void reduce(Warp& w, const Instruction& i) {
  check_members(w, i.operand[2], "redux.sync");
  const T* a = w.lanes<T>(i.operand[1]);
  T result = a[std::countr_zero(w.mask)];
  for (auto l = static_cast<uint32_t>(std::countr_zero(w.mask)) + 1; l < 32; ++l) {
    if (in(w.mask, l)) result = static_cast<T>(Op{}(result, a[l]));
  }
  const uint32_t poison = (w.poison[i.operand[1]] & w.mask) != 0 ? kAllLanes : 0;
  const Origin origin = w.origin[i.operand[1]];
  for (uint32_t l = 0; l < 32; ++l) {
    if (in(w.mask, l)) w.lanes<T>(i.operand[0])[l] = result;
  }
  write_poison(w, i.operand[0], poison, origin);
}

template <class T, class Op>
void reduction_row(OpcodeTable* t, const char* name, Op) {
  t->add(name, {reduce<Op, T>, "r=rr", Counter::kVote, kMayPreempt});
}

// Only lanes that are here: a lane on another path may keep a different register in the same slot.
void write_uniform(Warp& w, uint32_t slot, uint32_t value) {
  uint32_t* d = w.lanes<uint32_t>(slot);
  for (uint32_t l = 0; l < 32; ++l) d[l] = in(w.mask, l) ? value : d[l];
  w.poison[slot] &= ~w.mask;
}

void active_mask(Warp& w, const Instruction& i) { write_uniform(w, i.operand[0], w.mask); }

// The lowest lane is the leader.
void elect(Warp& w, const Instruction& i) {
  check_members(w, i.operand[2], "elect.sync");
  const auto leader = static_cast<uint32_t>(std::countr_zero(w.mask));
  write_uniform(w, i.operand[0], leader);
  if ((i.flags & kHasPredicate) != 0) write_predicate(w, i.operand[1], 1u << leader, 0);
}

void warp_barrier(Warp& w, const Instruction& i) {
  check_members(w, i.operand[0], "bar.warp.sync");
  w.block->synchronise_warp(w);
}

}  // namespace

void add_warp_opcodes(OpcodeTable* t) {
  t->add("shfl.sync.up.b32", {shuffle<kUp>, "ro=rrrr", Counter::kShuffle, kMayPreempt});
  t->add("shfl.sync.down.b32", {shuffle<kDown>, "ro=rrrr", Counter::kShuffle, kMayPreempt});
  t->add("shfl.sync.bfly.b32", {shuffle<kButterfly>, "ro=rrrr", Counter::kShuffle, kMayPreempt});
  t->add("shfl.sync.idx.b32", {shuffle<kIndex>, "ro=rrrr", Counter::kShuffle, kMayPreempt});
  t->add("vote.sync.all.pred", {vote, "p=pr", Counter::kVote, kMayPreempt, 0, 1, 0});
  t->add("vote.sync.any.pred", {vote, "p=pr", Counter::kVote, kMayPreempt, 0, 1, 1});
  t->add("vote.sync.uni.pred", {vote, "p=pr", Counter::kVote, kMayPreempt, 0, 1, 2});
  t->add("vote.sync.ballot.b32", {vote, "r=pr", Counter::kVote, kMayPreempt, 0, 1, 3});
  t->add("match.any.sync.b32", {match_any<uint32_t>, "r=rr", Counter::kVote, kMayPreempt});
  t->add("match.any.sync.b64", {match_any<uint64_t>, "r=qr", Counter::kVote, kMayPreempt});
  t->add("match.all.sync.b32", {match_all<uint32_t>, "ro=rr", Counter::kVote, kMayPreempt});
  t->add("match.all.sync.b64", {match_all<uint64_t>, "ro=qr", Counter::kVote, kMayPreempt});
  reduction_row<uint32_t>(t, "redux.sync.add.{u32,s32}", [](uint32_t a, uint32_t b) { return a + b; });
  reduction_row<uint32_t>(t, "redux.sync.min.u32", [](uint32_t a, uint32_t b) { return std::min(a, b); });
  reduction_row<uint32_t>(t, "redux.sync.max.u32", [](uint32_t a, uint32_t b) { return std::max(a, b); });
  reduction_row<int32_t>(t, "redux.sync.min.s32", [](int32_t a, int32_t b) { return std::min(a, b); });
  reduction_row<int32_t>(t, "redux.sync.max.s32", [](int32_t a, int32_t b) { return std::max(a, b); });
  reduction_row<uint32_t>(t, "redux.sync.and.b32", [](uint32_t a, uint32_t b) { return a & b; });
  reduction_row<uint32_t>(t, "redux.sync.or.b32", [](uint32_t a, uint32_t b) { return a | b; });
  reduction_row<uint32_t>(t, "redux.sync.xor.b32", [](uint32_t a, uint32_t b) { return a ^ b; });
  t->add("activemask.b32", active_mask, "r=", Counter::kVote);
  t->add("elect.sync", {elect, "ro=r", Counter::kVote, kMayPreempt});
  t->add("bar.warp.sync", {warp_barrier, "=r", Counter::kWarpSync, kMayPreempt});
}

}  // namespace flashdelta::emulator
