// --counters: what the emulator counted during the last call.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "options.hpp"

namespace flashdelta::cli {

// Fails where --counters is asked of a call that the emulator does not run, or of a build without it.
void check_counters(const RunOptions& options);

// Those that are not zero.
nlohmann::ordered_json counters_json();
std::string counters_table();

}  // namespace flashdelta::cli
