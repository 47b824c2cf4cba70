// The planner: which tiles of an operation fit an architecture, and which of those is likely the fastest.
// Pure functions over tables: nothing here asks a device, so every plan can be printed and tested anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/profiles.hpp"
#include "core/status.hpp"
#include "cuda/attention/forward_config.hpp"
#include "cuda/gated_delta/recurrent_rows.hpp"

namespace flashdelta {

// Not io/call.hpp's Operation: the planner knows the forward operations alone.
enum class PlanOperation { kAttentionForward, kGatedDeltaForward };

// How the inner loop multiplies and moves data. Every architecture from SM80 up runs the first.
enum class AlgorithmClass {
  kMmaSyncSm80,  // a warp multiplies alone: ldmatrix, mma.sync, copies into shared memory behind a wait
  kWgmmaSm90,    // four warps multiply together out of shared memory
};

enum class OutputPath { kVectorStore, kBulkStore };

// Why a candidate is refused. kNone: it fits.
enum class Reason {
  kNone,
  kDtypeNot16Bit,
  kHeadDimNotMultipleOf8,
  kHeadDimVNotMultipleOf8,
  kHeadDimOverLimit,
  kHeadDimVOverLimit,
  kBlockKvNotMultipleOf16,
  kThreadsNotMultipleOf32,
  kThreadsOverBlockLimit,
  kBlockQNotMultipleOfWarpRows,  // attention: 2 * block_q is no multiple of threads
  kBlockVNotMultipleOf8,         // attention
  kBlockVOverHeadDimV,           // attention
  kBlockQNotBlockKv,             // gated delta: both are the chunk
  kBlockVNotMultipleOfWarps,     // gated delta: a warp owns whole groups of 16 value columns
  kStagesUnderTwo,               // gated delta: a chunk is loaded while another is computed on
  kQInRegisters,                 // gated delta: Q is read from shared memory by every warp
  kStateOverRegisters,           // gated delta: a warp's part of the state is over 255 registers a thread
  kSharedMemoryOverLimit,
};

// One set of tile sizes. For the gated delta rule block_q = block_kv = the chunk; 1 is its recurrent kernel.
struct Candidate {
  int64_t block_q = 0;    // query rows a block
  int64_t block_kv = 0;   // keys a loop iteration
  int64_t block_v = 0;    // value columns a block; 0: all of head_dim_v
  int64_t threads = 128;  // 32 a warp that computes; the chunked gated delta kernels have one more, which copies
  int64_t stages = 0;     // K and V buffers; 0: the fewest the operation runs with (attention 1, gated delta 2)
  bool q_in_registers = false;
  // Attention: columns of the Q and K tiles of a kernel that takes smaller heads and fills them up with zeros, block_v
  // then being its V tile's. 0: the problem's head sizes, no padding.
  int64_t padded_head_dim = 0;

  bool operator==(const Candidate&) const = default;
};

struct PlanProblem {
  PlanOperation operation = PlanOperation::kAttentionForward;
  flashdelta_dtype dtype = FLASHDELTA_BF16;
  int64_t head_dim = 0, head_dim_v = 0;  // K and V of the gated delta rule
  std::optional<int64_t> seqlen;         // keys of a sequence
};

// A kernel that exists for a candidate.
struct KernelRow {
  std::string_view name;
  int registers = 0;  // the most a thread may take; scripts/audit_kernels.py holds the compiler to it
};

struct Assessment {
  std::vector<std::pair<std::string, int64_t>> parts;  // shared memory by buffer, in order; they sum to shared_bytes
  int64_t shared_bytes = 0;
  int64_t resident_blocks = 0;           // an SM; 0 where refused
  std::optional<int64_t> kv_iterations;  // of a block over all keys (chunks, for gated delta); none without a seqlen
  Reason reason = Reason::kNone;
  std::string detail;  // where refused: one sentence with what is needed and what there is
  bool fits() const { return reason == Reason::kNone; }
};

const char* operation_name(PlanOperation operation);   // "attention_forward", "gated_delta_forward"
const char* algorithm_name(AlgorithmClass algorithm);  // "mma_sync_sm80", "wgmma_sm90"
const char* output_path_name(OutputPath path);         // "vector_store", "bulk_store"
const char* reason_name(Reason reason);                // "shared_memory_over_limit" ...; "" for kNone

AlgorithmClass algorithm_class(PlanOperation operation, const ArchProfile& arch);
OutputPath output_path(AlgorithmClass algorithm);

// The kernel table's row that is this candidate.
std::optional<KernelRow> find_kernel(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate);

// A block's threads, the warp that only copies included.
int64_t block_threads(const PlanProblem& problem, const Candidate& candidate);

// Blocks an SM holds at once; 0 where one block alone is over a limit. registers: a thread, where known.
int64_t resident_blocks(const ArchProfile& arch, int64_t shared_bytes, int64_t threads,
                        std::optional<int64_t> registers = std::nullopt);

// A kernel row as a candidate for a problem whose head sizes it holds.
Candidate row_candidate(const PlanProblem& problem, const ForwardConfig& config);
Candidate row_candidate(const GatedDeltaRecurrentConfig& config);

// Fills in block_v = 0 and stages = 0. All numbers of the problem and the candidate must be positive.
Candidate resolve(const PlanProblem& problem, Candidate candidate);
Assessment assess(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate);

// The kernels there are for these head dims and tiles there might be, resolved, in no order of merit.
std::vector<Candidate> table_candidates(const PlanProblem& problem);

// Indices of `candidates` from best to worst: what fits first, then by the rule of docs/planner.md. Stable.
std::vector<size_t> rank(const ArchProfile& arch, const PlanProblem& problem, const std::vector<Candidate>& candidates,
                         const std::vector<Assessment>& assessments);

}  // namespace flashdelta
