// From named tensors to the C ABI's argument structs. Views only: the maps in Call own all memory.
#include "io/call.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "core/problem.hpp"
#include "core/tensor_check.hpp"
#include "io/bound_call.hpp"

namespace flashdelta {
namespace {

constexpr std::array<std::pair<std::string_view, Operation>, 6> operation_names{{
    {"attention-forward", Operation::attention_forward},
    {"attention-backward", Operation::attention_backward},
    {"gated-delta-forward", Operation::gated_delta_forward},
    {"gated-delta-backward", Operation::gated_delta_backward},
    {"gdn-forward", Operation::gated_delta_forward},
    {"gdn-backward", Operation::gated_delta_backward},
}};

Status last_error(flashdelta_status code) {
  if (code == FLASHDELTA_OK) return {};
  return {code, flashdelta_last_error()};
}

HostTensor find(const TensorMap& tensors, const char* name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? HostTensor{} : found->second;
}

// The size of dimension i; 0 where there is no such dimension, so that an ill-formed tensor makes an empty output and
// reaches the check, which names it.
int64_t size_of(const HostTensor& t, size_t i) { return i < t.shape().size() ? t.shape()[i] : 0; }

bool is_index_list(const HostTensor& t) {
  return (t.dtype() == FLASHDELTA_INT32 || t.dtype() == FLASHDELTA_INT64) && !t.shape().empty();
}

class Builder {
 public:
  Builder(const TensorMap& tensors, Call* call) : tensors_(tensors), call_(call) {}

  // Moves the named tensors, those that are there, into the call.
  Status take(std::initializer_list<std::pair<const char*, flashdelta_tensor*>> fields) {
    for (const auto& [name, field] : fields) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) continue;
      if (found->second.shape().size() > FLASHDELTA_MAX_NDIM) {
        return invalid(name, fmt::format("at most {} dimensions", FLASHDELTA_MAX_NDIM),
                       std::to_string(found->second.shape().size()));
      }
      call_->inputs[name] = found->second;
      *field = found->second.view();
    }
    return {};
  }

  // An output that does not exist yet. The check reads no output, so memory comes after it: what the check refuses
  // costs nothing, however large its shape. Until then each view holds a pointer of its own that nobody follows; a
  // shape that is none leaves the view absent, and the check finds the input that it came from.
  void declare(const char* name, flashdelta_dtype dtype, const std::vector<int64_t>& shape, flashdelta_tensor* field) {
    static std::array<std::max_align_t, 3> placeholders;
    void* placeholder = &placeholders[declared_.size()];
    declared_.push_back({name, dtype, shape, field});
    if (flashdelta_tensor_contiguous(placeholder, dtype, static_cast<int32_t>(shape.size()), shape.data(), field) !=
        FLASHDELTA_OK) {
      *field = {};
    }
  }

  // Memory for all that was declared, zero-filled.
  Status allocate() {
    for (const Output& output : declared_) {
      try {
        HostTensor tensor(output.dtype, output.shape);
        tensor.fill_zero();
        *output.field = tensor.view();
        call_->outputs[output.name] = std::move(tensor);
      } catch (const std::bad_alloc&) {
        return {FLASHDELTA_OUT_OF_MEMORY, fmt::format("{}: no memory for a {} tensor of shape {}", output.name,
                                                      dtype_name(output.dtype), shape_text(*output.field))};
      }
    }
    return {};
  }

 private:
  struct Output {
    const char* name;
    flashdelta_dtype dtype;
    std::vector<int64_t> shape;
    flashdelta_tensor* field;
  };

  const TensorMap& tensors_;
  Call* call_;
  std::vector<Output> declared_;
};

flashdelta_execution cpu_execution() {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = FLASHDELTA_BACKEND_CPU;
  return execution;
}

Status make_attention(const TensorMap& tensors, const CallOptions& options, Call* call) {
  auto& args = call->attention;
  flashdelta_attention_forward_init(&args);
  Builder builder(tensors, call);
  FLASHDELTA_RETURN_IF_ERROR(builder.take({{"q", &args.q},
                                           {"k", &args.k},
                                           {"v", &args.v},
                                           {"sink", &args.sink},
                                           {"cu_seqlens_q", &args.cu_seqlens_q},
                                           {"cu_seqlens_k", &args.cu_seqlens_k},
                                           {"seqused_k", &args.seqused_k},
                                           {"cache_batch_idx", &args.cache_batch_idx},
                                           {"page_table", &args.page_table}}));
  if (options.scale) args.scale = *options.scale;
  args.softcap = options.softcap;
  args.window_left = options.window_left;
  args.window_right = options.window_right;
  args.causal = options.causal ? 1 : 0;

  const HostTensor q = find(call->inputs, "q"), v = find(call->inputs, "v");
  std::vector<int64_t> o_shape = q.shape();
  if (!o_shape.empty()) o_shape.back() = v.shape().empty() ? 0 : v.shape().back();
  const bool packed = args.cu_seqlens_q.dtype != FLASHDELTA_NONE;
  std::vector<int64_t> lse_shape{size_of(q, 1), size_of(q, 0)};
  if (!packed) lse_shape = {size_of(q, 0), size_of(q, 2), size_of(q, 1)};
  builder.declare("o", q.dtype(), o_shape, &args.o);
  builder.declare("lse", FLASHDELTA_FP32, lse_shape, &args.lse);
  const flashdelta_execution execution = cpu_execution();
  FLASHDELTA_RETURN_IF_ERROR(last_error(flashdelta_attention_forward_check(&args, &execution)));
  return builder.allocate();
}

// Slots that a pool without an initial state needs.
int64_t pool_slots(std::initializer_list<HostTensor> index_lists) {
  int64_t largest = -1;
  for (const HostTensor& list : index_lists) {
    if (!is_index_list(list)) continue;
    for (int64_t i = 0; i < list.numel(); i++) largest = std::max(largest, list.get_int(i));
  }
  return largest == std::numeric_limits<int64_t>::max() ? largest : largest + 1;
}

// What cu_seqlens claims is not checked yet: no length counts for more than the tokens that are there.
int64_t checkpoint_rows(const HostTensor& cu_seqlens, int64_t batch, int64_t tokens, int64_t every) {
  if (every <= 0) return 0;
  if (!cu_seqlens) return batch * (tokens / every);
  if (!is_index_list(cu_seqlens)) return 0;
  int64_t rows = 0;
  for (int64_t n = 0; n + 1 < cu_seqlens.numel(); n++) {
    const int64_t begin = std::clamp<int64_t>(cu_seqlens.get_int(n), 0, tokens);
    const int64_t end = std::clamp<int64_t>(cu_seqlens.get_int(n + 1), begin, tokens);
    rows += (end - begin) / every;
  }
  return std::min(rows, tokens / every);
}

void take_gated_delta_options(const CallOptions& options, flashdelta_gated_delta_forward_args* args) {
  if (options.scale) args->scale = *options.scale;
  args->beta_scale = options.beta_scale;
  args->decay_threshold = options.decay_threshold;
  args->checkpoint_every = options.checkpoint_every;
  args->chunk = options.chunk;
  args->qk_l2norm = options.l2norm ? 1 : 0;
  args->state_layout = options.state_layout;
  args->context_parallel = options.context_parallel;
}

struct StateShapes {
  flashdelta_dtype dtype = FLASHDELTA_FP32;
  std::vector<int64_t> final_state, checkpoints;
  bool copy_initial = false;
};

StateShapes state_shapes(const TensorMap& inputs, const CallOptions& options) {
  const HostTensor k = find(inputs, "k"), v = find(inputs, "v");
  const HostTensor initial = find(inputs, "initial_state"), cu_seqlens = find(inputs, "cu_seqlens");
  const HostTensor initial_indices = find(inputs, "initial_state_indices"),
                   final_indices = find(inputs, "final_state_indices");
  const HostTensor token_indices = find(inputs, "token_state_indices");
  StateShapes shapes;
  if (initial.dtype() == FLASHDELTA_BF16) shapes.dtype = FLASHDELTA_BF16;
  std::vector<int64_t> tail{size_of(v, 2), size_of(k, 3), size_of(v, 3)};
  if (options.state_layout == FLASHDELTA_STATE_VK) std::swap(tail[1], tail[2]);
  const auto with_rows = [&](int64_t rows) { return std::vector<int64_t>{rows, tail[0], tail[1], tail[2]}; };
  const int64_t sequences = cu_seqlens ? std::max<int64_t>(size_of(cu_seqlens, 0) - 1, 0) : size_of(k, 0);
  const bool pool = initial_indices || final_indices || token_indices;
  shapes.copy_initial = pool && initial;
  int64_t slots = sequences;
  if (pool) {
    slots = size_of(initial, 0);
    // An initial_state that is no pool itself has one slot a sequence, and the final pool may need more.
    if (!initial_indices && !find(inputs, "num_accepted_tokens")) {
      slots = std::max(slots, pool_slots({final_indices, token_indices}));
    }
  }
  shapes.final_state = with_rows(slots);
  shapes.checkpoints = with_rows(checkpoint_rows(cu_seqlens, size_of(k, 0), size_of(k, 1), options.checkpoint_every));
  return shapes;
}

Status make_gated_delta(const TensorMap& tensors, const CallOptions& options, Call* call) {
  auto& args = call->gated_delta;
  flashdelta_gated_delta_forward_init(&args);
  Builder builder(tensors, call);
  FLASHDELTA_RETURN_IF_ERROR(builder.take({{"q", &args.q},
                                           {"k", &args.k},
                                           {"v", &args.v},
                                           {"g", &args.g},
                                           {"beta", &args.beta},
                                           {"A_log", &args.A_log},
                                           {"a", &args.a},
                                           {"dt_bias", &args.dt_bias},
                                           {"b", &args.b},
                                           {"cu_seqlens", &args.cu_seqlens},
                                           {"initial_state", &args.initial_state},
                                           {"initial_state_indices", &args.initial_state_indices},
                                           {"final_state_indices", &args.final_state_indices},
                                           {"token_state_indices", &args.token_state_indices},
                                           {"num_accepted_tokens", &args.num_accepted_tokens}}));
  take_gated_delta_options(options, &args);

  const StateShapes states = state_shapes(call->inputs, options);
  builder.declare("o", args.q.dtype, find(call->inputs, "v").shape(), &args.o);
  builder.declare("final_state", states.dtype, states.final_state, &args.final_state);
  if (options.checkpoint_every != 0) {
    builder.declare("checkpoints", states.dtype, states.checkpoints, &args.checkpoints);
  }
  const flashdelta_execution execution = cpu_execution();
  FLASHDELTA_RETURN_IF_ERROR(last_error(flashdelta_gated_delta_forward_check(&args, &execution)));
  FLASHDELTA_RETURN_IF_ERROR(builder.allocate());
  if (states.copy_initial) {
    std::memcpy(args.final_state.data, args.initial_state.data, find(call->inputs, "initial_state").bytes());
  }
  return {};
}

double visible_pairs(const AttentionProblem& problem) {
  double pairs = 0;
  for (int64_t b = 0; b < problem.batch; b++) {
    const int64_t queries = problem.queries(b).length, keys = problem.keys(b).length;
    for (int64_t i = 0; i < queries; i++) {
      const auto seen = problem.visible(i + keys - queries, keys);
      pairs += static_cast<double>(seen.last - seen.first);
    }
  }
  return pairs;
}

}  // namespace

std::optional<Operation> parse_operation(std::string_view name) {
  for (const auto& [text, operation] : operation_names) {
    if (text == name) return operation;
  }
  return std::nullopt;
}

std::string_view operation_name(Operation operation) { return operation_names[static_cast<size_t>(operation)].first; }

Status make_call(Operation operation, const TensorMap& tensors, const CallOptions& options, Call* call) {
  *call = Call{};
  call->operation = operation;
  switch (operation) {
    case Operation::attention_forward: return make_attention(tensors, options, call);
    case Operation::gated_delta_forward: return make_gated_delta(tensors, options, call);
    default: return not_supported(fmt::format("{}: only the forward operations run", operation_name(operation)));
  }
}

Status run_call(Call& call, const flashdelta_execution& execution) {
  BoundCall bound;
  FLASHDELTA_RETURN_IF_ERROR(bound.bind(call, execution));
  FLASHDELTA_RETURN_IF_ERROR(bound.run());
  return bound.fetch();
}

// Attention: two products a visible pair of query and key, as the field counts them (exact under any mask). The delta
// rule: the three products of a token with the state, whatever a chunked kernel really does.
CallCost call_cost(const Call& call) {
  CallCost cost;
  if (call.operation == Operation::attention_forward) {
    AttentionProblem problem;
    if (!make_problem(call.attention, &problem).ok()) return cost;
    cost.flops =
        2.0 * static_cast<double>((problem.head_dim + problem.head_dim_v) * problem.heads_q) * visible_pairs(problem);
  } else {
    GatedDeltaProblem problem;
    if (!make_problem(call.gated_delta, &problem).ok()) return cost;
    double tokens = 0;
    for (int64_t n = 0; n < problem.sequences; n++) {
      if (!problem.skipped(n)) tokens += static_cast<double>(problem.sequence(n).length);
    }
    cost.flops = 6.0 * static_cast<double>(problem.heads_v * problem.dim_k * problem.dim_v) * tokens;
  }
  for (const auto* tensors : {&call.inputs, &call.outputs}) {
    for (const auto& [name, tensor] : *tensors) cost.bytes += static_cast<double>(tensor.bytes());
  }
  return cost;
}

}  // namespace flashdelta
