#include "plan/plan.hpp"

#include <algorithm>
#include <array>

#include "core/numeric.hpp"
#include "cuda/gated_delta/recurrent_rows.hpp"
#include "plan/kernel_rows.hpp"
#include "plan/shared_memory.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kFragment = 16;  // rows of an mma.sync tile

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Refusal {
  Reason reason = Reason::kNone;
  std::string detail;
};

Refusal not_multiple(Reason reason, std::string_view name, int64_t value, int64_t of) {
  return {reason, fmt::format("{} is {}, which is no multiple of {}", name, value, of)};
}

Refusal over(Reason reason, std::string_view name, int64_t value, std::string_view whose, int64_t limit) {
  return {reason, fmt::format("{} is {}, over {} {}", name, value, whose, limit)};
}

Refusal refuse_dims(const PlanProblem& problem) {
  if (dtype_size(problem.dtype) != 2) {
    return {Reason::kDtypeNot16Bit, fmt::format("dtype {} has {} bits, the tensor cores' tiles 16",
                                                dtype_name(problem.dtype), 8 * dtype_size(problem.dtype))};
  }
  if (problem.head_dim % 8 != 0) {
    return not_multiple(Reason::kHeadDimNotMultipleOf8, "head_dim", problem.head_dim, 8);
  }
  if (problem.head_dim_v % 8 != 0) {
    return not_multiple(Reason::kHeadDimVNotMultipleOf8, "head_dim_v", problem.head_dim_v, 8);
  }
  const int64_t limit = problem.operation == PlanOperation::kAttentionForward ? 512 : 256;
  if (problem.head_dim > limit) {
    return over(Reason::kHeadDimOverLimit, "head_dim", problem.head_dim, "the operation's", limit);
  }
  if (problem.head_dim_v > limit) {
    return over(Reason::kHeadDimVOverLimit, "head_dim_v", problem.head_dim_v, "the operation's", limit);
  }
  return {};
}

// The gated delta rule token by token: a chunk of one token.
bool is_recurrent(const PlanProblem& problem, const Candidate& candidate) {
  return problem.operation == PlanOperation::kGatedDeltaForward && candidate.block_q == 1 && candidate.block_kv == 1;
}

Refusal refuse_block(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate) {
  if (candidate.block_kv % kFragment != 0 && !is_recurrent(problem, candidate)) {
    return not_multiple(Reason::kBlockKvNotMultipleOf16, "block_kv", candidate.block_kv, kFragment);
  }
  if (candidate.threads % kWarp != 0) {
    return not_multiple(Reason::kThreadsNotMultipleOf32, "threads", candidate.threads, kWarp);
  }
  if (const int64_t threads = block_threads(problem, candidate); threads > arch.threads_block) {
    return over(Reason::kThreadsOverBlockLimit, "threads", threads, "a block's", arch.threads_block);
  }
  return {};
}

Refusal refuse_attention(const PlanProblem& problem, const Candidate& candidate) {
  // A warp owns whole groups of 16 query rows, so block_q is a multiple of 16 * warps = threads / 2.
  if (2 * candidate.block_q % candidate.threads != 0) {
    return not_multiple(Reason::kBlockQNotMultipleOfWarpRows, "2 * block_q", 2 * candidate.block_q, candidate.threads);
  }
  if (candidate.block_v % 8 != 0) {
    return not_multiple(Reason::kBlockVNotMultipleOf8, "block_v", candidate.block_v, 8);
  }
  if (candidate.block_v > problem.head_dim_v && candidate.padded_head_dim == 0) {
    return over(Reason::kBlockVOverHeadDimV, "block_v", candidate.block_v, "head_dim_v", problem.head_dim_v);
  }
  return {};
}

Refusal refuse_gated_delta(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate) {
  const int64_t warps = candidate.threads / kWarp;
  if (candidate.block_q != candidate.block_kv) {
    return {Reason::kBlockQNotBlockKv, fmt::format("block_q is {} and block_kv {}, but both are the chunk",
                                                   candidate.block_q, candidate.block_kv)};
  }
  if (candidate.q_in_registers) {
    return {Reason::kQInRegisters, "q_in_registers is 1, but 0 is all there is: every warp reads Q from shared memory"};
  }
  if (candidate.stages < 2 && !is_recurrent(problem, candidate)) {
    return {Reason::kStagesUnderTwo,
            fmt::format("stages is {}, but a chunk is loaded while another is computed on: 2", candidate.stages)};
  }
  if (candidate.block_v % (kFragment * warps) != 0) {
    return not_multiple(Reason::kBlockVNotMultipleOfWarps, "block_v", candidate.block_v, kFragment * warps);
  }
  const int64_t registers = gated_delta_state_registers(candidate.block_v / warps, problem.head_dim);
  if (registers > arch.registers_thread) {
    return over(Reason::kStateOverRegisters, "the state's share of a thread's registers", registers, "the limit of",
                arch.registers_thread);
  }
  return {};
}

Refusal refuse(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate, int64_t shared_bytes) {
  if (Refusal refusal = refuse_dims(problem); refusal.reason != Reason::kNone) return refusal;
  if (Refusal refusal = refuse_block(arch, problem, candidate); refusal.reason != Reason::kNone) return refusal;
  Refusal refusal = problem.operation == PlanOperation::kAttentionForward
                        ? refuse_attention(problem, candidate)
                        : refuse_gated_delta(arch, problem, candidate);
  if (refusal.reason != Reason::kNone) return refusal;
  if (shared_bytes > arch.shared_bytes_block) {
    return {Reason::kSharedMemoryOverLimit,
            fmt::format("needs {} bytes of shared memory ({:.1f} KiB), over the {} ({:.1f} KiB) of a block on {}",
                        shared_bytes, shared_bytes / 1024.0, arch.shared_bytes_block, arch.shared_bytes_block / 1024.0,
                        arch.name)};
  }
  return {};
}

void size_buffers(const PlanProblem& problem, const Candidate& candidate, Assessment* assessment) {
  const int64_t element_bytes = dtype_size(problem.dtype);
  if (problem.operation == PlanOperation::kAttentionForward) {
    const AttentionSharedBytes bytes =
        attention_shared_bytes({candidate.block_q, candidate.block_kv, candidate.block_v,
                                std::max(problem.head_dim, candidate.padded_head_dim), candidate.stages, element_bytes,
                                candidate.q_in_registers});
    assessment->shared_bytes = bytes.total();
    assessment->parts = {{"q", bytes.q}, {"k", bytes.k}, {"v", bytes.v}};
    if (bytes.q_before_v) assessment->parts = {{"q_or_v", bytes.q_or_v()}, {"k", bytes.k}};
    return;
  }
  if (is_recurrent(problem, candidate)) {
    assessment->shared_bytes = gated_delta_recurrent_shared_bytes(static_cast<int>(candidate.block_v),
                                                                  static_cast<int>(candidate.threads / kWarp));
    assessment->parts = {{"sums", assessment->shared_bytes}};
    return;
  }
  const GatedDeltaSharedBytes bytes = gated_delta_shared_bytes(
      {candidate.block_kv, candidate.block_v, problem.head_dim, candidate.stages, element_bytes});
  assessment->shared_bytes = bytes.total();
  assessment->parts = {{"k", bytes.k},
                       {"q", bytes.q},
                       {"v", bytes.v},
                       {"t", bytes.t},
                       {"p", bytes.p},
                       {"gate", bytes.gate},
                       {"barriers", bytes.barriers},
                       {"padding", bytes.padding}};
}

}  // namespace

const char* operation_name(PlanOperation operation) {
  return operation == PlanOperation::kAttentionForward ? "attention_forward" : "gated_delta_forward";
}

const char* algorithm_name(AlgorithmClass algorithm) {
  return algorithm == AlgorithmClass::kMmaSyncSm80 ? "mma_sync_sm80" : "wgmma_sm90";
}

const char* output_path_name(OutputPath path) {
  return path == OutputPath::kVectorStore ? "vector_store" : "bulk_store";
}

const char* reason_name(Reason reason) {
  switch (reason) {
    case Reason::kNone: return "";
    case Reason::kDtypeNot16Bit: return "dtype_not_16_bit";
    case Reason::kHeadDimNotMultipleOf8: return "head_dim_not_multiple_of_8";
    case Reason::kHeadDimVNotMultipleOf8: return "head_dim_v_not_multiple_of_8";
    case Reason::kHeadDimOverLimit: return "head_dim_over_limit";
    case Reason::kHeadDimVOverLimit: return "head_dim_v_over_limit";
    case Reason::kBlockKvNotMultipleOf16: return "block_kv_not_multiple_of_16";
    case Reason::kThreadsNotMultipleOf32: return "threads_not_multiple_of_32";
    case Reason::kThreadsOverBlockLimit: return "threads_over_block_limit";
    case Reason::kBlockQNotMultipleOfWarpRows: return "block_q_not_multiple_of_warp_rows";
    case Reason::kBlockVNotMultipleOf8: return "block_v_not_multiple_of_8";
    case Reason::kBlockVOverHeadDimV: return "block_v_over_head_dim_v";
    case Reason::kBlockQNotBlockKv: return "block_q_not_block_kv";
    case Reason::kBlockVNotMultipleOfWarps: return "block_v_not_multiple_of_warps";
    case Reason::kStagesUnderTwo: return "stages_under_two";
    case Reason::kQInRegisters: return "q_in_registers";
    case Reason::kStateOverRegisters: return "state_over_registers";
    case Reason::kSharedMemoryOverLimit: return "shared_memory_over_limit";
  }
  return "unknown";
}

// All rows of today run on every architecture from SM80 up; a kernel of another class brings its condition here.
AlgorithmClass algorithm_class(PlanOperation, const ArchProfile&) { return AlgorithmClass::kMmaSyncSm80; }

OutputPath output_path(AlgorithmClass algorithm) {
  return algorithm == AlgorithmClass::kWgmmaSm90 ? OutputPath::kBulkStore : OutputPath::kVectorStore;
}

std::optional<KernelRow> find_kernel(const ArchProfile&, const PlanProblem& problem, const Candidate& candidate) {
  if (problem.operation == PlanOperation::kGatedDeltaForward) {
    const auto matches = [&](const GatedDeltaForwardConfig& c) {
      const Candidate tile{gated_delta_chunk, gated_delta_chunk, c.block_v, 32 * c.warps, c.stages, false};
      return is_element(c.element, problem.dtype) && c.dim_k == problem.head_dim && tile == candidate;
    };
    for (const auto& row : gated_delta_forward_rows) {
      if (matches(row.config)) return KernelRow{row.name, row.register_ceiling};
    }
    for (const auto& row : gated_delta_wide_rows) {
      if (matches(row.config.wide)) return KernelRow{row.name, row.register_ceiling};
    }
    const auto* row = is_recurrent(problem, candidate) ? recurrent_row_for(problem.dtype, problem.head_dim) : nullptr;
    if (row == nullptr || candidate != row_candidate(row->config)) return std::nullopt;
    return KernelRow{row->name, row->register_ceiling};
  }
  for (const ForwardRow* row : forward_rows_for(problem.dtype, problem.head_dim, problem.head_dim_v)) {
    if (row_candidate(problem, row->config) == candidate) return KernelRow{row->name, row->register_ceiling};
  }
  return std::nullopt;
}

int64_t resident_blocks(const ArchProfile& arch, int64_t shared_bytes, int64_t threads,
                        std::optional<int64_t> registers) {
  if (shared_bytes > arch.shared_bytes_block || threads > arch.threads_block) return 0;
  const int64_t warps = ceil_div(threads, kWarp);
  int64_t blocks = std::min(arch.blocks_sm, arch.threads_sm / (warps * kWarp));
  const int64_t granted = ceil_div(shared_bytes, 128) * 128;  // given out in units of 128 bytes
  blocks = std::min(blocks, arch.shared_bytes_sm / (granted + arch.shared_bytes_reserved));
  if (registers) {
    if (*registers > arch.registers_thread) return 0;
    // Given out to a warp in units of 256, and each quarter of an SM gives its own warps theirs.
    const int64_t registers_warp = ceil_div(std::max<int64_t>(*registers, 1) * kWarp, 256) * 256;
    blocks = std::min(blocks, 4 * (arch.registers_sm / 4 / registers_warp) / warps);
  }
  return blocks;
}

int64_t block_threads(const PlanProblem& problem, const Candidate& candidate) {
  const bool copies = problem.operation == PlanOperation::kGatedDeltaForward && !is_recurrent(problem, candidate);
  return candidate.threads + (copies ? kWarp : 0);
}

Candidate resolve(const PlanProblem& problem, Candidate candidate) {
  if (candidate.block_v == 0) candidate.block_v = problem.head_dim_v;
  if (candidate.stages == 0) candidate.stages = problem.operation == PlanOperation::kAttentionForward ? 1 : 2;
  return candidate;
}

Assessment assess(const ArchProfile& arch, const PlanProblem& problem, const Candidate& given) {
  const Candidate candidate = resolve(problem, given);
  Assessment assessment;
  size_buffers(problem, candidate, &assessment);
  if (problem.seqlen) assessment.kv_iterations = ceil_div(*problem.seqlen, candidate.block_kv);
  Refusal refusal = refuse(arch, problem, candidate, assessment.shared_bytes);
  assessment.reason = refusal.reason;
  assessment.detail = std::move(refusal.detail);
  if (assessment.fits()) {
    const std::optional<KernelRow> kernel = find_kernel(arch, problem, candidate);
    assessment.resident_blocks = resident_blocks(arch, assessment.shared_bytes, block_threads(problem, candidate),
                                                 kernel ? std::optional<int64_t>(kernel->registers) : std::nullopt);
  }
  return assessment;
}

}  // namespace flashdelta
