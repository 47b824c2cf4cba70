#include "predict.hpp"

#include <fmt/core.h>

#include "common.hpp"
#include "core/profiles.hpp"
#if FLASHDELTA_GPU
#include "device/forecast.hpp"
#endif

namespace flashdelta::cli {

void add_predict_flags(CLI::App* app, PredictOptions* options) {
  constexpr const char* group = "Forecast";
  app->add_flag("--predict", options->wanted, "how long the kernel would take on a card, from the emulator's counters")
      ->group(group);
  app->add_option("--device", options->devices, "a card; may be repeated (default rtx-5090, rtx-pro-6000 and h200)")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
  constexpr int64_t most = 65536;
  add_integer(app, "--batch", &options->batch, 1, most, "sequences (default 1)")->group(group);
  add_integer(app, "--heads-q", &options->heads_q, 1, most, "query heads; the delta rule's value heads (default 1)")
      ->group(group);
  add_integer(app, "--heads-k", &options->heads_k, 1, most, "key heads (default: as --heads-q)")->group(group);
  app->add_flag("--causal", options->causal, "no key after the query")->group(group);
}

#if FLASHDELTA_GPU
namespace {

ForecastRequest make_request(const PredictOptions& options, const PlanRequest& plan) {
  if (!plan.candidates.empty()) fail_argument("--predict", "no --candidate: it foretells kernels that exist", "both");
  if (options.causal && plan.operation != PlanOperation::kAttentionForward) {
    fail_argument("--causal", "attention-forward", "gated-delta-forward");
  }
  if (plan.seqlen.value_or(0) < 1) fail_argument("--seqlen", "a length from 1 with --predict", "none");
  const int64_t heads_k = options.heads_k == 0 ? options.heads_q : options.heads_k;
  if (options.heads_q % heads_k != 0) {
    fail_argument("--heads-q", fmt::format("a multiple of --heads-k = {}", heads_k), std::to_string(options.heads_q));
  }
  return {.arch = parse_arch(plan.arch),
          .dtype = plan.dtype,
          .head_dim = plan.head_dim,
          .head_dim_v = plan.head_dim_v == 0 ? plan.head_dim : plan.head_dim_v,
          .batch = options.batch,
          .heads_q = options.heads_q,
          .heads_k = heads_k,
          .seqlen = *plan.seqlen,
          .causal = options.causal};
}

// The heads of --heads-q are the value heads of the delta rule.
Status forecast(const DeviceProfile& device, const PlanRequest& plan, const ForecastRequest& r, Forecast* f) {
  if (plan.operation == PlanOperation::kAttentionForward) return forecast_attention(device, r, f);
  return forecast_gated_delta(device,
                              {.arch = r.arch,
                               .dtype = r.dtype,
                               .dim_k = r.head_dim,
                               .dim_v = r.head_dim_v,
                               .batch = r.batch,
                               .heads_k = r.heads_k,
                               .heads_v = r.heads_q,
                               .seqlen = r.seqlen},
                              f);
}

}  // namespace

nlohmann::ordered_json predict_json(const PredictOptions& options, const PlanRequest& plan) {
  const ForecastRequest request = make_request(options, plan);
  const std::vector<std::string> defaults{"rtx-5090", "rtx-pro-6000", "h200"};
  auto forecasts = nlohmann::ordered_json::array();
  for (const std::string& name : options.devices.empty() ? defaults : options.devices) {
    const DeviceProfile* device = find_device(name);
    if (device == nullptr) {
      std::string names;
      for (const DeviceProfile& d : device_profiles()) names += fmt::format("{}{}", names.empty() ? "" : ", ", d.name);
      fail_argument("--device", names, "'" + name + "'");
    }
    Forecast f;
    throw_if_failed(forecast(*device, plan, request, &f));
    auto shares = nlohmann::ordered_json::object();
    for (const Forecast::Limit& limit : f.limits) shares[limit.name] = limit.share;
    forecasts.push_back({{"device", f.device},
                         {"kernel", f.kernel},
                         {"blocks", f.blocks},
                         {"resident_blocks", f.resident_blocks},
                         {"tail_parts", f.tail_parts},
                         {"ms", f.seconds * 1e3},
                         {"tflops", f.flops / f.seconds * 1e-12},
                         {"shares", std::move(shares)},
                         {"binding", f.binding}});
    if (f.parts_exact > 0) {
      forecasts.back()["most_parts"] = {{"exact", f.parts_exact}, {"decay_start", f.parts_decay_start}};
      forecasts.back()["ahead_blocks"] = f.ahead_blocks;
      forecasts.back()["composed"] = nullptr;
      if (f.composed_chunks > 0) {
        forecasts.back()["composed"] = {{"chunks", f.composed_chunks}, {"ms", f.composed_seconds * 1e3}};
      }
      forecasts.back()["ranges"] = nullptr;
      if (f.ranges > 0) {
        forecasts.back()["ranges"] = {{"count", f.ranges},
                                      {"chunks", f.range_chunks},
                                      {"early_chunks", f.early_chunks},
                                      {"ms", f.range_seconds * 1e3}};
      }
    }
  }
  return forecasts;
}
#else
nlohmann::ordered_json predict_json(const PredictOptions&, const PlanRequest&) {
  throw Failure(kExitNotSupported, "--predict: this build had no nvcc and has no emulator to count on");
}
#endif

std::string predict_table(const nlohmann::ordered_json& forecasts) {
  std::string table = fmt::format("{:<14} {:>10} {:>8}  {:>7} {:>7} {:>7} {:>7} {:>7}  {:<8} {}\n", "forecast", "ms",
                                  "TFLOP/s", "tensor", "shared", "issue", "special", "memory", "binding", "kernel");
  for (const auto& f : forecasts) {
    table += fmt::format("{:<14} {:>10.3f} {:>8.1f} ", f["device"].get<std::string>(), f["ms"].get<double>(),
                         f["tflops"].get<double>());
    for (const auto& [name, share] : f["shares"].items()) table += fmt::format(" {:>6.1f}%", 100 * share.get<double>());
    table += fmt::format("  {:<8} {}\n", f["binding"].get<std::string>(), f["kernel"].get<std::string>());
  }
  for (const auto& f : forecasts) {
    if (!f.contains("most_parts")) continue;
    const nlohmann::ordered_json& composed = f["composed"];
    const int exact = f["most_parts"]["exact"].get<int>();
    const int ahead = f["ahead_blocks"].get<int>();
    table += fmt::format("{}: above, a sequence in one part, its chunks prepared {}; ", f["device"].get<std::string>(),
                         ahead > 0 ? fmt::format("beside it by {} blocks on idle SMs", ahead) : "before it");
    table += composed.is_null() && exact == 1 ? "exact: the same; "
             : composed.is_null()
                 ? fmt::format(
                       "exact: at most {} where its gates allow them, as composing states would take longer "
                       "where they do not; ",
                       exact)
                 : fmt::format("exact: {} of {} chunks, their states composed, at most {:.3f} ms; ", exact,
                               composed["chunks"].get<int64_t>(), composed["ms"].get<double>());
    const nlohmann::ordered_json& ranges = f["ranges"];
    table += ranges.is_null() ? fmt::format("decay_start: at most {} where its gates allow them\n",
                                            f["most_parts"]["decay_start"].get<int>())
                              : fmt::format(
                                    "decay_start: {} ranges of {} chunks, {:.3f} ms where gates let each start "
                                    "{} chunks early\n",
                                    ranges["count"].get<int64_t>(), ranges["chunks"].get<int64_t>(),
                                    ranges["ms"].get<double>(), ranges["early_chunks"].get<int64_t>());
  }
  return table;
}

}  // namespace flashdelta::cli
