#include "core/backends.hpp"

#include "cpu/cpu.hpp"

namespace flashdelta {
namespace {

constexpr Backend kCpu = {
    FLASHDELTA_BACKEND_CPU,
    "cpu",
    true,
    [](const AttentionProblem&) { return Status{}; },
    [](const GatedDeltaProblem&) { return Status{}; },
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

// In the order that auto tries them.
constexpr const Backend* kBackends[] = {&kCpu};

template <typename Problem>
Status choose(const flashdelta_execution& execution, const Problem& problem, const Backend** chosen) {
  const bool any = execution.backend == FLASHDELTA_BACKEND_AUTO;
  if (!any) FLASHDELTA_RETURN_IF_ERROR(backend_available(execution.backend));
  Status last;
  for (const Backend* backend : kBackends) {
    if (any ? !backend_available(backend->id).ok() : backend->id != execution.backend) continue;
    last = backend->supports(problem);
    if (!last.ok()) continue;
    *chosen = backend;
    return {};
  }
  return last;
}

}  // namespace

Status backend_available(flashdelta_backend backend) {
  switch (backend) {
    case FLASHDELTA_BACKEND_AUTO:
    case FLASHDELTA_BACKEND_CPU: return {};
    case FLASHDELTA_BACKEND_CUDA: return not_supported("cuda: this build has no GPU kernels; cpu is there");
    default: return not_supported("emulator: this build has no GPU kernels to emulate; cpu is there");
  }
}

Status choose_backend(const flashdelta_execution& execution, const AttentionProblem& problem, const Backend** backend) {
  return choose(execution, problem, backend);
}

Status choose_backend(const flashdelta_execution& execution, const GatedDeltaProblem& problem,
                      const Backend** backend) {
  return choose(execution, problem, backend);
}

}  // namespace flashdelta
