// A module ready to run: each kernel is one flat array of decoded instructions whose operands are slots of the warp's
// register file. A slot is 32 lanes of 32 bits; a 64-bit register takes two slots in a row.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/emulator.hpp"
#include "emulator/parse.hpp"

namespace flashdelta::emulator {

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

// Instruction::flags
enum InstructionFlag : uint16_t {
  kMayPreempt = 1,     // another warp may be scheduled before it
  kIsBranch = 2,       // changes the program counter itself
  kAddress64 = 4,      // memory operand 0 has a 64-bit base register; 8 and 16: operands 1 and 2 likewise
  kWide = 32,          // the data register of a load or store has 64 bits, whatever the type
  kHasPredicate = 64,  // the optional predicate destination (setp, shfl, match) is there
};

constexpr int kMaxOperands = 18;

struct Instruction {
  Handler run = nullptr;
  int32_t guard = -1;  // index of a predicate; -1: none
  bool guard_negated = false;
  uint8_t operands = 0;
  uint8_t destinations = 0;
  uint8_t bytes = 0;   // of one element of a memory access
  uint8_t vector = 1;  // elements of a memory access
  Counter counter = Counter::kOther;
  uint16_t flags = 0;
  uint32_t target = 0;      // of a branch
  uint32_t reconverge = 0;  // of a branch: where its lanes meet again
  int32_t location = -1;
  int32_t line = 0;
  int32_t detail = 0;      // what the handler makes of it: a mode, a row of a table
  int64_t offset[3] = {};  // of memory operands, at most three
  uint32_t operand[kMaxOperands] = {};
  char kind[kMaxOperands] = {};  // the letter of the opcode row: p is a predicate, l a number, else a slot
};

enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNwarpId,
  kSmId,
  kNsmId,
  kGridId,
  kLaneMaskEq,
  kLaneMaskLe,
  kLaneMaskLt,
  kLaneMaskGe,
  kLaneMaskGt,
  kDynamicShared,
  kTotalShared,
  kZero,
  kOne,
  kCount
};

// Slots whose value is there before the first instruction.
struct ConstantSlot {
  uint32_t slot = 0;
  bool wide = false;
  uint64_t value = 0;
};
struct SpecialSlot {
  uint32_t slot = 0;
  bool wide = false;
  Special special = Special::kZero;
};

struct ConstantPredicate {
  uint32_t index = 0;
  bool value = false;
};

struct Kernel {
  KernelInfo info;
  std::vector<Instruction> code;
  std::vector<std::vector<uint32_t>> branch_tables;  // brx.idx: targets
  uint32_t slots = 0;
  uint32_t predicates = 0;
  std::vector<ConstantSlot> constants;
  std::vector<SpecialSlot> specials;
  std::vector<ConstantPredicate> constant_predicates;
  uint32_t dynamic_shared_offset = 0;  // static arrays first
  uint32_t granule = 4;                // the smallest shared access, at most 4 bytes
  bool has_bulk_copies = false;
  uint32_t global_granule = 4;  // the smallest global store, at most 4 bytes
};

struct Program {
  std::vector<Kernel> kernels;
  std::vector<Location> locations;
  std::map<int, std::string> files;
  struct ModuleVariable {
    std::unique_ptr<uint64_t[]> storage;  // 16-byte aligned is all that operator new promises, and enough
    size_t bytes = 0;
  };
  std::map<std::string, ModuleVariable, std::less<>> variables;
  Memory variable_memory;  // the same as regions; const ones are read-only

  std::vector<SourceLine> source(int32_t location) const;
};

// Addresses of the generic space: global memory is itself, the other spaces have windows no host pointer falls into.
constexpr uint64_t kSharedWindow = 0x4000'0000'0000'0000;
constexpr uint64_t kLocalWindow = 0x4100'0000'0000'0000;
constexpr uint64_t kParameterWindow = 0x4200'0000'0000'0000;
constexpr uint64_t kWindowMask = 0xff00'0000'0000'0000;

// decode.cpp: statements to instructions over virtual registers, one after the other, then the passes below.
Status decode_module(const ParsedModule& parsed, Program* program);

// A virtual register while a kernel is being decoded. Pinned ones (constants, special registers) keep their slot.
struct VirtualRegister {
  bool wide = false;
  bool pinned = false;
};

// control_flow.cpp: fills in Instruction::reconverge; then maps virtual registers onto few slots by liveness, so that
// a warp's registers stay in the cache. A register that may be read before it is written keeps a slot of its own
// until then, and so stays undefined.
void find_reconvergence(Kernel* kernel);
void allocate_slots(const std::vector<VirtualRegister>& registers, Kernel* kernel);

}  // namespace flashdelta::emulator
