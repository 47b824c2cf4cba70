// The planner's report as a dict, with its table for people under "table".
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "calls.hpp"
#include "plan/render.hpp"

namespace flashdelta::python {
namespace {

namespace nb = nanobind;

nb::dict candidate_dict(const CandidateReport& c) {
  nb::dict parts;
  for (const auto& [name, bytes] : c.parts) parts[name.c_str()] = bytes;
  nb::dict out;
  out["block_q"] = c.block_q;
  out["block_kv"] = c.block_kv;
  out["block_v"] = c.block_v;
  out["warps"] = c.warps;
  out["threads"] = c.threads;
  out["stages"] = c.stages;
  out["q_in_registers"] = c.q_in_registers;
  out["padded_head_dim"] = c.padded_head_dim;
  out["kernel"] = c.kernel;
  out["shared_bytes"] = c.shared_bytes;
  out["parts"] = parts;
  out["resident_blocks"] = c.resident_blocks;
  out["kv_iterations"] = c.kv_iterations;
  out["fits"] = c.fits;
  out["reason"] = c.reason;
  out["detail"] = c.detail;
  return out;
}

void throw_if_failed(const Status& status) {
  if (!status.ok()) throw nb::value_error(status.message.c_str());
}

nb::dict plan(bool gated_delta, const std::string& arch, int dtype, int64_t head_dim, int64_t head_dim_v,
              std::optional<int64_t> seqlen, const std::vector<std::string>& candidates) {
  PlanRequest request;
  request.operation = gated_delta ? PlanOperation::kGatedDeltaForward : PlanOperation::kAttentionForward;
  request.arch = arch;
  request.dtype = static_cast<flashdelta_dtype>(dtype);
  request.head_dim = head_dim;
  request.head_dim_v = head_dim_v;
  request.seqlen = seqlen;
  for (const std::string& text : candidates) throw_if_failed(parse_candidate(text, &request.candidates.emplace_back()));
  PlanReport report;
  throw_if_failed(make_plan(request, &report));
  nb::list rows;
  for (const CandidateReport& candidate : report.candidates) rows.append(candidate_dict(candidate));
  nb::dict out;
  out["operation"] = report.operation;
  out["arch"] = report.arch;
  out["algorithm"] = report.algorithm;
  out["target"] = report.target;
  out["output_path"] = report.output_path;
  out["shared_limit"] = report.shared_limit;
  out["dtype"] = report.dtype;
  out["head_dim"] = report.head_dim;
  out["head_dim_v"] = report.head_dim_v;
  out["seqlen"] = report.seqlen;
  out["chosen"] = report.chosen;
  out["candidates"] = rows;
  out["table"] = plan_table(report);
  return out;
}

}  // namespace

void bind_plan(nb::module_& module) {
  module.def("plan", plan, nb::arg("gated_delta"), nb::arg("arch"), nb::arg("dtype"), nb::arg("head_dim"),
             nb::arg("head_dim_v"), nb::arg("seqlen").none(), nb::arg("candidates"));
}

}  // namespace flashdelta::python
