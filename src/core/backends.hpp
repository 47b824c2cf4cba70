// The backends as a table: what each needs, and how a call is handed over.
#pragma once

#include "core/problem.hpp"
#include "core/profiles.hpp"

namespace flashdelta {

struct Backend {
  flashdelta_backend id;
  const char* name;
  bool host_memory;  // tensors are host memory: lengths and indices may be read and checked

  Status (*supports_attention)(const AttentionProblem&);
  Status (*supports_gated_delta)(const GatedDeltaProblem&);
  // Makes a call's kernels ready, so that it may be captured in a graph; null where nothing is to be made ready.
  Status (*attention_prepare)(const AttentionProblem&, const flashdelta_execution&);
  Status (*gated_delta_prepare)(const GatedDeltaProblem&, const flashdelta_execution&);
  Status (*attention_workspace)(const AttentionProblem&, const flashdelta_execution&, size_t*);
  Status (*gated_delta_workspace)(const GatedDeltaProblem&, const flashdelta_execution&, size_t*);
  Status (*attention_run)(const AttentionProblem&, const flashdelta_execution&, void*);
  Status (*gated_delta_run)(const GatedDeltaProblem&, const flashdelta_execution&, void*);

  Status supports(const AttentionProblem& p) const { return supports_attention(p); }
  Status supports(const GatedDeltaProblem& p) const { return supports_gated_delta(p); }
  Status prepare(const AttentionProblem& p, const flashdelta_execution& e) const {
    return attention_prepare == nullptr ? Status{} : attention_prepare(p, e);
  }
  Status prepare(const GatedDeltaProblem& p, const flashdelta_execution& e) const {
    return gated_delta_prepare == nullptr ? Status{} : gated_delta_prepare(p, e);
  }
  Status workspace(const AttentionProblem& p, const flashdelta_execution& e, size_t* bytes) const {
    return attention_workspace(p, e, bytes);
  }
  Status workspace(const GatedDeltaProblem& p, const flashdelta_execution& e, size_t* bytes) const {
    return gated_delta_workspace(p, e, bytes);
  }
  Status run(const AttentionProblem& p, const flashdelta_execution& e, void* w) const { return attention_run(p, e, w); }
  Status run(const GatedDeltaProblem& p, const flashdelta_execution& e, void* w) const {
    return gated_delta_run(p, e, w);
  }
};

// OK, or NOT_SUPPORTED with the reason.
Status backend_available(flashdelta_backend backend);

// The backend that was asked for; for auto, the one whose memory q lies in.
Status choose_backend(const flashdelta_execution& execution, const AttentionProblem& problem, const Backend** backend);
Status choose_backend(const flashdelta_execution& execution, const GatedDeltaProblem& problem, const Backend** backend);

}  // namespace flashdelta
