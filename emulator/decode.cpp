// Statements to instructions: names become virtual registers, symbols become constants, opcodes become rows' handlers.
#include <algorithm>
#include <cstring>

#include "emulator/opcodes.hpp"
#include "emulator/program.hpp"

namespace flashdelta::emulator {
namespace {

constexpr uint32_t align_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

struct RegisterName {
  bool predicate = false;
  uint32_t id = 0;
};

const std::map<std::string, Special, std::less<>>& special_names() {
  static const std::map<std::string, Special, std::less<>> names{{"%tid.x", Special::kTidX},
                                                                 {"%tid.y", Special::kTidY},
                                                                 {"%tid.z", Special::kTidZ},
                                                                 {"%ntid.x", Special::kNtidX},
                                                                 {"%ntid.y", Special::kNtidY},
                                                                 {"%ntid.z", Special::kNtidZ},
                                                                 {"%ctaid.x", Special::kCtaidX},
                                                                 {"%ctaid.y", Special::kCtaidY},
                                                                 {"%ctaid.z", Special::kCtaidZ},
                                                                 {"%nctaid.x", Special::kNctaidX},
                                                                 {"%nctaid.y", Special::kNctaidY},
                                                                 {"%nctaid.z", Special::kNctaidZ},
                                                                 {"%laneid", Special::kLaneId},
                                                                 {"%warpid", Special::kWarpId},
                                                                 {"%nwarpid", Special::kNwarpId},
                                                                 {"%smid", Special::kSmId},
                                                                 {"%nsmid", Special::kNsmId},
                                                                 {"%gridid", Special::kGridId},
                                                                 {"%lanemask_eq", Special::kLaneMaskEq},
                                                                 {"%lanemask_le", Special::kLaneMaskLe},
                                                                 {"%lanemask_lt", Special::kLaneMaskLt},
                                                                 {"%lanemask_ge", Special::kLaneMaskGe},
                                                                 {"%lanemask_gt", Special::kLaneMaskGt},
                                                                 {"%dynamic_smem_size", Special::kDynamicShared},
                                                                 {"%total_smem_size", Special::kTotalShared},
                                                                 {"%cluster_ctaid.x", Special::kZero},
                                                                 {"%cluster_ctarank", Special::kZero},
                                                                 {"%cluster_nctaid.x", Special::kOne},
                                                                 {"%cluster_nctarank", Special::kOne},
                                                                 {"%clock_hi", Special::kZero}};
  return names;
}

class KernelDecoder {
 public:
  KernelDecoder(const ParsedModule& module, const ParsedKernel& parsed, const Program& program, Kernel* kernel)
      : module_(module), parsed_(parsed), program_(program), kernel_(kernel) {}

  Status run() {
    kernel_->info.name = parsed_.name;
    lay_out_parameters();
    lay_out_variables();
    apply_directives();
    declare_registers();
    for (const Statement& statement : parsed_.statements) {
      if (Status status = decode(statement); !status.ok()) return status;
    }
    append_return();
    find_reconvergence(kernel_);
    allocate_slots(registers_, kernel_);
    return {};
  }

 private:
  void lay_out_parameters() {
    uint32_t offset = 0;
    for (const Parameter& p : parsed_.parameters) {
      offset = align_up(offset, p.align);
      kernel_->info.parameters.push_back({offset, p.bytes});
      symbols_[p.name] = offset;
      offset += p.bytes;
    }
    kernel_->info.parameter_bytes = offset;
  }

  void lay_out_variables() {
    for (const auto& [name, variable] : program_.variables) {
      symbols_[name] = reinterpret_cast<uint64_t>(variable.storage.get());
    }
    uint32_t shared = 0, local = 0, dynamic_align = 16;
    auto place = [&](const Variable& v) {
      uint32_t& offset = v.space == "local" ? local : shared;
      if (v.bytes == 0 || v.is_extern) {
        dynamic_align = std::max(dynamic_align, v.align);
        return;
      }
      offset = align_up(offset, v.align);
      symbols_[v.name] = offset;
      offset += static_cast<uint32_t>(v.bytes);
    };
    // A module's static arrays belong to the kernels that name them.
    for (const Variable& v : module_.variables) {
      if (v.space == "shared" && (v.bytes == 0 || v.is_extern || is_named(v.name))) place(v);
    }
    for (const Variable& v : parsed_.variables) place(v);
    kernel_->dynamic_shared_offset = align_up(shared, dynamic_align);
    for (const Variable& v : module_.variables) {
      if (v.space == "shared" && (v.bytes == 0 || v.is_extern)) symbols_[v.name] = kernel_->dynamic_shared_offset;
    }
    kernel_->info.static_shared_bytes = shared;
    kernel_->info.local_bytes = local;
  }

  bool is_named(const std::string& name) const {
    for (const Statement& s : parsed_.statements) {
      for (const std::string& operand : s.operands) {
        if (operand.find(name) != std::string::npos) return true;
      }
    }
    return false;
  }

  void apply_directives() {
    for (const auto& [name, values] : parsed_.directives) {
      if (name == ".reqntid") kernel_->info.required_block = values;
      if (name == ".reqntid" || name == ".maxntid") kernel_->info.max_threads = values[0] * values[1] * values[2];
    }
  }

  void declare_registers() {
    names_.resize(parsed_.scopes.size());
    for (size_t i = 0; i < parsed_.scopes.size(); ++i) {
      for (const RegisterDeclaration& r : parsed_.scopes[i].registers) {
        for (int k = 0; k < std::max(r.count, 1); ++k) {
          const std::string name = r.count < 0 ? r.name : r.name + std::to_string(k);
          if (r.type == "pred") {
            names_[i][name] = {true, kernel_->predicates++};
          } else {
            names_[i][name] = {false, add_register(r.type.find("64") != std::string::npos, false)};
            if (r.type.find("128") != std::string::npos) unsupported_register_ = name;
          }
        }
      }
    }
  }

  uint32_t add_register(bool wide, bool pinned) {
    registers_.push_back({wide, pinned});
    return static_cast<uint32_t>(registers_.size()) - 1;
  }

  const RegisterName* find_register(std::string_view name, int scope) const {
    for (; scope >= 0; scope = parsed_.scopes[scope].parent) {
      auto it = names_[scope].find(name);
      if (it != names_[scope].end()) return &it->second;
    }
    return nullptr;
  }

  const int* find_label(std::string_view name, int scope) const {
    for (; scope >= 0; scope = parsed_.scopes[scope].parent) {
      auto it = parsed_.scopes[scope].labels.find(name);
      if (it != parsed_.scopes[scope].labels.end()) return &it->second;
    }
    return nullptr;
  }

  Status refuse(const Statement& s, std::string_view what) const {
    std::string text = s.opcode;
    for (size_t i = 0; i < s.operands.size(); ++i) text += (i == 0 ? " " : ", ") + s.operands[i];
    return not_supported(
        fmt::format("PTX line {}: the emulator does not know {}: {} (kernel {})", s.line, what, text, parsed_.name));
  }

  Status decode(const Statement& s) {
    const std::string name = specialise(canonical_opcode(s.opcode), s);
    const OpcodeRow* row = opcode_table().find(name);
    if (row == nullptr) return refuse(s, "the opcode " + s.opcode);
    Instruction i;
    i.run = row->run;
    i.counter = row->counter;
    i.flags = row->flags;
    i.bytes = row->bytes;
    i.vector = row->vector;
    i.detail = row->detail;
    i.line = s.line;
    i.location = s.location;
    if (!s.guard.empty()) {
      const RegisterName* guard = find_register(s.guard, s.scope);
      if (guard == nullptr || !guard->predicate) return refuse(s, "the predicate " + s.guard);
      i.guard = static_cast<int32_t>(guard->id);
      i.guard_negated = s.guard_negated;
    }
    const std::vector<std::string> operands = flatten(s.operands);
    std::string_view forms = row->operands;
    std::string problem = "this form";
    while (true) {
      const size_t end = forms.find(';');
      if (decode_form(s, forms.substr(0, end), operands, &i, &problem)) break;
      if (end == std::string_view::npos) return refuse(s, problem);
      forms.remove_prefix(end + 1);
    }
    note_granules(name, *row);
    kernel_->has_bulk_copies = kernel_->has_bulk_copies || row->counter == Counter::kBulkCopies;
    kernel_->code.push_back(i);
    return {};
  }

  // One name, several instructions: the operands tell them apart.
  static std::string specialise(std::string name, const Statement& s) {
    if (s.operands.size() < 2) return name;
    const std::string& to = s.operands[0];
    const std::string& from = s.operands[1];
    if (name.compare(0, 4, "mov.") == 0) {
      if (from == "%clock" || from == "%clock64") return "mov.clock";
      const std::string& list = to[0] == '{' ? to : from;
      if (list[0] != '{') return name;
      const auto parts = std::count(list.begin(), list.end(), ',') + 1;
      return name + (to[0] == '{' ? ".unpack" : ".pack") + (parts == 4 ? "4" : "");
    }
    const bool extreme = name.compare(0, 4, "min.") == 0 || name.compare(0, 4, "max.") == 0;
    return extreme && s.operands.size() == 4 ? name + ".3" : name;
  }

  // "{%r1,%r2}" to two operands, "%r1|%p1" to "%r1" and "|%p1", "[%rd1,{%r1,%r2}]" to "[%rd1]", "%r1" and "%r2".
  static std::vector<std::string> flatten(const std::vector<std::string>& operands) {
    std::vector<std::string> flat;
    for (std::string operand : operands) {
      if (const size_t list = operand.find(",{"); operand[0] == '[' && list != std::string::npos) {
        flat.push_back(operand.substr(0, list) + "]");
        operand = operand.substr(list + 1, operand.size() - list - 2);
      }
      std::string part;
      for (char c : operand[0] == '{' ? operand.substr(1, operand.size() - 2) : operand) {
        if (c == ',' && operand[0] == '{') {
          flat.push_back(std::move(part));
          part.clear();
          continue;
        }
        if (c == '|') {
          flat.push_back(std::move(part));
          part.clear();
        }
        part += c;
      }
      flat.push_back(std::move(part));
    }
    return flat;
  }

  bool decode_form(const Statement& s, std::string_view form, const std::vector<std::string>& operands, Instruction* i,
                   std::string* problem) {
    const uint16_t flags = i->flags;
    size_t taken = 0;
    i->operands = 0;
    uint32_t addresses = 0;
    for (char kind : form) {
      if (kind == '=') {
        i->destinations = i->operands;
        continue;
      }
      const bool has_bar = taken < operands.size() && operands[taken][0] == '|';
      uint32_t value = 0;
      if (kind == 'o') {
        i->kind[i->operands] = has_bar ? 'p' : 'o';
        if (has_bar) {
          i->flags |= kHasPredicate;
          if (!decode_operand(s, 'p', operands[taken++].substr(1), i, addresses, &value)) return false;
        }
      } else {
        if (taken >= operands.size() || has_bar || i->operands == kMaxOperands) {
          i->flags = flags;
          return false;
        }
        i->kind[i->operands] = kind;
        if (!decode_operand(s, kind, operands[taken++], i, addresses, &value)) {
          *problem = "the operand " + operands[taken - 1];
          i->flags = flags;
          return false;
        }
        if (kind == 'm') ++addresses;
      }
      i->operand[i->operands++] = value;
    }
    if (taken != operands.size()) i->flags = flags;
    return taken == operands.size();
  }

  bool decode_operand(const Statement& s, char kind, std::string_view text, Instruction* i, uint32_t addresses,
                      uint32_t* value) {
    switch (kind) {
      case 'p': return decode_predicate(s, text, value);
      case 'm': return decode_address(s, text, i, addresses, value);
      case 'l': {
        uint64_t bits = 0;
        if (!parse_number(text, 'r', &bits)) return false;
        *value = static_cast<uint32_t>(bits);
        return true;
      }
      case 't': {
        const int* label = find_label(text, s.scope);
        if (label != nullptr) i->target = static_cast<uint32_t>(*label);
        return label != nullptr;
      }
      case 'b': return decode_branch_table(s, text, i);
      case 'a': {
        const RegisterName* r = find_register(text, s.scope);
        if (r != nullptr && r->predicate) return false;
        if (r != nullptr && registers_[r->id].wide) {
          i->flags |= kWide;
          kind = 'q';
        }
        // An immediate or a sink has the width of the access.
        if (r == nullptr && i->bytes == 8) i->flags |= kWide;
        return decode_value(s, (i->flags & kWide) ? 'q' : kind, text, value);
      }
      default: return decode_value(s, kind, text, value);
    }
  }

  bool decode_predicate(const Statement& s, std::string_view text, uint32_t* value) {
    if (text == "_") {
      *value = kernel_->predicates++;
      return true;
    }
    if (uint64_t bits = 0; parse_number(text, 'r', &bits)) {  // mov.pred p, -1
      *value = kernel_->predicates++;
      kernel_->constant_predicates.push_back({*value, bits != 0});
      return true;
    }
    const bool negated = text[0] == '!';
    const RegisterName* r = find_register(negated ? text.substr(1) : text, s.scope);
    if (r == nullptr || !r->predicate) return false;
    *value = r->id | (negated ? 0x80000000u : 0);
    return true;
  }

  bool decode_value(const Statement& s, char kind, std::string_view text, uint32_t* value) {
    const bool wide = kind == 'q' || kind == 'd';
    if (text == "_") {
      *value = add_register(wide, false);
      return true;
    }
    if (const RegisterName* r = find_register(text, s.scope)) {
      *value = r->id;
      return !r->predicate && registers_[r->id].wide == wide && unsupported_register_ != text;
    }
    if (auto special = special_names().find(text); special != special_names().end()) {
      *value = special_register(special->second, wide);
      return true;
    }
    uint64_t bits = 0;
    if (auto symbol = find_symbol(text)) {
      bits = *symbol;
    } else if (!parse_number(text, kind, &bits)) {
      return false;
    }
    *value = constant(bits, wide);
    return true;
  }

  const uint64_t* find_symbol(std::string_view text) const {
    auto symbol = symbols_.find(text);
    return symbol == symbols_.end() ? nullptr : &symbol->second;
  }

  static bool parse_number(std::string_view text, char kind, uint64_t* bits) {
    if (text == "WARP_SZ") {
      *bits = 32;
      return true;
    }
    const bool negative = text[0] == '-';
    std::string digits(negative ? text.substr(1) : text);
    if (digits.empty() || !std::isdigit(static_cast<unsigned char>(digits[0]))) return false;
    const std::string prefix = digits.substr(0, 2);
    char* end = nullptr;
    if (prefix == "0f" || prefix == "0F" || prefix == "0d" || prefix == "0D") {
      *bits = std::strtoull(digits.c_str() + 2, &end, 16);
    } else if (digits.find('.') != std::string::npos) {
      const double x = std::strtod(digits.c_str(), &end);
      if (kind == 'd') {
        std::memcpy(bits, &x, 8);
      } else {
        *bits = std::bit_cast<uint32_t>(static_cast<float>(x));
      }
    } else {
      *bits = std::strtoull(digits.c_str(), &end, 0);
      if (negative) *bits = ~*bits + 1;
    }
    if (*end == 'U') ++end;
    if (kind == 'h') *bits &= 0xffff;
    return *end == '\0';
  }

  uint32_t constant(uint64_t bits, bool wide) {
    if (!wide) bits &= 0xffffffffu;
    auto [it, is_new] = constants_.try_emplace({bits, wide}, 0);
    if (is_new) {
      it->second = add_register(wide, true);
      kernel_->constants.push_back({it->second, wide, bits});
    }
    return it->second;
  }

  uint32_t special_register(Special special, bool wide) {
    auto [it, is_new] = specials_.try_emplace({special, wide}, 0);
    if (is_new) {
      it->second = add_register(wide, true);
      kernel_->specials.push_back({it->second, wide, special});
    }
    return it->second;
  }

  // [register], [register+offset], [symbol+offset], [number]
  bool decode_address(const Statement& s, std::string_view text, Instruction* i, uint32_t which, uint32_t* value) {
    if (text.size() < 3 || text[0] != '[' || text.back() != ']') return false;
    text = text.substr(1, text.size() - 2);
    const size_t plus = text.find('+');
    uint64_t offset = 0;
    if (plus != std::string_view::npos && !parse_number(text.substr(plus + 1), 'q', &offset)) return false;
    const std::string_view base = text.substr(0, plus);
    const RegisterName* r = find_register(base, s.scope);
    if (r != nullptr && r->predicate) return false;
    const bool wide = r == nullptr || registers_[r->id].wide;
    if (wide) i->flags |= static_cast<uint16_t>(kAddress64 << which);
    i->offset[which] = static_cast<int64_t>(offset);
    return decode_value(s, wide ? 'q' : 'r', base, value);
  }

  bool decode_branch_table(const Statement& s, std::string_view text, Instruction* i) {
    for (int scope = s.scope; scope >= 0; scope = parsed_.scopes[scope].parent) {
      auto it = parsed_.scopes[scope].branch_targets.find(text);
      if (it == parsed_.scopes[scope].branch_targets.end()) continue;
      std::vector<uint32_t> targets;
      for (const std::string& name : it->second) {
        const int* label = find_label(name, s.scope);
        if (label == nullptr) return false;
        targets.push_back(static_cast<uint32_t>(*label));
      }
      i->detail = static_cast<int32_t>(kernel_->branch_tables.size());
      kernel_->branch_tables.push_back(std::move(targets));
      return true;
    }
    return false;
  }

  // The detectors' shadows are as fine as the kernel's smallest access, and no finer.
  void note_granules(const std::string& name, const OpcodeRow& row) {
    if (row.bytes == 0 || row.bytes >= 4 || row.vector * row.bytes >= 4) return;
    const bool generic = name.find(".shared") == std::string::npos && name.find(".global") == std::string::npos &&
                         name.find(".param") == std::string::npos && name.find(".local") == std::string::npos;
    if (generic || name.find(".shared") != std::string::npos) {
      kernel_->granule = std::min<uint32_t>(kernel_->granule, row.bytes);
    }
    if (generic || name.find(".global") != std::string::npos) {
      kernel_->global_granule = std::min<uint32_t>(kernel_->global_granule, row.bytes);
    }
  }

  void append_return() {
    Instruction i;
    const OpcodeRow* row = opcode_table().find("ret");
    i.run = row->run;
    i.counter = row->counter;
    i.flags = row->flags;
    kernel_->code.push_back(i);
  }

  const ParsedModule& module_;
  const ParsedKernel& parsed_;
  const Program& program_;
  Kernel* kernel_;
  std::vector<VirtualRegister> registers_;
  std::vector<std::map<std::string, RegisterName, std::less<>>> names_;
  std::map<std::string, uint64_t, std::less<>> symbols_;
  std::map<std::pair<uint64_t, bool>, uint32_t> constants_;
  std::map<std::pair<Special, bool>, uint32_t> specials_;
  std::string unsupported_register_;
};

}  // namespace

std::vector<SourceLine> Program::source(int32_t location) const {
  std::vector<SourceLine> lines;
  while (location >= 0) {
    const Location& l = locations[static_cast<size_t>(location)];
    auto file = files.find(l.file);
    lines.push_back({file == files.end() ? std::string() : file->second, l.line});
    location = l.parent;
  }
  return lines;
}

Status decode_module(const ParsedModule& parsed, Program* program) {
  program->locations = parsed.locations;
  program->files = parsed.files;
  for (const Variable& v : parsed.variables) {
    if (v.space == "shared") continue;
    Program::ModuleVariable& variable = program->variables[v.name];
    variable.bytes = v.bytes;
    variable.storage = std::make_unique<uint64_t[]>((v.bytes + 7) / 8 + 1);
    std::copy(v.initial.begin(), v.initial.end(), reinterpret_cast<uint8_t*>(variable.storage.get()));
    program->variable_memory.add(variable.storage.get(), v.bytes, v.name, {.writable = v.space != "const"});
  }
  for (const ParsedKernel& kernel : parsed.kernels) {
    program->kernels.emplace_back();
    if (Status status = KernelDecoder(parsed, kernel, *program, &program->kernels.back()).run(); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace flashdelta::emulator
