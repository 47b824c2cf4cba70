// PTX text to tokens. A word keeps its dots, dollars and double colons ("mbarrier::complete_tx::bytes").
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashdelta::emulator {

struct Token {
  std::string_view text;  // into the PTX text; a string token has no quotes
  int line = 0;
  bool is_word = false;
  bool is_string = false;
};

std::vector<Token> tokenise(std::string_view text);

}  // namespace flashdelta::emulator
