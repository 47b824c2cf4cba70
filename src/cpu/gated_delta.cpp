// The gated delta rule on the CPU: sequences and heads over threads, chunks one after the other within a task.
// Sequences are taken in batches and, within a batch, longest first, so that no long one begins when the rest is done.
// The three context-parallel modes are one here: every segment starts from its exact state.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/progress.hpp"
#include "cpu/cpu.hpp"
#include "cpu/gated_delta_chunk.hpp"
#include "cpu/gated_delta_plan.hpp"
#include "cpu/gated_delta_state.hpp"

namespace flashdelta::cpu {
namespace {

// Numbers of o between two words to the progress callback: about a millisecond of work.
constexpr int64_t kProgressUnits = 1 << 17;

struct Task {
  SequenceWork work;
  int64_t head_k = 0, head_v = 0, heads = 0;  // value heads head_v .. head_v + heads - 1
  ColumnRange columns;
};

// Gathers units, so that the counter which all threads share is touched seldom.
class Reporter {
 public:
  explicit Reporter(Progress* progress) : progress_(progress) {}
  ~Reporter() {
    if (pending_ > 0 && !progress_->cancelled()) progress_->add(pending_);
  }

  // false: stop.
  bool add(int64_t units) {
    pending_ += units;
    if (pending_ < kProgressUnits) return !progress_->cancelled();
    return progress_->add(std::exchange(pending_, 0));
  }

 private:
  Progress* progress_;
  int64_t pending_ = 0;
};

Task task_at(const GatedDeltaProblem& p, const GatedDeltaCut& cut, const SequenceWork* order, int64_t index) {
  Task task;
  task.work = order[index / cut.tasks_a_sequence(p)];
  index %= cut.tasks_a_sequence(p);
  task.columns.begin = index % cut.v_blocks(p) * cut.block_v;
  task.columns.count = std::min(cut.block_v, p.dim_v - task.columns.begin);
  index /= cut.v_blocks(p);
  const int64_t first = index % cut.head_blocks(p) * cut.heads;
  task.head_k = index / cut.head_blocks(p);
  task.head_v = task.head_k * p.group() + first;
  task.heads = std::min(cut.heads, p.group() - first);
  return task;
}

class TaskRunner {
 public:
  TaskRunner(const GatedDeltaProblem& problem, const GatedDeltaScratch& layout, float* scratch, Progress* progress)
      : p_(problem), layout_(layout), kernel_(problem, layout, scratch), report_(progress) {}

  // false: stopped.
  bool run(const Task& task) {
    const Span span = p_.sequence(task.work.sequence);
    if (p_.skipped(task.work.sequence)) {
      write_zeros(task, span);
      return report_.add(span.length * task.heads * task.columns.count);
    }
    load_initial(task);
    for (int64_t done = 0; done < span.length;) {
      const int64_t n = std::min(layout_.chunk, span.length - done);
      const TokenRange tokens{span.outer, span.begin + done, n};
      kernel_.load_keys(tokens, task.head_k);
      for (int64_t h = 0; h < task.heads; h++) {
        kernel_.run(tokens, task.head_v + h, task.columns, kernel_.state(h));
      }
      done += n;
      store_states_after(task, done);
      if (!report_.add(n * task.heads * task.columns.count)) return false;
    }
    if (const int64_t slot = p_.final_slot(task.work.sequence); slot >= 0) store(task, p_.final, slot);
    return true;
  }

 private:
  void write_zeros(const Task& task, const Span& span) const {
    const int64_t size = dtype_size(p_.o.dtype);
    for (int64_t h = 0; h < task.heads; h++) {
      for (int64_t t = 0; t < span.length; t++) {
        char* row = p_.o.row(span.outer, span.begin + t, task.head_v + h) + task.columns.begin * size;
        std::fill(row, row + task.columns.count * size, char{0});
      }
    }
  }

  void load_initial(const Task& task) const {
    const int64_t slot = p_.initial_slot(task.work.sequence);
    for (int64_t h = 0; h < task.heads; h++) {
      float* state = kernel_.state(h);
      if (slot < 0) {
        std::fill(state, state + p_.dim_k * kernel_.ld_state(), 0.0f);
        continue;
      }
      const StateBlock block{slot, task.head_v + h, task.columns.begin, task.columns.count};
      load_state(p_, p_.initial, block, kernel_.rows(), state, kernel_.ld_state());
    }
  }

  void store(const Task& task, const States& to, int64_t slot) const {
    for (int64_t h = 0; h < task.heads; h++) {
      const StateBlock block{slot, task.head_v + h, task.columns.begin, task.columns.count};
      store_state(p_, to, block, kernel_.rows(), kernel_.state(h), kernel_.ld_state());
    }
  }

  // What is wanted of the states after the first `done` tokens. Checkpoints fall on ends of chunks.
  void store_states_after(const Task& task, int64_t done) const {
    if (p_.checkpoint_every != 0 && done % p_.checkpoint_every == 0) {
      store(task, p_.checkpoints, task.work.checkpoint_row + done / p_.checkpoint_every - 1);
    }
    if (!p_.token_indices || done > p_.token_slots) return;
    const int64_t slot = p_.token_indices.at(task.work.sequence, done - 1);
    if (slot >= 0) store(task, p_.final, slot);
  }

  const GatedDeltaProblem& p_;
  const GatedDeltaScratch& layout_;
  ChunkKernel kernel_;
  Reporter report_;
};

// Sequences first .. first + count - 1, whose total of checkpoint rows goes on from *checkpoint_row.
void run_batch(const GatedDeltaProblem& p, const GatedDeltaPlan& plan, int64_t first, int64_t count,
               int64_t* checkpoint_row, char* workspace, Progress* progress) {
  auto* order = reinterpret_cast<SequenceWork*>(workspace);
  int64_t busy = 0, total = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t length = p.sequence(first + i).length;
    order[i] = {length, first + i, *checkpoint_row};
    if (p.checkpoint_every != 0) *checkpoint_row += length / p.checkpoint_every;
    busy += length > 0;
    total += length;
  }
  std::sort(order, order + count, [](const SequenceWork& a, const SequenceWork& b) {
    return a.length != b.length ? a.length > b.length : a.sequence < b.sequence;
  });
  const GatedDeltaCut cut = cut_gated_delta(p, plan, busy, total, order[0].length);
  const int64_t tasks = count * cut.tasks_a_sequence(p);
  const int threads = static_cast<int>(std::min<int64_t>(plan.threads, tasks));
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    auto* scratch = reinterpret_cast<float*>(workspace + plan.scratch_offset);
    TaskRunner runner(p, plan.scratch, scratch + omp_get_thread_num() * plan.scratch.floats, progress);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      if (!runner.run(task_at(p, cut, order, i))) break;
    }
  }
}

}  // namespace

size_t gated_delta_forward_workspace(const GatedDeltaProblem& problem, int threads) {
  return plan_gated_delta(problem, threads).workspace_bytes;
}

Status gated_delta_forward(const GatedDeltaProblem& problem, const flashdelta_execution& execution, void* workspace) {
  const GatedDeltaPlan plan = plan_gated_delta(problem, thread_count(execution));
  int64_t tokens = problem.sequences * problem.tokens;
  if (problem.cu_seqlens) tokens = problem.cu_seqlens[problem.sequences] - problem.cu_seqlens[0];
  Progress progress(execution, tokens * problem.heads_v * problem.dim_v);
  int64_t checkpoint_row = 0;
  for (int64_t first = 0; first < problem.sequences; first += plan.sequences_at_once) {
    const int64_t count = std::min(plan.sequences_at_once, problem.sequences - first);
    run_batch(problem, plan, first, count, &checkpoint_row, static_cast<char*>(workspace), &progress);
    if (progress.cancelled()) return {FLASHDELTA_CANCELLED, "the progress callback asked to stop"};
  }
  return {};
}

}  // namespace flashdelta::cpu
