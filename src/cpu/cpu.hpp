// The CPU backend: any machine, no GPU. All memory that a run uses beyond its arguments is the workspace.
#pragma once

#include <cstddef>

#include "core/problem.hpp"

namespace flashdelta::cpu {

// Threads a call may use: the caller's number, else OpenMP's.
int thread_count(const flashdelta_execution& execution);

// Bytes, at most 48 MiB whatever the lengths and threads (threads are used up to what fits).
size_t attention_forward_workspace(const AttentionProblem& problem, int threads);
size_t gated_delta_forward_workspace(const GatedDeltaProblem& problem, int threads);

// workspace: at least as many bytes as the query said, aligned to 64.
Status attention_forward(const AttentionProblem& problem, const flashdelta_execution& execution, void* workspace);
Status gated_delta_forward(const GatedDeltaProblem& problem, const flashdelta_execution& execution, void* workspace);

}  // namespace flashdelta::cpu
