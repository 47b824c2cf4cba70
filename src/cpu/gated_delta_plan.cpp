#include "cpu/gated_delta_plan.hpp"

#include <algorithm>
#include <cmath>

namespace flashdelta::cpu {
namespace {

constexpr int64_t kWorkspaceLimit = int64_t{48} << 20;
constexpr int64_t kStateFloatsATask = 64 << 10;  // 256 KiB: a task's states should stay in a core's L2 cache
constexpr int64_t kMaxSequencesAtOnce = 1 << 16;
constexpr int64_t kMinBlockV = 32;
constexpr int kDefaultChunk = 32;

// An odd number of cache lines, so that a column of rows is spread over all sets of the L1 cache.
int64_t leading_dimension(int64_t columns) { return (((columns + 15) / 16) | 1) * 16; }

int64_t chunk_of(const GatedDeltaProblem& p) {
  if (p.token_indices) return 1;  // the state after each token is wanted: chunks of one token are the recurrence
  const int64_t chunk = p.chunk != 0 ? p.chunk : kDefaultChunk;
  return std::clamp<int64_t>(p.max_tokens, 1, chunk);
}

GatedDeltaScratch lay_out(const GatedDeltaProblem& p) {
  GatedDeltaScratch s;
  s.chunk = chunk_of(p);
  s.ld_k = leading_dimension(p.dim_k);
  s.ld_v = leading_dimension(p.dim_v);
  s.ld_chunk = leading_dimension(s.chunk);
  s.heads = std::clamp<int64_t>(kStateFloatsATask / (p.dim_k * p.dim_v), 1, p.group());
  const auto take = [&s](int64_t floats) {
    const int64_t offset = s.floats;
    s.floats += (floats + 63) / 64 * 64;
    return offset;
  };
  s.keys_queries = take(2 * s.chunk * s.ld_k);
  s.keys_t = take(p.dim_k * s.ld_chunk);
  s.products = take(2 * s.chunk * s.ld_chunk);
  s.decayed = take(2 * s.chunk * s.ld_chunk);
  s.work = take(2 * s.chunk * s.ld_v);
  s.states = take(s.heads * p.dim_k * s.ld_v);
  s.rows = take(8 * std::max(p.dim_k, p.dim_v));
  s.gates = take(6 * s.ld_chunk);
  return s;
}

// Work of one token in units of a float operation: what the heads of a task share, and what each adds. The constants
// stand for conversions, gates and row scalings.
double shared_work(const GatedDeltaProblem& p, int64_t chunk) {
  return static_cast<double>(p.dim_k) * static_cast<double>(4 * chunk + 40);
}
double head_work(const GatedDeltaProblem& p, int64_t chunk, int64_t block_v) {
  return static_cast<double>(block_v) * static_cast<double>(6 * p.dim_k + 2 * chunk + 40) +
         static_cast<double>(30 * chunk + 200);
}

}  // namespace

GatedDeltaPlan plan_gated_delta(const GatedDeltaProblem& problem, int threads) {
  GatedDeltaPlan plan;
  plan.scratch = lay_out(problem);
  plan.sequences_at_once = std::clamp<int64_t>(problem.sequences, 1, kMaxSequencesAtOnce);
  const int64_t order_bytes = plan.sequences_at_once * static_cast<int64_t>(sizeof(SequenceWork));
  const int64_t offset = (order_bytes + 255) / 256 * 256;
  const int64_t scratch_bytes = plan.scratch.floats * static_cast<int64_t>(sizeof(float));
  plan.threads = static_cast<int>(std::clamp<int64_t>((kWorkspaceLimit - offset) / scratch_bytes, 1, threads));
  plan.scratch_offset = static_cast<size_t>(offset);
  plan.workspace_bytes = static_cast<size_t>(offset + plan.threads * scratch_bytes);
  return plan;
}

GatedDeltaCut cut_gated_delta(const GatedDeltaProblem& problem, const GatedDeltaPlan& plan, int64_t sequences,
                              int64_t total_tokens, int64_t longest_tokens) {
  const double threads = plan.threads;
  const int64_t chunk = plan.scratch.chunk;
  GatedDeltaCut best;
  double best_time = 0;
  for (int64_t heads = plan.scratch.heads; heads >= 1; heads--) {
    for (int64_t block_v = problem.dim_v;; block_v = (block_v / 2 + 7) / 8 * 8) {
      const GatedDeltaCut cut{heads, block_v};
      const double head_token = head_work(problem, chunk, block_v);
      const double task_token = shared_work(problem, chunk) + static_cast<double>(heads) * head_token;
      const double token = static_cast<double>(problem.heads_k * cut.v_blocks(problem)) *
                           (static_cast<double>(cut.head_blocks(problem)) * shared_work(problem, chunk) +
                            static_cast<double>(problem.group()) * head_token);
      const double total = static_cast<double>(total_tokens) * token;
      const double tasks = static_cast<double>(std::max<int64_t>(sequences, 1) * cut.tasks_a_sequence(problem));
      // A lower bound for unequal tasks, exact for equal ones.
      const double time = std::max({static_cast<double>(longest_tokens) * task_token, total / threads,
                                    total / tasks * std::ceil(tasks / threads)});
      if (best_time == 0 || time < best_time) {
        best = cut;
        best_time = time;
      }
      if (block_v / 2 < kMinBlockV) break;
    }
  }
  return best;
}

}  // namespace flashdelta::cpu
