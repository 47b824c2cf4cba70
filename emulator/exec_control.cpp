// Branches, barriers and what only orders memory.
#include <fmt/core.h>

#include <bit>

#include "emulator/block.hpp"
#include "emulator/opcodes.hpp"

namespace flashdelta::emulator {
namespace {

void branch(Warp& w, const Instruction& i) { w.block->diverge(w, w.mask, i.target); }

// Lanes go their ways one after the other, and meet behind the switch.
void branch_table(Warp& w, const Instruction& i) {
  const std::vector<uint32_t>& targets = w.kernel->branch_tables[static_cast<size_t>(i.detail)];
  const uint32_t* index = w.lanes<uint32_t>(i.operand[0]);
  if (const uint32_t bad = w.poison[i.operand[0]] & w.mask; bad != 0) {
    w.block->report_undefined(w, bad, w.origin[i.operand[0]], "a branch depends on");
  }
  uint32_t left = w.mask;
  const uint32_t first = index[std::countr_zero(left)];
  std::vector<std::pair<uint32_t, uint32_t>> groups;  // target, lanes
  while (left != 0) {
    const uint32_t pick = index[std::countr_zero(left)];
    if (pick >= targets.size()) {
      (void)w.block->fatal(w, std::countr_zero(left), FindingKind::kTrap,
                           fmt::format("brx.idx: index {} of {} targets", pick, targets.size()));
      return;
    }
    uint32_t lanes = 0;
    for (uint32_t l = 0; l < 32; ++l) {
      if ((left >> l & 1) != 0 && index[l] == pick) lanes |= 1u << l;
    }
    groups.emplace_back(targets[pick], lanes);
    left &= ~lanes;
  }
  if (groups.size() == 1 && w.mask == w.active) {
    w.next_pc = targets[first];
    return;
  }
  ++w.block->counters[Counter::kDivergentBranch];
  if (i.reconverge != w.reconverge) w.stack.push_back({i.reconverge, w.active, w.reconverge});
  const uint32_t stay = w.active & ~w.mask;  // a guard was false
  if (stay != 0) w.stack.push_back({w.next_pc, stay, i.reconverge});
  for (size_t k = 1; k < groups.size(); ++k) w.stack.push_back({groups[k].first, groups[k].second, i.reconverge});
  w.active = groups[0].second;
  w.next_pc = groups[0].first;
  w.reconverge = i.reconverge;
}

void leave(Warp& w, const Instruction&) { w.block->leave(w, w.mask); }

void trap(Warp& w, const Instruction&) {
  (void)w.block->fatal(w, std::countr_zero(w.mask), FindingKind::kTrap, "the kernel ran a trap instruction");
}

// Every lane of the warp must be here, and all must mean the same barrier.
bool read_uniform(Warp& w, uint32_t slot, uint32_t* value) {
  const uint32_t* x = w.lanes<uint32_t>(slot);
  *value = x[std::countr_zero(w.mask)];
  for (uint32_t l = 0; l < 32; ++l) {
    if ((w.mask >> l & 1) != 0 && x[l] != *value) {
      (void)w.block->fatal(w, static_cast<int>(l), FindingKind::kBarrierMisuse,
                           "lanes of one warp name different barriers");
      return false;
    }
  }
  if (const uint32_t bad = w.poison[slot] & w.mask; bad != 0) {
    w.block->report_undefined(w, bad, w.origin[slot], "a barrier's operand depends on");
  }
  return true;
}

bool require_converged(Warp& w) {
  if (w.mask == w.alive) return true;
  (void)w.block->fatal(w, -1, FindingKind::kDivergence,
                       fmt::format("a barrier is reached by lanes {:#010x} only; {:#010x} still run", w.mask, w.alive));
  return false;
}

// detail of bar.red: 0 or, 1 and, 2 popc. Operands: [d], barrier[, threads][, predicate].
template <bool kWaits, bool kReduces>
void barrier(Warp& w, const Instruction& i) {
  if (!require_converged(w)) return;
  const uint32_t first = kReduces ? 1 : 0;
  uint32_t id = 0, threads = w.block->warp_count() * 32;
  if (!read_uniform(w, i.operand[first], &id)) return;
  const bool has_count = i.operands > first + (kReduces ? 2u : 1u);
  if (has_count && !read_uniform(w, i.operand[first + 1], &threads)) return;
  const uint32_t votes = kReduces ? w.predicate_bits(i.operand[i.operands - 1]) & w.mask : 0;
  w.block->barrier_arrive(w, id, threads, kWaits, votes);
}

void nothing(Warp&, const Instruction&) {}

void zero64(Warp& w, const Instruction& i) {
  uint64_t* d = w.lanes<uint64_t>(i.operand[0]);
  for (uint32_t l = 0; l < 32; ++l) d[l] = (w.mask >> l & 1) != 0 ? 0 : d[l];
  w.poison[i.operand[0]] &= ~w.mask;
}

// isspacep: by the generic address's window.
template <uint64_t kWindow>
void is_space(Warp& w, const Instruction& i) {
  const uint64_t* a = w.lanes<uint64_t>(i.operand[1]);
  uint32_t bits = 0;
  for (uint32_t l = 0; l < 32; ++l) {
    const uint64_t window = a[l] & kWindowMask;
    const bool other = window == kSharedWindow || window == kLocalWindow || window == kParameterWindow;
    bits |= static_cast<uint32_t>(kWindow == 0 ? !other : window == kWindow) << l;
  }
  w.predicate[i.operand[0]] = (w.predicate[i.operand[0]] & ~w.mask) | (bits & w.mask);
  w.predicate_poison[i.operand[0]] &= ~w.mask;
}

}  // namespace

void add_control_opcodes(OpcodeTable* t) {
  t->add("bra", {branch, "=t", Counter::kBranch, kIsBranch});
  t->add("brx.idx", {branch_table, "=rb", Counter::kBranch, kIsBranch});
  t->add("{ret,exit}", {leave, "=", Counter::kBranch, kIsBranch});
  t->add("{trap,brkpt}", {trap, "=", Counter::kOther});
  t->add("bar.sync", {barrier<true, false>, "=r;=rr", Counter::kBarrier, kMayPreempt});
  t->add("bar.arrive", {barrier<false, false>, "=rr", Counter::kBarrier, kMayPreempt});
  t->add("bar.red.or.pred", {barrier<true, true>, "p=rp;p=rrp", Counter::kBarrier, kMayPreempt, 0, 1, 0});
  t->add("bar.red.and.pred", {barrier<true, true>, "p=rp;p=rrp", Counter::kBarrier, kMayPreempt, 0, 1, 1});
  t->add("bar.red.popc.u32", {barrier<true, true>, "r=rp;r=rrp", Counter::kBarrier, kMayPreempt, 0, 1, 2});
  // Memory is sequentially consistent here, so what orders it does nothing; kernels run one after the other, so what
  // overlaps them does nothing either.
  t->add("membar.{cta,gl,sys}", {nothing, "=", Counter::kOther});
  t->add("fence{,.acq_rel,.sc,.acquire,.release}{.cta,.cluster,.gpu,.sys}", {nothing, "=", Counter::kOther});
  t->add("fence.proxy.{async,alias,async.global,async.shared,async::generic}", {nothing, "=", Counter::kOther});
  t->add("fence.mbarrier_init.release.cluster", nothing, "=", Counter::kOther);
  t->add("griddepcontrol.{wait,launch_dependents}", {nothing, "=", Counter::kOther});
  t->add("setmaxnreg.{inc,dec}.sync.u32", {nothing, "=l", Counter::kOther});
  t->add("nanosleep.u32", {nothing, "=r", Counter::kOther, kMayPreempt});
  t->add("pmevent", nothing, "=l", Counter::kOther);
  t->add("{prefetch,prefetchu}{.global,}{.L1,.L2}", {nothing, "=m", Counter::kOther});
  t->add("createpolicy.fractional.{L2::evict_last,L2::evict_first,L2::evict_normal,L2::evict_unchanged}.b64",
         {zero64, "q=;q=f", Counter::kOther});
  t->add("isspacep.shared", is_space<kSharedWindow>, "p=q", Counter::kPredicate);
  t->add("isspacep.local", is_space<kLocalWindow>, "p=q", Counter::kPredicate);
  t->add("isspacep.param", is_space<kParameterWindow>, "p=q", Counter::kPredicate);
  t->add("isspacep.global", is_space<0>, "p=q", Counter::kPredicate);
}

}  // namespace flashdelta::emulator
