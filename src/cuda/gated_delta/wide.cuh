// The sequential kernel where blocks are many: most work is done 128 value columns at a time, 32 a warp, and reads
// every operand for twice as many products. A wide chunk takes longer, so that where the last round of the card's
// multiprocessors has few blocks these are narrow.
//
// A block has a task after another: one, a sequence and value head, or those of its range (ranges.cuh). The copying
// warp finds them, tells the others and fills the stages on, while these still store a state; stages and their phases
// go on from task to task, wide or narrow.
#pragma once

#include "cuda/gated_delta/forward.cuh"
#include "cuda/gated_delta/ranges.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace flashdelta::gated_delta {

// The only work of a block that has no range: wide blocks come first.
__device__ __forceinline__ Work unit_of(const GatedDeltaForwardParams& p, int block) {
  const int beyond = block - p.wide_units * p.wide_value_blocks;
  const int blocks = beyond < 0 ? p.wide_value_blocks : p.value_blocks, own = beyond < 0 ? block : beyond;
  const int unit = (beyond < 0 ? 0 : p.wide_units) + own / blocks, heads_v = p.heads_k * p.group;
  const Sequence sequence = sequence_at(p, unit / heads_v);
  return {sequence, {0, 0, sequence.chunks(), true, -1}, unit / heads_v, unit % heads_v, own % blocks, beyond >= 0};
}

// The copying warp: tasks and their chunks.
template <GatedDeltaWideConfig C>
class TaskCopy {
 public:
  using Storage = ForwardStorage<C.wide>;
  using NarrowStorage = ForwardStorage<C.narrow_task()>;
  static_assert(sizeof(Storage) == sizeof(NarrowStorage) && offsetof(Storage, full) == offsetof(NarrowStorage, full));

  __device__ __forceinline__ TaskCopy(Storage& storage, const GatedDeltaForwardParams& params, int lane)
      : storage_(storage), params_(params), lane_(lane) {}

  __device__ __forceinline__ void run() {
    RangeWalk walk(params_, blockIdx.x, lane_);
    Work next;
    bool more = walk.next(next);
    if (params_.ranges == 0) next = unit_of(params_, blockIdx.x), more = true;
    while (more) {
      const Work work = next;
      const Slots slots = slots_of(params_, work.n);
      if (slots.skipped) {
        clear(work);
      } else {
        begin(work, slots);
      }
      more = walk.next(next);  // while the last chunks are worked on
      if (!slots.skipped) end(work);
    }
    post({ForwardTask::none, tasks_, chunks_, chunks_, 0, 0, -1, -1});
    finish_copies();
  }

 private:
  // o = 0, once.
  __device__ __forceinline__ void clear(const Work& work) const {
    if (!work.range.starts) return;
    const int columns = C.wide.warp_columns(), warps = work.narrow ? C.wide.warps / 2 : C.wide.warps;
    for (int i = 0; i < warps; i++) {
      const int value = (work.value_block * warps + i) * columns;
      clear_output<C.wide>(OutputRows(params_, work.sequence, work.head, value), lane_);
    }
  }

  // The others' task, and its chunks.
  __device__ __forceinline__ void begin(const Work& work, const Slots& slots) {
    const ChunkRange& range = work.range;
    const int first = chunks_, value = work.value_block * (work.narrow ? C.narrow.block_v : C.wide.block_v);
    chunks_ += range.end - range.first;
    post({work.narrow ? ForwardTask::narrow : ForwardTask::wide, tasks_, first, chunks_, work.head, value,
          range.starts ? slots.initial : -1, range.end == work.sequence.chunks() ? slots.final : -1});
    if (work.narrow) {
      narrow(work).fill(place_);
    } else {
      wide(work).fill(place_);
    }
  }

  __device__ __forceinline__ void end(const Work& work) const {
    if (work.narrow) {
      narrow(work).drain(place_);
    } else {
      wide(work).drain(place_);
    }
  }

  __device__ __forceinline__ RangeCopy<C.wide> wide(const Work& work) const {
    return RangeCopy<C.wide>(storage_, params_, work.sequence, work.range, work.n, work.head, work.value_block);
  }
  __device__ __forceinline__ RangeCopy<C.narrow_task()> narrow(const Work& work) const {
    return RangeCopy<C.narrow_task()>(reinterpret_cast<NarrowStorage&>(storage_), params_, work.sequence, work.range,
                                      work.n, work.head, work.value_block);
  }

  __device__ __forceinline__ void post(const ForwardTask& task) {
    ptx::mbarrier_sleep(ptx::shared_address(&storage_.taken), (tasks_ & 1) ^ 1);  // the task before
    tasks_++;
    if (lane_ != 0) return;
    storage_.task = task;
    ptx::mbarrier_arrive(ptx::shared_address(&storage_.posted));
  }

  Storage& storage_;
  const GatedDeltaForwardParams& params_;
  const int lane_;
  StagePlace place_;
  int tasks_ = 0, chunks_ = 0;  // so far
};

// A warp that multiplies. The lane is asked for anew, so that what comes of it takes no registers from task to task;
// what the task says has no use as an argument.
template <GatedDeltaForwardConfig C>
__device__ __forceinline__ int do_task(uint32_t address, const GatedDeltaForwardParams& params) {
  const ChunkRange range{0, 0, 0, false, -1};
  const Sequence sequence{};
  const int lane = ptx::thread_index() & 31;
  return Forward<C>(address, lane, params, sequence, range, 0, 0).run_task();
}

template <GatedDeltaWideConfig C>
__device__ __forceinline__ void wide(const GatedDeltaForwardParams& params) {
  static_assert(C.wide.wide() && C.wide.block_v == 2 * C.narrow.block_v && C.wide.threads() == C.narrow.threads());
  static_assert(C.wide.stages == C.narrow.stages && C.wide.warps == C.narrow.warps);
  using Storage = ForwardStorage<C.wide>;
  static_assert(sizeof(Storage) == C.shared_bytes(), "the plan's bytes are the kernel's");
  extern __shared__ __align__(1024) char shared[];
  Storage& storage = *reinterpret_cast<Storage*>(shared);
  init_barriers<C.wide>(storage);
  ptx::wait_for_kernel_before();
  if (threadIdx.x / 32 == C.wide.warps) {
    TaskCopy<C>(storage, params, threadIdx.x & 31).run();
    return;
  }
  const uint32_t address = ptx::shared_address(shared);
  for (int number = 0;; number++) {
    ptx::mbarrier_sleep(address + offsetof(Storage, posted), number & 1);
    int kind;
    ptx::load_shared_32(kind, address + offsetof(Storage, task) + offsetof(ForwardTask, kind));
    if (kind == ForwardTask::none) return;
    number = kind == ForwardTask::narrow ? do_task<C.narrow_task()>(address, params) : do_task<C.wide>(address, params);
  }
}

}  // namespace flashdelta::gated_delta
