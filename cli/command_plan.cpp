// plan: the planner's candidates for an operation on an architecture, or any candidate's numbers.
#include <fmt/core.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "common.hpp"
#include "options.hpp"
#include "plan/render.hpp"
#include "predict.hpp"

namespace flashdelta::cli {
namespace {

struct PlanOptions {
  std::optional<Operation> operation;
  PlanRequest request;
  PredictOptions predict;
  bool json = false;
};

nlohmann::ordered_json candidate_json(const CandidateReport& c) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& [name, bytes] : c.parts) parts[name] = bytes;
  nlohmann::ordered_json json = {{"block_q", c.block_q},
                                 {"block_kv", c.block_kv},
                                 {"block_v", c.block_v},
                                 {"warps", c.warps},
                                 {"stages", c.stages},
                                 {"q_in_registers", c.q_in_registers},
                                 {"padded_head_dim", nullptr},
                                 {"kernel", nullptr},
                                 {"shared_bytes", c.shared_bytes},
                                 {"parts", std::move(parts)},
                                 {"resident_blocks", c.resident_blocks},
                                 {"kv_iterations", nullptr},
                                 {"fits", c.fits},
                                 {"reason", c.reason}};
  if (c.padded_head_dim != 0) json["padded_head_dim"] = c.padded_head_dim;
  if (c.kernel) json["kernel"] = *c.kernel;
  if (c.kv_iterations) json["kv_iterations"] = *c.kv_iterations;
  return json;
}

nlohmann::ordered_json plan_json(const PlanReport& report) {
  auto candidates = nlohmann::ordered_json::array();
  for (const CandidateReport& candidate : report.candidates) candidates.push_back(candidate_json(candidate));
  nlohmann::ordered_json chosen = nullptr;
  if (report.chosen) chosen = candidates[*report.chosen];
  return {{"schema_version", schema_version},   {"arch", report.arch},
          {"algorithm", report.algorithm},      {"target", report.target},
          {"output_path", report.output_path},  {"shared_limit", report.shared_limit},
          {"chosen", std::move(chosen)},        {"why", report.why},
          {"candidates", std::move(candidates)}};
}

int plan_command(PlanOptions& options) {
  const Operation operation = *options.operation;
  if (is_backward(operation)) {
    throw Failure(kExitNotSupported,
                  fmt::format("{}: the planner knows the forward operations alone", operation_name(operation)));
  }
  options.request.operation =
      is_attention(operation) ? PlanOperation::kAttentionForward : PlanOperation::kGatedDeltaForward;
  PlanReport report;
  throw_if_failed(make_plan(options.request, &report));
  nlohmann::ordered_json forecasts;
  if (options.predict.wanted) forecasts = predict_json(options.predict, options.request);
  if (options.json) {
    auto document = plan_json(report);
    if (options.predict.wanted) document["forecasts"] = std::move(forecasts);
    print_json(document);
  } else if (options.predict.wanted) {
    print(predict_table(forecasts));
  } else {
    print(plan_table(report));
  }
  return kExitOk;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto* parser = app.add_subcommand("plan", "Show which tiles fit an architecture, and why the others do not");
  const auto options = std::make_shared<PlanOptions>();
  PlanRequest* request = &options->request;
  add_operation(parser, &options->operation)->required();
  parser->add_option("--arch", request->arch, arch_names())->required()->type_name("NAME");
  add_float_dtype(parser, &request->dtype);
  constexpr int64_t most = 65536;
  add_integer(parser, "--head-dim", &request->head_dim, 1, most, "of q and k")->required();
  add_integer(parser, "--head-dim-v", &request->head_dim_v, 1, most, "of v (default: as --head-dim)");
  parser
      ->add_option_function<std::string>(
          "--seqlen", [=](const std::string& text) { request->seqlen = parse_integer("--seqlen", text, 0); },
          "keys of a sequence, for the count of loop iterations")
      ->type_name("N");
  parser
      ->add_option_function<std::vector<std::string>>(
          "--candidate",
          [=](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              throw_if_failed(parse_candidate(text, &request->candidates.emplace_back()));
            }
          },
          "block_q=N,block_kv=N[,warps=N][,stages=N][,block_v=N][,q_in_registers]: this one, not the table's; may be "
          "repeated")
      ->type_name("LIST")
      ->allow_extra_args(false);
  add_predict_flags(parser, &options->predict);
  parser->add_flag("--json", options->json, "one JSON document on stdout");
  return {parser, [=] { return plan_command(*options); }};
}

}  // namespace flashdelta::cli
