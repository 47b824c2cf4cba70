#include "emulator/opcodes.hpp"

#include <algorithm>
#include <array>

namespace flashdelta::emulator {
namespace {

std::vector<std::string_view> split_dots(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view p) { return text.substr(0, p.size()) == p; });
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Memory order and scope change nothing where every access is sequentially consistent; cache hints never do.
bool is_memory_modifier(std::string_view part) {
  return is_one_of(part, {"ca", "cg",   "cs",       "lu",      "cv",      "wb",      "wt",
                          "nc", "weak", "volatile", "relaxed", "acquire", "release", "acq_rel",
                          "sc", "cta",  "cluster",  "gpu",     "sys",     "mmio",    "unified"}) ||
         starts_with_any(part, {"L1::", "L2::", "level::"});
}

}  // namespace

std::string canonical_opcode(std::string_view opcode) {
  const std::vector<std::string_view> parts = split_dots(opcode);
  const std::string_view family = parts[0];
  const bool memory = is_one_of(family, {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier", "prefetch", "prefetchu"});
  std::string name(family == "barrier" ? "bar" : family);
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part == "uni" && is_one_of(family, {"bra", "ret", "exit", "brx"})) continue;
    if (part == "aligned" || (part == "cta" && is_one_of(family, {"bar", "barrier"}))) continue;
    // cp.async.ca and .cg differ in the sizes they take, nothing else; in st.global.cg the hint goes.
    if (memory && is_memory_modifier(part)) continue;
    if (part == "shared::cta" || part == "shared::cluster") part = "shared";
    if (part == "param::entry" || part == "param::func") part = "param";
    name += '.';
    name += part;
  }
  return name;
}

void OpcodeTable::add(std::string_view name, const OpcodeRow& row) {
  const size_t open = name.find('{');
  if (open == std::string_view::npos) {
    rows_[std::string(name)] = row;
    return;
  }
  const size_t close = name.find('}', open);
  std::string_view list = name.substr(open + 1, close - open - 1);
  while (true) {
    const size_t comma = list.find(',');
    std::string one(name.substr(0, open));
    one += list.substr(0, comma);
    one += name.substr(close + 1);
    add(one, row);
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

void OpcodeTable::add(std::string_view name, Handler run, const char* operands, Counter counter) {
  add(name, OpcodeRow{run, operands, counter});
}

const OpcodeRow* OpcodeTable::find(const std::string& canonical_name) const {
  auto row = rows_.find(canonical_name);
  return row == rows_.end() ? nullptr : &row->second;
}

const OpcodeTable& opcode_table() {
  static const OpcodeTable table = [] {
    OpcodeTable t;
    add_convert_opcodes(&t);  // general conversions first: where a later file has a faster form, the later row stands
    add_integer_opcodes(&t);
    add_float_opcodes(&t);
    add_rare_float_opcodes(&t);
    add_half_opcodes(&t);
    add_memory_opcodes(&t);
    add_copy_opcodes(&t);
    add_matrix_opcodes(&t);
    add_warp_opcodes(&t);
    add_control_opcodes(&t);
    return t;
  }();
  return table;
}

}  // namespace flashdelta::emulator
