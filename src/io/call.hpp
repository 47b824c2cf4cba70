// From named tensors and options to a call of the C ABI, and from its outputs to a verdict. The command line, the tests
// and the benchmarks all go this way.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "io/tensors.hpp"

namespace flashdelta {

enum class Operation { attention_forward, attention_backward, gated_delta_forward, gated_delta_backward };

// "attention-forward", ...; gdn-forward and gdn-backward are other names of the last two.
std::optional<Operation> parse_operation(std::string_view name);
std::string_view operation_name(Operation operation);

// What the command line's flags say. The defaults are the library's.
struct CallOptions {
  std::optional<double> scale;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0;
  bool l2norm = false;
  flashdelta_state_layout state_layout = FLASHDELTA_STATE_KV;
  int chunk = 0;
  flashdelta_context_parallel context_parallel = FLASHDELTA_CONTEXT_PARALLEL_EXACT;
  double decay_threshold = -9;
  double beta_scale = 1;
  int64_t checkpoint_every = 0;
};

// A forward call, ready to run. inputs keeps the memory alive that the argument struct points to.
struct Call {
  Operation operation = Operation::attention_forward;
  TensorMap inputs;
  TensorMap outputs;  // o and lse; o, final_state and, with checkpoint_every, checkpoints
  flashdelta_attention_forward_args attention{};
  flashdelta_gated_delta_forward_args gated_delta{};
};

// Takes the tensors that the operation reads by name (flashdelta.h's argument names) and ignores the others; allocates
// the outputs, all zero (a final_state that is a pool starts as a copy of initial_state). INVALID_ARGUMENT: a required
// tensor is missing, both forms of gate or beta are there, or the C ABI's check refuses.
Status make_call(Operation operation, const TensorMap& tensors, const CallOptions& options, Call* call);

// Workspace query and run, on workspace of its own, in the memory of the backend (bound_call.hpp).
Status run_call(Call& call, const flashdelta_execution& execution);

// One output against the oracle.
struct OutputError {
  std::string name;
  double relative_l2 = 0;  // of lse: the largest |difference| - 1e-5 |expected|
  double tolerance = 0;
  int64_t rows_checked = 0, rows = 0;
  std::string fault;  // "": right; else what is wrong, in words (NaN, infinities differ, error over tolerance)
};

// Compares what a run wrote with the oracle. Above a size it samples: rows of attention, heads and sequences of the
// delta rule, by `seed`, always with the first and last in it. Tolerances, by q's dtype: relative L2 6e-3 bf16, 1e-3
// fp16, 1e-4 fp32; lse 2e-3 + 1e-5 |lse|; infinities must match, NaN is always wrong.
Status check_call(const Call& call, uint64_t seed, std::vector<OutputError>* errors);

// Arithmetic of the call, counted as the field counts it, for TFLOP/s; and the bytes of inputs and outputs.
struct CallCost {
  double flops = 0, bytes = 0;
};
CallCost call_cost(const Call& call);

}  // namespace flashdelta
