// The opcode table. A row is a name, a handler, the operands' kinds and a counter; a new opcode is a row and its
// lambda.
//
// Names may hold alternatives, "add.{u32,s32}". Modifiers that change nothing here (cache hints, .uni, .weak, ..) are
// taken off a statement's opcode before it is looked up; see canonical_opcode in opcodes.cpp.
//
// Operand kinds, one letter each, destinations before '=':
//   r 32 bits   q 64 bits   h 16 bits (in a 32-bit slot)   f fp32   d fp64   p predicate   o optional predicate
//   a integer register of any width   m address [register+offset]   l a number   t label   b label of .branchtargets
// "{%r1,%r2}" counts as two operands, "%r1|%p1" as a value and an optional predicate.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/program.hpp"

namespace flashdelta::emulator {

struct OpcodeRow {
  Handler run = nullptr;
  std::string operands;
  Counter counter = Counter::kOther;
  uint16_t flags = 0;
  uint8_t bytes = 0;
  uint8_t vector = 1;
  int32_t detail = 0;
};

class OpcodeTable {
 public:
  // `name` may hold {a,b} alternatives, also several of them.
  void add(std::string_view name, const OpcodeRow& row);
  void add(std::string_view name, Handler run, const char* operands, Counter counter);
  const OpcodeRow* find(const std::string& canonical_name) const;

 private:
  std::unordered_map<std::string, OpcodeRow> rows_;
};

const OpcodeTable& opcode_table();  // built once, for this machine's vector instructions
std::string canonical_opcode(std::string_view opcode);

// One function an exec_*.cpp file; each adds the rows whose handlers it holds.
void add_integer_opcodes(OpcodeTable* table);
void add_float_opcodes(OpcodeTable* table);
void add_rare_float_opcodes(OpcodeTable* table);
void add_half_opcodes(OpcodeTable* table);
void add_convert_opcodes(OpcodeTable* table);
void add_memory_opcodes(OpcodeTable* table);
void add_copy_opcodes(OpcodeTable* table);
void add_matrix_opcodes(OpcodeTable* table);
void add_warp_opcodes(OpcodeTable* table);
void add_control_opcodes(OpcodeTable* table);

}  // namespace flashdelta::emulator
