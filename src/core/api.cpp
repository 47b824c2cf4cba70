// The C boundary: no exception, no print, nothing but a status and this thread's last sentence leaves here.
#include <string>
#include <type_traits>

#include "core/api_guard.hpp"
#include "core/backends.hpp"

namespace flashdelta {
namespace {

thread_local std::string last_error;  // NOLINT: one sentence a thread is what the header promises

}  // namespace

flashdelta_status report(const Status& status) {
  if (!status.ok()) {
    try {
      last_error = status.message;
    } catch (...) {
      last_error.clear();
    }
  }
  return status.code;
}

namespace {

// Descriptors, execution and, where the backend's tensors are host memory, contents.
template <typename Args, typename Problem>
Status prepare(const Args* args, const flashdelta_execution* execution, Problem* problem, const Backend** backend) {
  FLASHDELTA_RETURN_IF_ERROR(require("args", args));
  FLASHDELTA_RETURN_IF_ERROR(require("execution", execution));
  FLASHDELTA_RETURN_IF_ERROR(check_execution(*execution));
  FLASHDELTA_RETURN_IF_ERROR(make_problem(*args, problem));
  FLASHDELTA_RETURN_IF_ERROR(choose_backend(*execution, *problem, backend));
  return (*backend)->host_memory ? check_contents(*args, *problem) : check_host_lengths(*args, *problem);
}

template <typename Args>
using ProblemOf =
    std::conditional_t<std::is_same_v<Args, flashdelta_attention_forward_args>, AttentionProblem, GatedDeltaProblem>;

template <typename Args>
flashdelta_status check(const Args* args, const flashdelta_execution* execution) {
  return guarded([&]() -> Status {
    ProblemOf<Args> problem;
    const Backend* backend = nullptr;
    return prepare(args, execution, &problem, &backend);
  });
}

template <typename Args>
flashdelta_status workspace_size(const Args* args, const flashdelta_execution* execution, size_t* bytes) {
  return guarded([&]() -> Status {
    FLASHDELTA_RETURN_IF_ERROR(require("bytes", bytes));
    ProblemOf<Args> problem;
    const Backend* backend = nullptr;
    FLASHDELTA_RETURN_IF_ERROR(prepare(args, execution, &problem, &backend));
    FLASHDELTA_RETURN_IF_ERROR(backend->prepare(problem, *execution));
    return backend->workspace(problem, *execution, bytes);
  });
}

template <typename Args>
flashdelta_status run(const Args* args, const flashdelta_execution* execution, void* workspace,
                      size_t workspace_bytes) {
  return guarded([&]() -> Status {
    ProblemOf<Args> problem;
    const Backend* backend = nullptr;
    FLASHDELTA_RETURN_IF_ERROR(prepare(args, execution, &problem, &backend));
    size_t needed = 0;
    FLASHDELTA_RETURN_IF_ERROR(backend->workspace(problem, *execution, &needed));
    if (workspace_bytes < needed) {
      return {FLASHDELTA_WORKSPACE_TOO_SMALL,
              fmt::format("workspace: expected at least {} bytes, got {}", needed, workspace_bytes)};
    }
    if (needed > 0) {
      FLASHDELTA_RETURN_IF_ERROR(require("workspace", workspace));
      if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
        return invalid("workspace", "memory aligned to 256 bytes", fmt::format("{}", workspace));
      }
    }
    return backend->run(problem, *execution, workspace);
  });
}

flashdelta_status no_backward(std::string_view operation) {
  return guarded([&] {
    return not_supported(fmt::format(
        "{}: not supported on any backend (cpu, cuda, emulator); only the forward operations are there", operation));
  });
}

template <typename Args>
void init_forward(Args* args) {
  if (args == nullptr) return;
  *args = Args{};
  args->struct_size = sizeof(Args);
  args->scale = NAN;
}

}  // namespace

Status check_execution(const flashdelta_execution& e) {
  if (e.struct_size != sizeof(flashdelta_execution)) {
    return invalid("execution.struct_size", std::to_string(sizeof(flashdelta_execution)),
                   std::to_string(e.struct_size));
  }
  const auto backend = static_cast<int32_t>(e.backend);
  if (backend < FLASHDELTA_BACKEND_AUTO || backend > FLASHDELTA_BACKEND_EMULATOR) {
    return invalid("execution.backend", "0 (auto), 1 (cpu), 2 (cuda) or 3 (emulator)", std::to_string(backend));
  }
  if (e.device < 0) return invalid("execution.device", "0 or above", std::to_string(e.device));
  if (e.num_threads < 0) return invalid("execution.num_threads", "0 or above", std::to_string(e.num_threads));
  if (e.arch != 0 && find_arch(e.arch) == nullptr) {
    return invalid("execution.arch", "0, 80, 86, 89, 90, 100, 120 or 121", std::to_string(e.arch));
  }
  return {};
}

}  // namespace flashdelta

using namespace flashdelta;

extern "C" {

flashdelta_status flashdelta_tensor_contiguous(void* data, flashdelta_dtype dtype, int32_t ndim, const int64_t* shape,
                                               flashdelta_tensor* out) {
  return guarded([&]() -> Status {
    FLASHDELTA_RETURN_IF_ERROR(require("out", out));
    if (ndim < 0 || ndim > FLASHDELTA_MAX_NDIM) return invalid("ndim", "0 to 5", std::to_string(ndim));
    if (ndim > 0) FLASHDELTA_RETURN_IF_ERROR(require("shape", shape));
    if (dtype_size(dtype) == 0) return invalid("dtype", "1 to 5", std::to_string(static_cast<int32_t>(dtype)));
    flashdelta_tensor t{};
    t.data = data;
    t.dtype = dtype;
    t.ndim = ndim;
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
      if (shape[i] < 0) return invalid("shape", "sizes that are not negative", std::to_string(shape[i]));
      t.shape[i] = shape[i];
      t.strides[i] = stride;
      if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[i], 1), &stride)) {
        return invalid("shape", "an element count under 2^63", "an overflow");
      }
    }
    *out = t;
    return {};
  });
}

void flashdelta_attention_forward_init(flashdelta_attention_forward_args* args) {
  init_forward(args);
  if (args != nullptr) args->window_left = args->window_right = -1;
}

flashdelta_status flashdelta_attention_forward_check(const flashdelta_attention_forward_args* args,
                                                     const flashdelta_execution* execution) {
  return check(args, execution);
}

flashdelta_status flashdelta_attention_forward_workspace(const flashdelta_attention_forward_args* args,
                                                         const flashdelta_execution* execution, size_t* bytes) {
  return workspace_size(args, execution, bytes);
}

flashdelta_status flashdelta_attention_forward(const flashdelta_attention_forward_args* args,
                                               const flashdelta_execution* execution, void* workspace,
                                               size_t workspace_bytes) {
  return run(args, execution, workspace, workspace_bytes);
}

void flashdelta_gated_delta_forward_init(flashdelta_gated_delta_forward_args* args) {
  init_forward(args);
  if (args == nullptr) return;
  args->beta_scale = 1;
  args->decay_threshold = -9;
  args->context_parallel = FLASHDELTA_CONTEXT_PARALLEL_EXACT;
}

flashdelta_status flashdelta_gated_delta_forward_check(const flashdelta_gated_delta_forward_args* args,
                                                       const flashdelta_execution* execution) {
  return check(args, execution);
}

flashdelta_status flashdelta_gated_delta_forward_workspace(const flashdelta_gated_delta_forward_args* args,
                                                           const flashdelta_execution* execution, size_t* bytes) {
  return workspace_size(args, execution, bytes);
}

flashdelta_status flashdelta_gated_delta_forward(const flashdelta_gated_delta_forward_args* args,
                                                 const flashdelta_execution* execution, void* workspace,
                                                 size_t workspace_bytes) {
  return run(args, execution, workspace, workspace_bytes);
}

void flashdelta_attention_backward_init(flashdelta_attention_backward_args* args) {
  if (args == nullptr) return;
  *args = {};
  args->struct_size = sizeof(*args);
  flashdelta_attention_forward_init(&args->forward);
}

void flashdelta_gated_delta_backward_init(flashdelta_gated_delta_backward_args* args) {
  if (args == nullptr) return;
  *args = {};
  args->struct_size = sizeof(*args);
  flashdelta_gated_delta_forward_init(&args->forward);
}

flashdelta_status flashdelta_attention_backward_workspace(const flashdelta_attention_backward_args*,
                                                          const flashdelta_execution*, size_t*) {
  return no_backward("attention_backward");
}

flashdelta_status flashdelta_attention_backward(const flashdelta_attention_backward_args*, const flashdelta_execution*,
                                                void*, size_t) {
  return no_backward("attention_backward");
}

flashdelta_status flashdelta_gated_delta_backward_workspace(const flashdelta_gated_delta_backward_args*,
                                                            const flashdelta_execution*, size_t*) {
  return no_backward("gated_delta_backward");
}

flashdelta_status flashdelta_gated_delta_backward(const flashdelta_gated_delta_backward_args*,
                                                  const flashdelta_execution*, void*, size_t) {
  return no_backward("gated_delta_backward");
}

const char* flashdelta_version(void) { return FLASHDELTA_VERSION_STRING; }

const char* flashdelta_last_error(void) { return last_error.c_str(); }

const char* flashdelta_status_name(flashdelta_status status) {
  switch (status) {
    case FLASHDELTA_OK: return "OK";
    case FLASHDELTA_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case FLASHDELTA_NOT_SUPPORTED: return "NOT_SUPPORTED";
    case FLASHDELTA_WORKSPACE_TOO_SMALL: return "WORKSPACE_TOO_SMALL";
    case FLASHDELTA_DEVICE_ERROR: return "DEVICE_ERROR";
    case FLASHDELTA_CANCELLED: return "CANCELLED";
    case FLASHDELTA_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case FLASHDELTA_INTERNAL_ERROR: return "INTERNAL_ERROR";
    default: return "UNKNOWN";
  }
}

flashdelta_status flashdelta_backend_available(flashdelta_backend backend) {
  return guarded([&]() -> Status {
    flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
    execution.backend = backend;
    FLASHDELTA_RETURN_IF_ERROR(check_execution(execution));
    return backend_available(backend);
  });
}

}  // extern "C"
