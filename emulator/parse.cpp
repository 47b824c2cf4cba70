#include "emulator/parse.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <tuple>

#include "emulator/tokens.hpp"

namespace flashdelta::emulator {
namespace {

uint64_t type_bytes(std::string_view type) {
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) return 0;
  return std::strtoul(std::string(type.substr(digits)).c_str(), nullptr, 10) / 8;
}

uint64_t number(std::string_view text) { return std::strtoull(std::string(text).c_str(), nullptr, 0); }

class Parser {
 public:
  Parser(std::string_view text, ParsedModule* module) : tokens_(tokenise(text)), module_(module) {}

  Status run() {
    while (!at_end()) {
      if (Status status = top_level(); !status.ok()) return status;
    }
    return {};
  }

 private:
  bool at_end() const { return position_ >= tokens_.size(); }
  const Token& peek(size_t ahead = 0) const {
    static const Token end;
    return position_ + ahead < tokens_.size() ? tokens_[position_ + ahead] : end;
  }
  const Token& next() {
    const Token& token = peek();
    ++position_;
    return token;
  }
  bool accept(std::string_view text) {
    if (at_end() || peek().is_string || peek().text != text) return false;
    ++position_;
    return true;
  }
  Status error(std::string_view what) const {
    return {FLASHDELTA_INVALID_ARGUMENT,
            fmt::format("PTX line {}: {}, got '{}'", peek().line, what, at_end() ? "the end" : peek().text)};
  }
  void skip_line(int line) {
    while (!at_end() && peek().line == line) ++position_;
  }
  void skip_to_semicolon() {
    while (!at_end() && next().text != ";") {
    }
  }
  // Over a balanced {...}; the opening brace is the next token.
  void skip_braces() {
    int depth = 0;
    while (!at_end()) {
      const std::string_view text = next().text;
      if (text == "{") ++depth;
      if (text == "}" && --depth == 0) return;
    }
  }

  Status top_level() {
    const Token& token = peek();
    const std::string_view text = token.text;
    if (text == ".file") {
      file_directive();
    } else if (text == ".section") {
      while (!at_end() && peek().text != "{") ++position_;
      skip_braces();
    } else if (text == ".visible" || text == ".weak" || text == ".extern" || text == ".common") {
      linkage_is_extern_ = linkage_is_extern_ || text == ".extern";
      ++position_;
    } else if (text == ".entry") {
      linkage_is_extern_ = false;
      return entry();
    } else if (text == ".func") {
      linkage_is_extern_ = false;
      skip_function();
    } else if (text == ".shared" || text == ".const" || text == ".global") {
      return variable(&module_->variables);
    } else if (text == ".pragma" || text == ".alias") {
      skip_to_semicolon();
    } else if (!text.empty() && text[0] == '.') {
      skip_line(token.line);  // .version, .target, .address_size
    } else {
      return error("expected a directive");
    }
    return {};
  }

  void file_directive() {
    const int line = next().line;
    const int index = static_cast<int>(number(next().text));
    if (peek().is_string) module_->files[index] = std::string(peek().text);
    skip_line(line);
  }

  // Device functions are not run: a call is refused where it stands.
  void skip_function() {
    while (!at_end() && peek().text != "{" && peek().text != ";") ++position_;
    if (peek().text == "{") {
      skip_braces();
    } else {
      ++position_;
    }
  }

  Status variable(std::vector<Variable>* out) {
    Variable v;
    v.is_extern = linkage_is_extern_;
    linkage_is_extern_ = false;
    v.space = std::string(next().text.substr(1));
    uint64_t element = 0;
    while (peek().is_word && peek().text[0] == '.') {
      const std::string_view word = next().text;
      if (word == ".align") {
        v.align = static_cast<uint32_t>(number(next().text));
      } else if (type_bytes(word) != 0) {
        element = type_bytes(word);
      }
    }
    if (element == 0) return error("expected a variable's type");
    v.align = std::max<uint32_t>(v.align, static_cast<uint32_t>(element));
    v.name = std::string(next().text);
    v.bytes = element;
    while (accept("[")) {
      v.bytes = peek().text == "]" ? 0 : v.bytes * number(next().text);
      if (!accept("]")) return error("expected ']'");
    }
    if (accept("=")) {
      if (Status status = initialiser(element, &v.initial); !status.ok()) return status;
    }
    if (!accept(";")) return error("expected ';' after a variable");
    out->push_back(std::move(v));
    return {};
  }

  Status initialiser(uint64_t element, std::vector<uint8_t>* bytes) {
    const bool list = accept("{");
    do {
      const bool negative = accept("-");
      std::string_view text = next().text;
      if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])))) {
        --position_;
        return error("expected a number (addresses in initialisers are not supported)");
      }
      uint64_t value = text.substr(0, 2) == "0f" || text.substr(0, 2) == "0d" || text.substr(0, 2) == "0F" ||
                               text.substr(0, 2) == "0D"
                           ? std::strtoull(std::string(text.substr(2)).c_str(), nullptr, 16)
                           : number(text);
      if (negative) value = ~value + 1;
      for (uint64_t i = 0; i < element; ++i) bytes->push_back(static_cast<uint8_t>(value >> (8 * i)));
    } while (accept(","));
    if (list && !accept("}")) return error("expected '}'");
    return {};
  }

  Status entry() {
    ++position_;
    ParsedKernel kernel;
    kernel.name = std::string(next().text);
    if (accept("(")) {
      while (!accept(")")) {
        if (at_end()) return error("expected ')'");
        if (Status status = parameter(&kernel); !status.ok()) return status;
        accept(",");
      }
    }
    while (!at_end() && peek().text != "{") {
      std::string name(next().text);
      std::array<uint32_t, 3> values{1, 1, 1};
      for (size_t i = 0; i < 3 && peek().is_word && peek().text[0] != '.'; ++i) {
        values[i] = static_cast<uint32_t>(number(next().text));
        if (!accept(",")) break;
      }
      kernel.directives[name] = values;
    }
    if (Status status = body(&kernel); !status.ok()) return status;
    module_->kernels.push_back(std::move(kernel));
    return {};
  }

  Status parameter(ParsedKernel* kernel) {
    Parameter p;
    while (peek().is_word && peek().text[0] == '.') {
      const std::string_view word = next().text;
      // ".ptr .global .align 16" describes what a pointer points to, not the parameter.
      if (word == ".ptr") {
        while (peek().is_word && peek().text[0] == '.') {
          if (next().text == ".align") ++position_;
        }
        break;
      }
      if (word == ".align") {
        p.align = static_cast<uint32_t>(number(next().text));
      } else if (type_bytes(word) != 0) {
        p.bytes = static_cast<uint32_t>(type_bytes(word));
      }
    }
    if (p.bytes == 0) return error("expected a parameter's type");
    p.align = std::max(p.align, p.bytes);
    p.name = std::string(next().text);
    if (accept("[")) {
      const uint32_t element = p.bytes;
      p.bytes = element * static_cast<uint32_t>(number(next().text));
      if (!accept("]")) return error("expected ']'");
    }
    kernel->parameters.push_back(std::move(p));
    return {};
  }

  Status body(ParsedKernel* kernel) {
    if (!accept("{")) return error("expected '{'");
    kernel->scopes.emplace_back();
    int scope = 0;
    location_ = -1;
    places_.clear();
    while (!at_end()) {
      if (accept("}")) {
        scope = kernel->scopes[scope].parent;
        if (scope < 0) return {};
      } else if (accept("{")) {
        kernel->scopes.push_back({scope, {}, {}, {}});
        scope = static_cast<int>(kernel->scopes.size()) - 1;
      } else if (Status status = body_item(kernel, scope); !status.ok()) {
        return status;
      }
    }
    return error("expected '}'");
  }

  Status body_item(ParsedKernel* kernel, int scope) {
    const std::string_view text = peek().text;
    if (text == ".loc") {
      loc_directive();
    } else if (text == ".file") {
      file_directive();
    } else if (text == ".reg") {
      return registers(&kernel->scopes[scope]);
    } else if (text == ".shared" || text == ".local") {
      return variable(&kernel->variables);
    } else if (text == ".pragma" || text == ".param") {
      skip_to_semicolon();
    } else if (peek(1).text == ":" && peek().is_word) {
      return label(kernel, scope);
    } else {
      return statement(kernel, scope);
    }
    return {};
  }

  Status registers(Scope* scope) {
    ++position_;
    const std::string type(next().text.substr(1));
    do {
      RegisterDeclaration r{type, std::string(next().text), -1};
      if (accept("<")) {
        r.count = static_cast<int>(number(next().text));
        if (!accept(">")) return error("expected '>'");
      }
      scope->registers.push_back(std::move(r));
    } while (accept(","));
    return accept(";") ? Status{} : error("expected ';' after .reg");
  }

  Status label(ParsedKernel* kernel, int scope) {
    std::string name(next().text);
    ++position_;
    if (accept(".branchtargets")) {
      std::vector<std::string> targets;
      do {
        targets.emplace_back(next().text);
      } while (accept(","));
      if (!accept(";")) return error("expected ';' after .branchtargets");
      kernel->scopes[scope].branch_targets[name] = std::move(targets);
      return {};
    }
    kernel->scopes[scope].labels[name] = static_cast<int>(kernel->statements.size());
    return {};
  }

  // .loc file line column[, function_name label, inlined_at file line column]
  void loc_directive() {
    const int line = next().line;
    Location here;
    here.file = static_cast<int>(number(next().text));
    here.line = static_cast<int>(number(next().text));
    here.column = static_cast<int>(number(next().text));
    while (!at_end() && peek().line == line) {
      if (next().text != "inlined_at") continue;
      const auto file = static_cast<int>(number(next().text));
      const auto at = static_cast<int>(number(next().text));
      const auto column = static_cast<int>(number(next().text));
      // The call site was itself a .loc a moment ago, which knew where it was inlined.
      auto known = places_.find({file, at, column});
      here.parent = known != places_.end() ? known->second : add_location({file, at, column, -1});
    }
    location_ = add_location(here);
  }

  int add_location(const Location& location) {
    module_->locations.push_back(location);
    const int index = static_cast<int>(module_->locations.size()) - 1;
    places_[{location.file, location.line, location.column}] = index;
    return index;
  }

  Status statement(ParsedKernel* kernel, int scope) {
    Statement s;
    s.line = peek().line;
    s.location = location_;
    s.scope = scope;
    if (accept("@")) {
      s.guard_negated = accept("!");
      s.guard = std::string(next().text);
    }
    if (!peek().is_word) return error("expected an opcode");
    s.opcode = std::string(next().text);
    std::string operand;
    int depth = 0;
    while (!accept(";")) {
      if (at_end()) return error("expected ';'");
      const std::string_view text = next().text;
      if (text == "{" || text == "[" || text == "(") ++depth;
      if (text == "}" || text == "]" || text == ")") --depth;
      if (text == "," && depth == 0) {
        s.operands.push_back(std::move(operand));
        operand.clear();
      } else {
        operand += text;
      }
    }
    if (!operand.empty()) s.operands.push_back(std::move(operand));
    kernel->statements.push_back(std::move(s));
    return {};
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
  ParsedModule* module_;
  bool linkage_is_extern_ = false;
  int location_ = -1;
  std::map<std::tuple<int, int, int>, int> places_;  // the latest .loc of a place
};

}  // namespace

Status parse_ptx(std::string_view text, ParsedModule* module) { return Parser(text, module).run(); }

}  // namespace flashdelta::emulator
