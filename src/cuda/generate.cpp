// Writes one .cu a row of the kernel table into a folder, and prints the rows, one a line, tab-separated:
// name, shared bytes, threads, resident blocks, register ceiling, tuned (0 or 1).
//
//   generate FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "cuda/attention/rows.hpp"

namespace {

using namespace flashdelta;

std::string forward_source(size_t index) {
  const ForwardRow& row = forward_rows[index];
  std::ostringstream text;
  text << "#include \"cuda/attention/forward.cuh\"\n#include \"cuda/attention/rows.hpp\"\n\n"
       << "constexpr flashdelta::ForwardRow row = flashdelta::forward_rows[" << index << "];\n\n"
       << "extern \"C\" __global__ void __launch_bounds__(row.config.threads(), row.resident_blocks)\n"
       << "    flashdelta_" << row.name << "(const __grid_constant__ flashdelta::AttentionForwardParams params) {\n"
       << "  flashdelta::attention::forward<row.config>(params);\n}\n";
  return text.str();
}

// An unchanged file keeps its time, so that nothing is compiled again.
bool write_if_changed(const std::filesystem::path& path, const std::string& text) {
  std::ifstream old(path);
  if (old && std::string(std::istreambuf_iterator<char>(old), {}) == text) return true;
  return static_cast<bool>(std::ofstream(path) << text << std::flush);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: generate FOLDER\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  for (size_t i = 0; i < std::size(forward_rows); i++) {
    const ForwardRow& row = forward_rows[i];
    if (!write_if_changed(folder / (std::string(row.name) + ".cu"), forward_source(i))) {
      std::cerr << "generate: cannot write " << folder / (std::string(row.name) + ".cu") << "\n";
      return 1;
    }
    std::cout << row.name << '\t' << row.config.shared_bytes() << '\t' << row.config.threads() << '\t'
              << row.resident_blocks << '\t' << row.register_ceiling << '\t' << row.tuned << '\n';
  }
}
