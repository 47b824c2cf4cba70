// The header's JSON to entries. No document is built, so a header of 100 MB costs no more than its entries, and depth
// costs nothing: the fourth level is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"

namespace flashdelta {

// "": parsed; else one line that says what is wrong. Ranges are not checked here.
std::string parse_safetensors_header(std::string_view text, std::vector<SafetensorsEntry>* entries);

}  // namespace flashdelta
