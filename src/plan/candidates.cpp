// The table of tiles, and the rule that ranks them (docs/planner.md). The rule's numbers come from trial kernels
// measured on an H200 held to one block an SM where SM120 holds one.
#include <algorithm>
#include <array>
#include <numeric>

#include "plan/kernel_rows.hpp"
#include "plan/plan.hpp"
#include "plan/shared_memory.hpp"

namespace flashdelta {
namespace {

struct AttentionRow {
  int64_t block_q, block_kv, warps, stages;
  bool q_in_registers;
};

constexpr std::array kAttentionRows{
    AttentionRow{256, 64, 8, 1, false},  AttentionRow{256, 64, 8, 2, false}, AttentionRow{128, 128, 8, 1, false},
    AttentionRow{128, 128, 8, 2, false}, AttentionRow{128, 64, 8, 1, false}, AttentionRow{128, 64, 8, 2, false},
    AttentionRow{128, 64, 8, 1, true},   AttentionRow{128, 32, 8, 1, true},  AttentionRow{128, 32, 8, 1, false},
    AttentionRow{128, 64, 4, 1, false},  AttentionRow{128, 64, 4, 2, false}, AttentionRow{128, 64, 4, 2, true},
    AttentionRow{64, 64, 4, 1, false},   AttentionRow{64, 64, 4, 2, false},  AttentionRow{64, 64, 4, 2, true},
    AttentionRow{64, 32, 4, 2, true},    AttentionRow{64, 16, 4, 1, false},
};

struct ChunkRow {
  int64_t chunk, warps, columns, stages;  // columns of V a warp
};

constexpr std::array kChunkRows{
    ChunkRow{32, 8, 16, 3}, ChunkRow{32, 8, 16, 2}, ChunkRow{32, 4, 32, 3}, ChunkRow{32, 4, 32, 2},
    ChunkRow{32, 4, 16, 3}, ChunkRow{32, 4, 16, 2}, ChunkRow{32, 2, 16, 3}, ChunkRow{32, 1, 16, 3},
    ChunkRow{64, 8, 16, 3}, ChunkRow{64, 8, 16, 2}, ChunkRow{64, 4, 16, 3}, ChunkRow{64, 4, 16, 2},
    ChunkRow{64, 2, 16, 2}, ChunkRow{64, 1, 16, 2},
};

// Eight warps of 255 registers fill an SM's register file: more of them do not count.
constexpr int64_t kWarpsWanted = 8;
// Accumulators and Q fragments a thread; above this the compiler spilled, addresses and softmax taking the rest.
constexpr int64_t kFragmentRegisters = 224;
// The largest state a thread held without spilling: two groups of 16 columns at dim_k = 128.
constexpr int64_t kStateRegisters = 128;

// Compared from the first number on; more is better.
using Merit = std::array<int64_t, 10>;

// 2: what a long sequence gets; 1: another kernel; 0: none. A plan is for running.
int64_t kernel_merit(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate) {
  const std::optional<KernelRow> kernel = find_kernel(arch, problem, candidate);
  if (!kernel) return 0;
  const ForwardRow* row =
      choose_forward_row(arch, forward_rows_for(problem.dtype, problem.head_dim, problem.head_dim_v), {});
  return row != nullptr && kernel->name == row->name ? 2 : 1;
}

Merit attention_merit(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate,
                      const Assessment& assessment) {
  const int64_t warps = std::max<int64_t>(candidate.threads / 32, 1);
  const int64_t rows = candidate.block_q / warps;
  const int64_t registers = rows * (candidate.block_kv + candidate.block_v) / 32 +
                            (candidate.q_in_registers ? rows * problem.head_dim / 64 : 0);
  const int64_t blocks = std::min(assessment.resident_blocks, std::max<int64_t>(kWarpsWanted / warps, 1));
  return {assessment.fits(),
          kernel_merit(arch, problem, candidate),
          registers <= kFragmentRegisters,
          std::min(blocks * warps, kWarpsWanted),
          std::min<int64_t>(rows, 32),                // 32 rows a warp read K and V half as often as 16
          std::min<int64_t>(candidate.block_kv, 64),  // 64 keys were faster than 48 and 32
          blocks,                                     // one block computes while another waits
          candidate.block_q,
          candidate.block_kv,
          candidate.stages};
}

Merit gated_delta_merit(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate,
                        const Assessment& assessment) {
  const int64_t warps = std::max<int64_t>(candidate.threads / 32, 1);
  const bool few = problem.seqlen && *problem.seqlen <= gated_delta_recurrent_tokens;
  const int64_t chunk = few ? 1 : arch.shared_bytes_block <= 99 * 1024 ? 32 : 64;
  return {assessment.fits(), candidate.block_kv == chunk,
          // Wide blocks stand in for a narrow row's, where those are many: of two kernels the narrow one is the plan's.
          !find_kernel(arch, problem, candidate) ? 0
          : candidate.block_v / warps > 16       ? 1
                                                 : 2,
          gated_delta_state_registers(candidate.block_v / warps, problem.head_dim) <= kStateRegisters,
          std::min(assessment.resident_blocks * warps, kWarpsWanted),
          std::min<int64_t>(candidate.stages, 3),  // three were faster than two, four no faster
          candidate.block_v,                       // K, Q, T and P are read once for all of these columns
          assessment.resident_blocks, warps, -assessment.shared_bytes};
}

}  // namespace

Candidate row_candidate(const PlanProblem& problem, const ForwardConfig& c) {
  const bool padded = c.head_dim != problem.head_dim || c.head_dim_v != problem.head_dim_v;
  return {c.block_q, c.block_kv, c.block_v(), c.threads(), c.stages, c.q_in_registers, padded ? c.head_dim : 0};
}

Candidate row_candidate(const GatedDeltaRecurrentConfig& c) { return {1, 1, c.block_v, c.threads(), 1, false}; }

std::vector<Candidate> table_candidates(const PlanProblem& problem) {
  std::vector<Candidate> candidates;
  if (problem.operation == PlanOperation::kAttentionForward) {
    // Above 256 value columns the output no longer fits a warp's registers: two blocks share them.
    const int64_t block_v = problem.head_dim_v <= 256 ? problem.head_dim_v : (problem.head_dim_v + 31) / 32 * 16;
    for (const ForwardRow* row : forward_rows_for(problem.dtype, problem.head_dim, problem.head_dim_v)) {
      candidates.push_back(row_candidate(problem, row->config));
    }
    for (const AttentionRow& row : kAttentionRows) {
      const Candidate candidate{row.block_q, row.block_kv, block_v, 32 * row.warps, row.stages, row.q_in_registers};
      if (std::find(candidates.begin(), candidates.end(), candidate) == candidates.end()) {
        candidates.push_back(candidate);
      }
    }
    return candidates;
  }
  const auto* recurrent = recurrent_row_for(problem.dtype, problem.head_dim);
  if (recurrent != nullptr && problem.seqlen && *problem.seqlen <= gated_delta_recurrent_tokens) {
    candidates.push_back(row_candidate(recurrent->config));
  }
  for (const ChunkRow& row : kChunkRows) {
    const int64_t columns = row.warps * row.columns;
    if (columns - row.columns >= problem.head_dim_v) continue;  // a warp would have no column
    // Fewer warps than four were slower: chunk 64 is not worth blocks that narrow.
    if (row.chunk == 64 && columns < std::min<int64_t>(problem.head_dim_v, 64)) continue;
    candidates.push_back({row.chunk, row.chunk, row.warps * row.columns, 32 * row.warps, row.stages, false});
  }
  return candidates;
}

std::vector<size_t> rank(const ArchProfile& arch, const PlanProblem& problem, const std::vector<Candidate>& candidates,
                         const std::vector<Assessment>& assessments) {
  std::vector<Merit> merits;
  for (size_t i = 0; i < candidates.size(); i++) {
    const Candidate candidate = resolve(problem, candidates[i]);
    merits.push_back(problem.operation == PlanOperation::kAttentionForward
                         ? attention_merit(arch, problem, candidate, assessments[i])
                         : gated_delta_merit(arch, problem, candidate, assessments[i]));
  }
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return merits[a] > merits[b]; });
  return order;
}

}  // namespace flashdelta
