// plan --predict: the forecast of the kernel that a problem would get, on cards that need not be there.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "plan/render.hpp"

namespace flashdelta::cli {

struct PredictOptions {
  bool wanted = false;
  std::vector<std::string> devices;             // empty: the two SM120 cards and the H200
  int64_t batch = 1, heads_q = 1, heads_k = 0;  // heads_k 0: as heads_q
  bool causal = false;
};

void add_predict_flags(CLI::App* app, PredictOptions* options);

// An array, one forecast a device; and the same as a table.
nlohmann::ordered_json predict_json(const PredictOptions& options, const PlanRequest& request);
std::string predict_table(const nlohmann::ordered_json& forecasts);

}  // namespace flashdelta::cli
