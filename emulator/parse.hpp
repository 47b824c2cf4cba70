// PTX text to statements: names, scopes, labels and source lines are resolved here, opcodes are not looked at.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"

namespace flashdelta::emulator {

// A position of .loc. `parent` is the index of the place it was inlined at, -1: none.
struct Location {
  int file = 0;
  int line = 0;
  int column = 0;
  int parent = -1;
};

struct Statement {
  std::string opcode;  // with all modifiers: "ld.global.v4.f32"
  std::string guard;   // a predicate's name, "" for none
  bool guard_negated = false;
  std::vector<std::string> operands;  // without blanks: "{%r1,%r2}", "[%rd1+16]", "%r3|%p1"
  int line = 0;                       // of the PTX text
  int location = -1;                  // index into ParsedModule::locations
  int scope = 0;                      // where its names are looked up
};

// .reg .b32 %r<7>; is {"b32", "%r", 7}; .reg .pred p; is {"pred", "p", -1}.
struct RegisterDeclaration {
  std::string type;
  std::string name;
  int count = -1;
};

struct Scope {
  int parent = -1;
  std::vector<RegisterDeclaration> registers;
  std::map<std::string, int, std::less<>> labels;                               // to a statement's index
  std::map<std::string, std::vector<std::string>, std::less<>> branch_targets;  // label lists of brx.idx
};

// .shared, .local, .const, .global; size 0: an extern array, whose size the launch gives.
struct Variable {
  std::string space;
  std::string name;
  uint32_t align = 1;
  uint64_t bytes = 0;
  bool is_extern = false;
  std::vector<uint8_t> initial;  // shorter than bytes: the rest is zero
};

struct Parameter {
  std::string name;
  uint32_t align = 1;
  uint32_t bytes = 0;
};

struct ParsedKernel {
  std::string name;
  std::vector<Parameter> parameters;
  std::map<std::string, std::array<uint32_t, 3>, std::less<>> directives;  // ".maxntid" -> {128, 1, 1}
  std::vector<Statement> statements;
  std::vector<Scope> scopes;
  std::vector<Variable> variables;  // .shared and .local of this kernel
};

struct ParsedModule {
  std::vector<ParsedKernel> kernels;
  std::vector<Variable> variables;
  std::vector<Location> locations;
  std::map<int, std::string> files;
};

Status parse_ptx(std::string_view text, ParsedModule* module);

}  // namespace flashdelta::emulator
