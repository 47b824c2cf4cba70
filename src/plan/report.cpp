// Text to a candidate, and a request to a report.
#include <fmt/core.h>

#include <charconv>

#include "core/numeric.hpp"
#include "plan/render.hpp"

namespace flashdelta {
namespace {

constexpr int64_t kLargest = 65536;  // products of all numbers of a candidate then stay far inside 64 bits

Status parse_number(std::string_view key, std::string_view text, int64_t* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  if (error != std::errc{} || stop != end || *value < 1 || *value > kLargest) {
    return invalid(key, fmt::format("a whole number from 1 to {}", kLargest), fmt::format("'{}'", text));
  }
  return {};
}

struct Keys {
  int64_t block_q = 0, block_kv = 0, block_v = 0, warps = 0, threads = 0, stages = 0;

  int64_t* find(std::string_view key) {
    if (key == "block_q") return &block_q;
    if (key == "block_kv") return &block_kv;
    if (key == "block_v") return &block_v;
    if (key == "warps") return &warps;
    if (key == "threads") return &threads;
    if (key == "stages") return &stages;
    return nullptr;
  }
};

Status parse_entry(std::string_view entry, Keys* keys, bool* q_in_registers) {
  const size_t equals = entry.find('=');
  const std::string_view key = entry.substr(0, equals);
  if (key == "q_in_registers") {
    if (equals != entry.npos) return invalid(key, "no value", fmt::format("'{}'", entry.substr(equals + 1)));
    if (*q_in_registers) return invalid(key, "to be named once", "it twice");
    *q_in_registers = true;
    return {};
  }
  int64_t* const value = keys->find(key);
  if (value == nullptr) {
    return invalid("candidate", "the keys block_q, block_kv, block_v, warps, threads, stages, q_in_registers",
                   fmt::format("'{}'", key));
  }
  if (*value != 0) return invalid(key, "to be named once", "it twice");
  if (equals == entry.npos) return invalid(key, fmt::format("a whole number from 1 to {}", kLargest), "nothing");
  return parse_number(key, entry.substr(equals + 1), value);
}

Status check_range(std::string_view name, int64_t value, int64_t least) {
  if (value >= least && value <= kLargest) return {};
  return invalid(name, fmt::format("{} to {}", least, kLargest), std::to_string(value));
}

Status check_candidate(const Candidate& candidate) {
  FLASHDELTA_RETURN_IF_ERROR(check_range("block_q", candidate.block_q, 1));
  FLASHDELTA_RETURN_IF_ERROR(check_range("block_kv", candidate.block_kv, 1));
  FLASHDELTA_RETURN_IF_ERROR(check_range("block_v", candidate.block_v, 0));
  FLASHDELTA_RETURN_IF_ERROR(check_range("threads", candidate.threads, 1));
  return check_range("stages", candidate.stages, 0);
}

Status make_problem(const PlanRequest& request, PlanProblem* problem) {
  if (request.dtype != FLASHDELTA_BF16 && request.dtype != FLASHDELTA_FP16 && request.dtype != FLASHDELTA_FP32) {
    return invalid("dtype", "bf16, fp16 or fp32", dtype_name(request.dtype));
  }
  FLASHDELTA_RETURN_IF_ERROR(check_range("head_dim", request.head_dim, 1));
  FLASHDELTA_RETURN_IF_ERROR(check_range("head_dim_v", request.head_dim_v, 0));
  if (request.seqlen && *request.seqlen < 0) return invalid("seqlen", "0 or more", std::to_string(*request.seqlen));
  *problem = {.operation = request.operation,
              .dtype = request.dtype,
              .head_dim = request.head_dim,
              .head_dim_v = request.head_dim_v == 0 ? request.head_dim : request.head_dim_v,
              .seqlen = request.seqlen};
  return {};
}

Status find_arch(const PlanRequest& request, const ArchProfile** arch) {
  *arch = parse_arch(request.arch);
  if (*arch != nullptr) return {};
  std::string names;
  for (const ArchProfile& profile : arch_profiles())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", profile.name);
  return invalid("arch", fmt::format("one of {}", names), fmt::format("'{}'", request.arch));
}

CandidateReport report_candidate(const ArchProfile& arch, const PlanProblem& problem, const Candidate& candidate,
                                 const Assessment& assessment) {
  CandidateReport report{.block_q = candidate.block_q,
                         .block_kv = candidate.block_kv,
                         .block_v = candidate.block_v,
                         .warps = (candidate.threads + 31) / 32,
                         .threads = candidate.threads,
                         .stages = candidate.stages,
                         .q_in_registers = candidate.q_in_registers,
                         .padded_head_dim = candidate.padded_head_dim,
                         .kernel = std::nullopt,
                         .shared_bytes = assessment.shared_bytes,
                         .parts = assessment.parts,
                         .resident_blocks = assessment.resident_blocks,
                         .kv_iterations = assessment.kv_iterations,
                         .fits = assessment.fits(),
                         .reason = reason_name(assessment.reason),
                         .detail = assessment.detail};
  if (const auto kernel = find_kernel(arch, problem, candidate)) report.kernel = kernel->name;
  return report;
}

}  // namespace

Status parse_candidate(std::string_view text, Candidate* candidate) {
  Keys keys;
  bool q_in_registers = false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    FLASHDELTA_RETURN_IF_ERROR(parse_entry(text.substr(begin, end - begin), &keys, &q_in_registers));
    begin = end + 1;
  }
  if (keys.block_q == 0) return invalid("block_q", "to be given", fmt::format("'{}'", text));
  if (keys.block_kv == 0) return invalid("block_kv", "to be given", fmt::format("'{}'", text));
  if (keys.warps != 0 && keys.threads != 0) return invalid("threads", "threads or warps", "both");
  const int64_t threads = keys.threads != 0 ? keys.threads : 32 * (keys.warps != 0 ? keys.warps : 4);
  *candidate = {keys.block_q, keys.block_kv, keys.block_v, threads, keys.stages, q_in_registers};
  return {};
}

Status make_plan(const PlanRequest& request, PlanReport* report) {
  const ArchProfile* arch = nullptr;
  PlanProblem problem;
  FLASHDELTA_RETURN_IF_ERROR(find_arch(request, &arch));
  FLASHDELTA_RETURN_IF_ERROR(make_problem(request, &problem));
  for (const Candidate& candidate : request.candidates) FLASHDELTA_RETURN_IF_ERROR(check_candidate(candidate));

  const bool from_table = request.candidates.empty();
  std::vector<Candidate> candidates = from_table ? table_candidates(problem) : request.candidates;
  std::vector<Assessment> assessments;
  for (Candidate& candidate : candidates) {
    candidate = resolve(problem, candidate);
    assessments.push_back(assess(*arch, problem, candidate));
  }
  const std::vector<size_t> order = rank(*arch, problem, candidates, assessments);

  const AlgorithmClass algorithm = algorithm_class(request.operation, *arch);
  *report = {.operation = operation_name(request.operation),
             .arch = std::string(arch->name),
             .algorithm = algorithm_name(algorithm),
             .target = std::string(arch->target),
             .output_path = output_path_name(output_path(algorithm)),
             .shared_limit = arch->shared_bytes_block,
             .dtype = dtype_name(problem.dtype),
             .head_dim = problem.head_dim,
             .head_dim_v = problem.head_dim_v,
             .seqlen = problem.seqlen,
             .chosen = std::nullopt,
             .why = "",
             .candidates = {}};
  for (size_t i = 0; i < order.size(); i++) {
    const size_t from = from_table ? order[i] : i;
    report->candidates.push_back(report_candidate(*arch, problem, candidates[from], assessments[from]));
  }
  if (order.empty() || !assessments[order[0]].fits()) return {};
  report->chosen = from_table ? 0 : order[0];
  if (request.operation == PlanOperation::kGatedDeltaForward && candidates[order[0]].block_kv == 1) {
    report->why = fmt::format(
        "token by token, as for any call of at most {} tokens a sequence: the state is read and "
        "written once and stays in registers",
        gated_delta_recurrent_tokens);
  }
  return {};
}

}  // namespace flashdelta
