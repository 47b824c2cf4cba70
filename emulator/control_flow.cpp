// Two passes over a kernel's decoded code: where diverged lanes meet again, and which registers share a slot.
#include <algorithm>
#include <set>

#include "emulator/program.hpp"

namespace flashdelta::emulator {
namespace {

struct Blocks {
  std::vector<uint32_t> first;                    // instruction; one more at the end
  std::vector<std::vector<uint32_t>> successors;  // block indices; the exit is block count()
  std::vector<uint32_t> of_instruction;

  uint32_t count() const { return static_cast<uint32_t>(first.size()) - 1; }
};

bool is_return(const Instruction& i) { return (i.flags & kIsBranch) != 0 && i.operands == 0; }
bool is_table_branch(const Instruction& i) { return i.operands > 0 && i.kind[i.operands - 1] == 'b'; }

std::vector<uint32_t> branch_targets(const Kernel& kernel, const Instruction& i) {
  if (is_table_branch(i)) return kernel.branch_tables[static_cast<size_t>(i.detail)];
  return {i.target};
}

Blocks split_into_blocks(const Kernel& kernel) {
  const auto size = static_cast<uint32_t>(kernel.code.size());
  std::set<uint32_t> starts{0, size};
  for (uint32_t pc = 0; pc < size; ++pc) {
    const Instruction& i = kernel.code[pc];
    if ((i.flags & kIsBranch) == 0) continue;
    starts.insert(pc + 1);
    if (is_return(i)) continue;
    for (uint32_t target : branch_targets(kernel, i)) starts.insert(target);
  }
  Blocks blocks;
  blocks.first.assign(starts.begin(), starts.end());
  blocks.of_instruction.resize(size);
  for (uint32_t b = 0; b < blocks.count(); ++b) {
    std::fill(blocks.of_instruction.begin() + blocks.first[b], blocks.of_instruction.begin() + blocks.first[b + 1], b);
  }
  for (uint32_t b = 0; b < blocks.count(); ++b) {
    const Instruction& last = kernel.code[blocks.first[b + 1] - 1];
    std::vector<uint32_t> next;
    const bool branches = (last.flags & kIsBranch) != 0;
    if (branches && !is_return(last)) {
      for (uint32_t target : branch_targets(kernel, last)) next.push_back(blocks.of_instruction[target]);
    }
    const bool falls_through = !branches || last.guard >= 0;
    if (branches && is_return(last) && last.guard < 0) {
      next.push_back(blocks.count());
    } else if (falls_through) {
      // Lanes that leave at a guarded return meet nobody again, so only the rest counts.
      next.push_back(b + 1);
    }
    blocks.successors.push_back(std::move(next));
  }
  return blocks;
}

// Immediate post-dominators (Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm", on the reversed graph).
class PostDominators {
 public:
  explicit PostDominators(const Blocks& blocks) : blocks_(blocks), exit_(blocks.count()) {
    order_by_depth_first_search();
    immediate_.assign(exit_ + 1, kNone);
    immediate_[exit_] = exit_;
    bool changed = true;
    while (changed) {
      changed = false;
      for (uint32_t b : reverse_postorder_) changed = update(b) || changed;
    }
  }
  // The exit where a block leads nowhere else (an endless loop).
  uint32_t of(uint32_t block) const { return immediate_[block] == kNone ? exit_ : immediate_[block]; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void order_by_depth_first_search() {
    std::vector<std::vector<uint32_t>> predecessors(exit_ + 1);
    for (uint32_t b = 0; b < exit_; ++b) {
      for (uint32_t s : blocks_.successors[b]) predecessors[s].push_back(b);
    }
    rank_.assign(exit_ + 1, kNone);
    std::vector<bool> seen(exit_ + 1, false);
    std::vector<std::pair<uint32_t, size_t>> stack{{exit_, 0}};
    seen[exit_] = true;
    uint32_t rank = 0;
    std::vector<uint32_t> postorder;
    while (!stack.empty()) {
      auto& [block, next] = stack.back();
      if (next < predecessors[block].size()) {
        const uint32_t p = predecessors[block][next++];
        if (!seen[p]) {
          seen[p] = true;
          stack.emplace_back(p, 0);
        }
      } else {
        rank_[block] = rank++;
        postorder.push_back(block);
        stack.pop_back();
      }
    }
    postorder.pop_back();  // the exit
    reverse_postorder_.assign(postorder.rbegin(), postorder.rend());
  }

  bool update(uint32_t block) {
    uint32_t found = kNone;
    for (uint32_t s : blocks_.successors[block]) {
      if (immediate_[s] == kNone) continue;
      found = found == kNone ? s : common(found, s);
    }
    if (found == kNone || immediate_[block] == found) return false;
    immediate_[block] = found;
    return true;
  }

  uint32_t common(uint32_t a, uint32_t b) const {
    while (a != b) {
      while (rank_[a] < rank_[b]) a = immediate_[a];
      while (rank_[b] < rank_[a]) b = immediate_[b];
    }
    return a;
  }

  const Blocks& blocks_;
  uint32_t exit_;
  std::vector<uint32_t> rank_, reverse_postorder_, immediate_;
};

bool is_slot(char kind) { return std::string_view("rqhfdam").find(kind) != std::string_view::npos; }

// First and last instruction at which a register's value matters.
struct Interval {
  uint32_t first = UINT32_MAX;
  uint32_t last = 0;
  void cover(uint32_t pc) {
    first = std::min(first, pc);
    last = std::max(last, pc);
  }
};

using Bits = std::vector<uint64_t>;

class Liveness {
 public:
  Liveness(const Kernel& kernel, const Blocks& blocks, size_t registers)
      : kernel_(kernel), blocks_(blocks), words_((registers + 63) / 64), intervals_(registers) {
    const size_t count = blocks.count();
    uses_.assign(count, Bits(words_));
    definitions_.assign(count, Bits(words_));
    live_in_.assign(count + 1, Bits(words_));
    for (uint32_t b = 0; b < count; ++b) summarise(b);
    bool changed = true;
    while (changed) {
      changed = false;
      for (uint32_t b = static_cast<uint32_t>(count); b-- > 0;) changed = flow(b) || changed;
    }
    for (uint32_t b = 0; b < count; ++b) cover_block(b);
  }

  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  static bool get(const Bits& bits, uint32_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
  static void set(Bits& bits, uint32_t i) { bits[i / 64] |= uint64_t{1} << (i % 64); }

  void summarise(uint32_t b) {
    for (uint32_t pc = blocks_.first[b]; pc < blocks_.first[b + 1]; ++pc) {
      const Instruction& i = kernel_.code[pc];
      for (uint32_t k = 0; k < i.operands; ++k) {
        if (!is_slot(i.kind[k])) continue;
        intervals_[i.operand[k]].cover(pc);
        const bool destination = k < i.destinations;
        // A guarded write leaves the old value in the other lanes, so it is a use as well.
        if ((!destination || i.guard >= 0) && !get(definitions_[b], i.operand[k])) set(uses_[b], i.operand[k]);
      }
      for (uint32_t k = 0; k < i.destinations; ++k) {
        if (is_slot(i.kind[k]) && i.guard < 0) set(definitions_[b], i.operand[k]);
      }
    }
  }

  Bits live_out(uint32_t b) const {
    Bits out(words_);
    for (uint32_t s : blocks_.successors[b]) {
      for (size_t w = 0; w < words_; ++w) out[w] |= live_in_[s][w];
    }
    return out;
  }

  bool flow(uint32_t b) {
    const Bits out = live_out(b);
    bool changed = false;
    for (size_t w = 0; w < words_; ++w) {
      const uint64_t in = uses_[b][w] | (out[w] & ~definitions_[b][w]);
      changed = changed || in != live_in_[b][w];
      live_in_[b][w] = in;
    }
    return changed;
  }

  void cover_block(uint32_t b) {
    const Bits out = live_out(b);
    for (uint32_t r = 0; r < intervals_.size(); ++r) {
      if (get(live_in_[b], r)) intervals_[r].cover(blocks_.first[b]);
      if (get(out, r)) intervals_[r].cover(blocks_.first[b + 1] - 1);
    }
  }

  const Kernel& kernel_;
  const Blocks& blocks_;
  size_t words_;
  std::vector<Interval> intervals_;
  std::vector<Bits> uses_, definitions_, live_in_;
};

// Linear scan; registers of 64 bits take pairs of slots from a list of their own.
std::vector<uint32_t> assign_slots(const std::vector<VirtualRegister>& registers,
                                   const std::vector<Interval>& intervals, uint32_t* slots) {
  std::vector<uint32_t> order, slot_of(registers.size(), 0);
  for (uint32_t r = 0; r < registers.size(); ++r) {
    if (registers[r].pinned) {
      slot_of[r] = *slots;
      *slots += 2;
    } else if (intervals[r].first != UINT32_MAX) {
      order.push_back(r);
    }
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(intervals[a].first, a) < std::pair(intervals[b].first, b);
  });
  std::set<std::pair<uint32_t, uint32_t>> active;  // (last use, register)
  std::vector<uint32_t> free_slots[2];
  for (uint32_t r : order) {
    while (!active.empty() && active.begin()->first < intervals[r].first) {
      const uint32_t ended = active.begin()->second;
      free_slots[registers[ended].wide].push_back(slot_of[ended]);
      active.erase(active.begin());
    }
    std::vector<uint32_t>& free = free_slots[registers[r].wide];
    if (free.empty()) {
      slot_of[r] = *slots;
      *slots += registers[r].wide ? 2 : 1;
    } else {
      slot_of[r] = free.back();
      free.pop_back();
    }
    active.emplace(intervals[r].last, r);
  }
  return slot_of;
}

}  // namespace

void find_reconvergence(Kernel* kernel) {
  const Blocks blocks = split_into_blocks(*kernel);
  const PostDominators post_dominators(blocks);
  for (uint32_t pc = 0; pc < kernel->code.size(); ++pc) {
    Instruction& i = kernel->code[pc];
    if ((i.flags & kIsBranch) == 0 || is_return(i)) continue;
    i.reconverge = blocks.first[post_dominators.of(blocks.of_instruction[pc])];
  }
}

void allocate_slots(const std::vector<VirtualRegister>& registers, Kernel* kernel) {
  const Blocks blocks = split_into_blocks(*kernel);
  const Liveness liveness(*kernel, blocks, registers.size());
  const std::vector<uint32_t> slot_of = assign_slots(registers, liveness.intervals(), &kernel->slots);
  for (Instruction& i : kernel->code) {
    for (uint32_t k = 0; k < i.operands; ++k) {
      if (is_slot(i.kind[k])) i.operand[k] = slot_of[i.operand[k]];
    }
  }
  for (ConstantSlot& c : kernel->constants) c.slot = slot_of[c.slot];
  for (SpecialSlot& s : kernel->specials) s.slot = slot_of[s.slot];
}

}  // namespace flashdelta::emulator
