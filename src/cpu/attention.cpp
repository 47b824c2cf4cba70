// attention_forward on the CPU: OpenMP threads take units of work (see attention_plan.hpp), the longest first.
#include <omp.h>

#include <algorithm>

#include "core/progress.hpp"
#include "cpu/attention_block.hpp"
#include "cpu/attention_plan.hpp"
#include "cpu/cpu.hpp"

namespace flashdelta::cpu {
namespace {

// The last sequence whose slots start at or before this one.
int64_t sequence_of(const AttentionProblem& problem, int64_t slot) {
  int64_t low = 0, high = problem.batch - 1;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (AttentionPlan::first_slot(problem, middle) <= slot) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Block `index` in the order of work; rows is 0 where a slot has none. Under a causal mask a sequence's last blocks see
// the most keys, so the order is that of falling slots.
AttentionBlock block_at(const AttentionProblem& problem, const AttentionPlan& plan, int64_t index) {
  const int64_t slot = plan.slots - 1 - index / problem.heads_k;
  const int64_t b = sequence_of(problem, slot);
  AttentionBlock block{problem, b, index % problem.heads_k, 0, 0, problem.queries(b), problem.keys(b)};
  block.first_row = (slot - AttentionPlan::first_slot(problem, b)) * kBlockRows;
  block.rows = std::clamp<int64_t>(block.queries.length * problem.group() - block.first_row, 0, kBlockRows);
  return block;
}

void run_unit(const AttentionProblem& problem, const AttentionPlan& plan, int64_t unit, void* workspace,
              Progress& progress) {
  const AttentionBlock block = block_at(problem, plan, unit / plan.splits);
  if (block.rows == 0) return;
  const Scratch scratch = plan.scratch(workspace, omp_get_thread_num());
  const Accumulator result = plan.splits > 1 ? plan.part(workspace, unit) : scratch.result;
  attend(block, unit % plan.splits, plan.splits, scratch, result, progress);
  if (plan.splits == 1) finish(block, result, scratch, progress);
}

void merge_parts(const AttentionProblem& problem, const AttentionPlan& plan, int64_t index, void* workspace,
                 Progress& progress) {
  const AttentionBlock block = block_at(problem, plan, index);
  if (block.rows == 0) return;
  const Scratch scratch = plan.scratch(workspace, omp_get_thread_num());
  const Accumulator result = plan.part(workspace, index * plan.splits);
  for (int64_t s = 1; s < plan.splits; s++)
    merge(block, result, plan.part(workspace, index * plan.splits + s), scratch);
  finish(block, result, scratch, progress);
}

}  // namespace

size_t attention_forward_workspace(const AttentionProblem& problem, int threads) {
  return AttentionPlan(problem, threads).bytes;
}

Status attention_forward(const AttentionProblem& problem, const flashdelta_execution& execution, void* workspace) {
  const AttentionPlan plan(problem, thread_count(execution));
  Progress progress(execution, plan.units);
#pragma omp parallel num_threads(plan.threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < plan.units; unit++) {
      if (progress.cancelled()) continue;
      run_unit(problem, plan, unit, workspace, progress);
      progress.add(1);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < (plan.splits > 1 ? plan.units / plan.splits : 0); index++) {
      if (!progress.cancelled()) merge_parts(problem, plan, index, workspace, progress);
    }
  }
  if (progress.cancelled()) return {FLASHDELTA_CANCELLED, "attention_forward: stopped by the progress callback"};
  return {};
}

}  // namespace flashdelta::cpu
