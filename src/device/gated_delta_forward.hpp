// gated_delta_forward on a device: which kernel rows, their parameters, workspace and launches. The same code for CUDA
// and the emulator.
#pragma once

#include "core/problem.hpp"
#include "cuda/gated_delta/forward_params.h"
#include "cuda/gated_delta/recurrent_params.h"
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "cuda/gated_delta/rows.hpp"
#include "device/device.hpp"

namespace flashdelta {

// The kernels of one call: prepare and forward, with summary and scan between them where parts are composed; or
// recurrent. ahead: what prepare does, beside forward; null: there is none.
struct GatedDeltaKernels {
  const GatedDeltaRow<GatedDeltaPrepareConfig>* prepare = nullptr;
  const GatedDeltaRow<GatedDeltaAheadConfig>* ahead = nullptr;
  const GatedDeltaRow<GatedDeltaForwardConfig>* forward = nullptr;
  const GatedDeltaRow<GatedDeltaWideConfig>* wide = nullptr;  // takes forward's place where parts have wide blocks
  const GatedDeltaRow<GatedDeltaSummaryConfig>* summary = nullptr;
  const GatedDeltaRow<GatedDeltaScanConfig>* scan = nullptr;
  const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent = nullptr;
};

// Whether a call goes token by token: few tokens a sequence, by all that the host knows of them, or states after each.
bool gated_delta_is_recurrent(const GatedDeltaProblem& problem);

// NOT_SUPPORTED by name where no kernel row does what the call asks, with what would.
Status gated_delta_forward_supported(const GatedDeltaProblem& problem);

// The rows for a problem under an architecture's limits.
Status choose_gated_delta_kernels(const GatedDeltaProblem& problem, const ArchProfile& arch,
                                  GatedDeltaKernels* kernels);

// Bytes of device memory that the launches share on a card of sm_count multiprocessors; 0 is possible.
Status gated_delta_forward_workspace_on(const GatedDeltaProblem& problem, const ArchProfile& arch, int sm_count,
                                        size_t* bytes);

// Loads the kernels of a call, which a stream that is being captured may not do.
Status prepare_gated_delta_forward(Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem);

// What the preparation leaves of a chunk and value head: storage.cuh's ChunkRecord.
inline constexpr int64_t gated_delta_record_bytes = [] {
  const GatedDeltaSharedBytes bytes = gated_delta_shared_bytes({gated_delta_chunk, 0, 0, 1, 2});
  return bytes.t + bytes.p + bytes.gate;
}();

// Chunks that the workspace has room for: those there are, and up to one more a packed sequence.
int64_t gated_delta_chunk_slots(const GatedDeltaProblem& problem);

// What the ranges of wide blocks divide (cuda/gated_delta/ranges.cuh): all key heads' chunks, and their states.
int64_t gated_delta_line(const GatedDeltaProblem& problem);

// What of a call runs side by side: the parts that its sequences may be cut into, or preparation and forward kernel.
struct GatedDeltaParts {
  int most = 1;  // of one sequence
  // Chunks of a part, where the states before parts are composed (cuda/gated_delta/parts.cuh); 0: parts start early, or
  // the part before goes on (segments.cuh).
  int64_t chunks = 0;
  double time = 1;  // where they are composed and no head fades, against one part: the plan's model
  // Value heads of sequences, the first, that have wide blocks.
  int64_t wide_units = 0;
  // Instead: ranges of all key heads' chunks, in which wide blocks walk from sequence to sequence
  // (cuda/gated_delta/ranges.cuh); 0: none. What lies in one of a sequence has least_piece chunks or more, and starts
  // at most most_early chunks early.
  int64_t ranges = 0, least_piece = kWholeSequences, most_early = 1;
  static constexpr int64_t kWholeSequences = INT32_MAX;  // as least_piece: ranges end where sequences do

  // Blocks of the preparation on SMs that the forward kernel leaves idle (cuda/gated_delta/ahead.cuh); 0: it runs
  // before.
  int ahead_blocks = 0;

  bool composed() const { return chunks > 0; }
  bool wide() const { return wide_units > 0 || ranges > 0; }
};

// The parts that are fastest on a card of sm_count multiprocessors.
GatedDeltaParts gated_delta_parts(const GatedDeltaProblem& problem, const GatedDeltaKernels& kernels, int sm_count);

// The logarithm of what may be left of a state before a part that starts from nothing.
double gated_delta_segment_threshold(const GatedDeltaProblem& problem);

// What lies in the workspace, one after the other: bytes, of whole lines.
struct GatedDeltaWorkspace {
  size_t records = 0, done = 0, starts = 0, transitions = 0, total = 0;
};
GatedDeltaWorkspace gated_delta_workspace(const GatedDeltaProblem& problem, const GatedDeltaKernels& kernels,
                                          const GatedDeltaParts& parts);

// Numbers for parts that the forward kernel's blocks have, and places for the states before them.
struct GatedDeltaPartSlots {
  int64_t numbers, states;
};
GatedDeltaPartSlots gated_delta_part_slots(const GatedDeltaProblem& problem, const GatedDeltaParts& parts);

GatedDeltaForwardParams gated_delta_forward_params(const GatedDeltaProblem& problem, const GatedDeltaKernels& kernels,
                                                   const GatedDeltaParts& parts, void* workspace);

// Has k, q and v come by tensor copies where device and layout allow it.
void map_gated_delta_tensors(const Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem,
                             GatedDeltaForwardParams* params);

GatedDeltaRecurrentParams gated_delta_recurrent_params(const GatedDeltaProblem& problem,
                                                       const GatedDeltaRecurrentConfig& config);

// arch: whose limits are planned under; where that is not the device's own, residency is held to it too. workspace:
// device memory, aligned to 256 bytes. Allocates nothing, reads nothing back.
Status gated_delta_forward_on(Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem,
                              void* workspace, void* stream);

// The same in parts that the caller chooses.
Status gated_delta_forward_in_parts(Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem,
                                    const GatedDeltaKernels& kernels, const GatedDeltaParts& parts, void* workspace,
                                    void* stream);

}  // namespace flashdelta
