// Writes one .cu a row of the kernel table into a folder, and prints the rows, one a line, tab-separated:
// name, dynamic shared bytes, threads, resident blocks, register ceiling, tuned (0 or 1).
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
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "cuda/gated_delta/rows.hpp"

namespace {

using namespace flashdelta;

// The kernel `function`<config> of row `index` of table `rows`.
std::string attention_source(const char* header, const char* rows, const char* function, const char* params,
                             const char* name, size_t index) {
  std::ostringstream text;
  text << "#include \"cuda/attention/" << header << "\"\n#include \"cuda/attention/rows.hpp\"\n\n"
       << "constexpr auto row = flashdelta::" << rows << "[" << index << "];\n\n"
       << "extern \"C\" __global__ void __launch_bounds__(row.config.threads(), row.bounds_blocks())\n"
       << "    flashdelta_" << name << "(const __grid_constant__ flashdelta::" << params << " params) {\n"
       << "  flashdelta::attention::" << function << "<row.config>(params);\n}\n";
  return text.str();
}

// kind: "prepare", "forward", "wide", "summary", "scan" or "recurrent", which names the table, the header and the
// function.
std::string gated_delta_source(const std::string& kind, const char* name, size_t index) {
  const bool recurrent = kind == "recurrent";
  std::ostringstream text;
  text << "#include \"cuda/gated_delta/" << kind << ".cuh\"\n#include \"cuda/gated_delta/"
       << (recurrent ? "recurrent_" : "") << "rows.hpp\"\n\n"
       << "constexpr auto row = flashdelta::gated_delta_" << kind << "_rows[" << index << "];\n\n"
       << "extern \"C\" __global__ void __launch_bounds__(row.config.threads(), row.resident_blocks)\n"
       << "    flashdelta_" << name << "(const __grid_constant__ flashdelta::GatedDelta"
       << (recurrent ? "Recurrent" : "Forward") << "Params params) {\n"
       << "  flashdelta::gated_delta::" << kind << "<row.config>(params);\n}\n";
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
  bool written = true;
  const auto add = [&](const auto& row, const std::string& source) {
    written = written && write_if_changed(folder / (std::string(row.name) + ".cu"), source);
    int bytes = row.config.shared_bytes();
    if constexpr (requires { row.config.dynamic_bytes(); }) bytes = row.config.dynamic_bytes();
    std::cout << row.name << '\t' << bytes << '\t' << row.config.threads() << '\t' << row.resident_blocks << '\t'
              << row.register_ceiling << '\t' << row.tuned << '\n';
  };
  for (size_t i = 0; i < std::size(forward_rows); i++) {
    const auto& row = forward_rows[i];
    add(row, attention_source("forward.cuh", "forward_rows", "forward", "AttentionForwardParams", row.name, i));
  }
  for (size_t i = 0; i < std::size(paired_rows); i++) {
    const auto& row = paired_rows[i];
    add(row, attention_source("paired.cuh", "paired_rows", "paired", "AttentionPairedParams", row.name, i));
  }
  for (size_t i = 0; i < std::size(decode_rows); i++) {
    const auto& row = decode_rows[i];
    add(row, attention_source("decode.cuh", "decode_rows", "decode", "AttentionForwardParams", row.name, i));
  }
  for (size_t i = 0; i < std::size(forward_combine_rows); i++) {
    const auto& row = forward_combine_rows[i];
    add(row, attention_source("combine.cuh", "forward_combine_rows", "combine", "AttentionCombineParams", row.name, i));
  }
  for (size_t i = 0; i < std::size(forward_tail_rows); i++) {
    const auto& row = forward_tail_rows[i];
    add(row,
        attention_source("combine.cuh", "forward_tail_rows", "combine_tail", "AttentionForwardParams", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_prepare_rows); i++) {
    const auto& row = gated_delta_prepare_rows[i];
    add(row, gated_delta_source("prepare", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_ahead_rows); i++) {
    const auto& row = gated_delta_ahead_rows[i];
    add(row, gated_delta_source("ahead", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_forward_rows); i++) {
    const auto& row = gated_delta_forward_rows[i];
    add(row, gated_delta_source("forward", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_wide_rows); i++) {
    const auto& row = gated_delta_wide_rows[i];
    add(row, gated_delta_source("wide", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_summary_rows); i++) {
    const auto& row = gated_delta_summary_rows[i];
    add(row, gated_delta_source("summary", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_scan_rows); i++) {
    const auto& row = gated_delta_scan_rows[i];
    add(row, gated_delta_source("scan", row.name, i));
  }
  for (size_t i = 0; i < std::size(gated_delta_recurrent_rows); i++) {
    const auto& row = gated_delta_recurrent_rows[i];
    add(row, gated_delta_source("recurrent", row.name, i));
  }
  if (written) return 0;
  std::cerr << "generate: cannot write to " << folder << "\n";
  return 1;
}
