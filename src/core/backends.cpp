#include "core/backends.hpp"

#include "cpu/cpu.hpp"
#if FLASHDELTA_GPU
#include "device/gpu_backends.hpp"
#endif

namespace flashdelta {
namespace {

constexpr Backend cpu_backend = {
    FLASHDELTA_BACKEND_CPU,
    "cpu",
    true,
    [](const AttentionProblem&) { return Status{}; },
    [](const GatedDeltaProblem&) { return Status{}; },
    nullptr,
    nullptr,
    [](const AttentionProblem& p, const flashdelta_execution& e, size_t* bytes) {
      *bytes = cpu::attention_forward_workspace(p, cpu::thread_count(e));
      return Status{};
    },
    [](const GatedDeltaProblem& p, const flashdelta_execution& e, size_t* bytes) {
      *bytes = cpu::gated_delta_forward_workspace(p, cpu::thread_count(e));
      return Status{};
    },
    cpu::attention_forward,
    cpu::gated_delta_forward,
};

#if FLASHDELTA_GPU
const Backend& backend_of(flashdelta_backend id, const void* q) {
  if (id == FLASHDELTA_BACKEND_EMULATOR) return emulator_backend;
  if (id == FLASHDELTA_BACKEND_CUDA) return cuda_backend;
  return id == FLASHDELTA_BACKEND_AUTO && is_device_memory(q) ? cuda_backend : cpu_backend;
}
#else
const Backend& backend_of(flashdelta_backend, const void*) { return cpu_backend; }
#endif

template <typename Problem>
Status choose(const flashdelta_execution& execution, const Problem& problem, const Backend** chosen) {
  const Backend& backend = backend_of(execution.backend, problem.q.data);
  FLASHDELTA_RETURN_IF_ERROR(
      backend_available(execution.backend == FLASHDELTA_BACKEND_AUTO ? backend.id : execution.backend));
  FLASHDELTA_RETURN_IF_ERROR(backend.supports(problem));
  *chosen = &backend;
  return {};
}

}  // namespace

Status backend_available(flashdelta_backend backend) {
  if (backend == FLASHDELTA_BACKEND_AUTO || backend == FLASHDELTA_BACKEND_CPU) return {};
#if FLASHDELTA_GPU
  return backend == FLASHDELTA_BACKEND_CUDA ? cuda_available() : emulator_available();
#else
  return not_supported(fmt::format("{}: this build had no nvcc and has no GPU kernels; cpu is there",
                                   backend == FLASHDELTA_BACKEND_CUDA ? "cuda" : "emulator"));
#endif
}

Status choose_backend(const flashdelta_execution& execution, const AttentionProblem& problem, const Backend** backend) {
  return choose(execution, problem, backend);
}

Status choose_backend(const flashdelta_execution& execution, const GatedDeltaProblem& problem,
                      const Backend** backend) {
  return choose(execution, problem, backend);
}

}  // namespace flashdelta
