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

// The kernels of one call: prepare and forward, or recurrent.
struct GatedDeltaKernels {
  const GatedDeltaRow<GatedDeltaPrepareConfig>* prepare = nullptr;
  const GatedDeltaRow<GatedDeltaForwardConfig>* forward = nullptr;
  const GatedDeltaRow<GatedDeltaRecurrentConfig>* recurrent = nullptr;
};

// Whether a call goes token by token: few tokens a sequence, by all that the host knows of them, or states after each.
bool gated_delta_is_recurrent(const GatedDeltaProblem& problem);

// NOT_SUPPORTED by name where no kernel row does what the call asks, with what would.
Status gated_delta_forward_supported(const GatedDeltaProblem& problem);

// The rows for a problem under an architecture's limits.
Status choose_gated_delta_kernels(const GatedDeltaProblem& problem, const ArchProfile& arch,
                                  GatedDeltaKernels* kernels);

// Bytes of device memory that the launches share; 0 is possible.
Status gated_delta_forward_workspace_on(const GatedDeltaProblem& problem, const ArchProfile& arch, size_t* bytes);

// Loads the kernels of a call, which a stream that is being captured may not do.
Status prepare_gated_delta_forward(Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem);

// What the preparation leaves of a chunk and value head: storage.cuh's ChunkRecord.
inline constexpr int64_t gated_delta_record_bytes = [] {
  const GatedDeltaSharedBytes bytes = gated_delta_shared_bytes({gated_delta_chunk, 0, 0, 1, 2});
  return bytes.t + bytes.p + bytes.gate;
}();

// Chunks that the workspace has room for: those there are, and up to one more a packed sequence.
int64_t gated_delta_chunk_slots(const GatedDeltaProblem& problem);

// The most parts of a sequence that run side by side, with `blocks` blocks a part and room for `resident` at a time;
// and the logarithm of what may be left of a state before a part that starts from nothing.
int gated_delta_segments(const GatedDeltaProblem& problem, int64_t blocks, int64_t resident);
double gated_delta_segment_threshold(const GatedDeltaProblem& problem);

GatedDeltaForwardParams gated_delta_forward_params(const GatedDeltaProblem& problem,
                                                   const GatedDeltaForwardConfig& config, void* workspace);

GatedDeltaRecurrentParams gated_delta_recurrent_params(const GatedDeltaProblem& problem,
                                                       const GatedDeltaRecurrentConfig& config);

// arch: whose limits are planned under; where that is not the device's own, residency is held to it too. workspace:
// device memory, aligned to 256 bytes. Allocates nothing, reads nothing back.
Status gated_delta_forward_on(Device& device, const ArchProfile& arch, const GatedDeltaProblem& problem,
                              void* workspace, void* stream);

}  // namespace flashdelta
