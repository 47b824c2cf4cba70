#include "plan/render.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace flashdelta {
namespace {

constexpr size_t kColumns = 12;
using Line = std::array<std::string, kColumns>;

constexpr std::array<const char*, kColumns> kTitles{"",       "block_q", "block_kv", "block_v",   "warps",   "stages",
                                                    "Q regs", "KiB",     "of limit", "blocks/SM", "kv iter", "verdict"};

std::string parts_text(const CandidateReport& candidate) {
  std::string text;
  for (const auto& [name, bytes] : candidate.parts)
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", name, bytes);
  return text;
}

std::string verdict(const CandidateReport& candidate) {
  if (!candidate.fits) return candidate.reason;
  if (!candidate.kernel) return "fits; no kernel";
  if (candidate.padded_head_dim == 0) return *candidate.kernel;
  return fmt::format("{}, padded to {}", *candidate.kernel, candidate.padded_head_dim);
}

Line line(const PlanReport& report, size_t index) {
  const CandidateReport& candidate = report.candidates[index];
  return {report.chosen == index ? "*" : "",
          std::to_string(candidate.block_q),
          std::to_string(candidate.block_kv),
          std::to_string(candidate.block_v),
          std::to_string(candidate.warps),
          std::to_string(candidate.stages),
          candidate.q_in_registers ? "yes" : "no",
          fmt::format("{:.1f}", candidate.shared_bytes / 1024.0),
          fmt::format("{:.0f}%", 100.0 * candidate.shared_bytes / report.shared_limit),
          std::to_string(candidate.resident_blocks),
          candidate.kv_iterations ? std::to_string(*candidate.kv_iterations) : "-",
          verdict(candidate)};
}

std::string heading(const PlanReport& report) {
  return fmt::format(
      "{} on {}: {}, head_dim {}, head_dim_v {}{}\n"
      "target {}, algorithm {}, output {}, {} bytes ({:.1f} KiB) of shared memory a block\n",
      report.operation, report.arch, report.dtype, report.head_dim, report.head_dim_v,
      report.seqlen ? fmt::format(", seqlen {}", *report.seqlen) : "", report.target, report.algorithm,
      report.output_path, report.shared_limit, report.shared_limit / 1024.0);
}

}  // namespace

std::string plan_table(const PlanReport& report) {
  std::vector<Line> lines(1);
  std::copy(kTitles.begin(), kTitles.end(), lines[0].begin());
  for (size_t i = 0; i < report.candidates.size(); i++) lines.push_back(line(report, i));
  std::array<size_t, kColumns> widths{};
  for (const Line& row : lines) {
    for (size_t c = 0; c < kColumns; c++) widths[c] = std::max(widths[c], row[c].size());
  }

  std::string table = heading(report) + "\n";
  for (size_t i = 0; i < lines.size(); i++) {
    std::string text;
    for (size_t c = 0; c + 1 < kColumns; c++) text += fmt::format("{:>{}}  ", lines[i][c], widths[c]);
    text += fmt::format("{:<{}}  {}", lines[i].back(), widths.back(),
                        i == 0 ? "bytes by part" : parts_text(report.candidates[i - 1]));
    table += text + "\n";
  }
  table += report.chosen ? "\n* chosen" + (report.why.empty() ? "" : ": " + report.why) + "\n" : "\nNothing fits.\n";
  for (const CandidateReport& candidate : report.candidates) {
    if (candidate.fits) continue;
    table += fmt::format("refused: {}x{}, {} warp{}, {} stage{}: {}\n", candidate.block_q, candidate.block_kv,
                         candidate.warps, candidate.warps == 1 ? "" : "s", candidate.stages,
                         candidate.stages == 1 ? "" : "s", candidate.detail);
  }
  return table;
}

}  // namespace flashdelta
