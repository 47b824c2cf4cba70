// From parsed options to a finished call: what run, check and bench share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "io/call.hpp"
#include "options.hpp"

namespace flashdelta::cli {

const char* backend_name(flashdelta_backend backend);

// Gradients: asks the C ABI and fails with its words. Returns where the operation is a forward one.
void refuse_backward(Operation operation, const ExecutionOptions& options);

// Fails where the backend cannot run tensors from files on this machine, and says why.
void throw_if_unavailable(flashdelta_backend backend);

// Reads the files that IN names and says on stderr what the operation makes no use of.
TensorMap read_inputs(const std::vector<std::string>& paths, Operation operation);

// The struct of the C ABI with a backend chosen; fails where that one does not support the call.
flashdelta_execution make_execution(const ExecutionOptions& options, const Call& call);

struct Executed {
  Call call;
  flashdelta_backend backend = FLASHDELTA_BACKEND_CPU;
  double seconds = 0;
  CallCost cost;
};

// Reads, checks, runs. Notes the backend on stderr.
Executed execute(const RunOptions& options);

std::string format_rate(double flops, double seconds);  // "12.3 GFLOP/s"
std::string format_time(double seconds);                // "1.23 ms"
std::string format_shape(const std::vector<int64_t>& shape);

// operation, backend, seconds, gflops: how every JSON document of a run begins.
nlohmann::ordered_json describe(const Executed& executed);

}  // namespace flashdelta::cli
