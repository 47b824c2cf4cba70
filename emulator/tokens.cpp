#include "emulator/tokens.hpp"

#include <algorithm>
#include <cctype>

namespace flashdelta::emulator {
namespace {

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

size_t end_of_word(std::string_view text, size_t i) {
  while (i < text.size()) {
    if (is_word_char(text[i])) {
      ++i;
    } else if (text.substr(i, 2) == "::") {
      i += 2;
    } else {
      break;
    }
  }
  return i;
}

}  // namespace

std::vector<Token> tokenise(std::string_view text) {
  std::vector<Token> tokens;
  int line = 1;
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
      ++i;
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const size_t end = std::min(text.find("*/", i), text.size() - 2) + 2;
      line += static_cast<int>(std::count(text.begin() + i, text.begin() + end, '\n'));
      i = end;
    } else if (c == '"') {
      const size_t end = std::min(text.find('"', i + 1), text.size());
      tokens.push_back({text.substr(i + 1, end - i - 1), line, false, true});
      i = std::min(end + 1, text.size());
    } else if (is_word_char(c)) {
      const size_t end = end_of_word(text, i);
      tokens.push_back({text.substr(i, end - i), line, true, false});
      i = end;
    } else {
      tokens.push_back({text.substr(i, 1), line, false, false});
      ++i;
    }
  }
  return tokens;
}

}  // namespace flashdelta::emulator
