#include "bench_cases.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "cases/inputs.hpp"
#include "common.hpp"
#include "options.hpp"

namespace flashdelta::cli {
namespace {

constexpr const char* shape_flags[] = {"--batch",    "--heads-q",  "--heads-k",    "--seqlen",
                                       "--seqlen-k", "--head-dim", "--head-dim-v", "--dtype"};
constexpr const char* call_flags[] = {"--scale",      "--causal",          "--window",          "--softcap",
                                      "--l2norm",     "--state-layout",    "--chunk",           "--context-parallel",
                                      "--beta-scale", "--decay-threshold", "--checkpoint-every"};

// A case of more elements than this is a slip of the keyboard.
constexpr double most_elements = 0x1p33;

Case case_from_flags(const BenchSelection& s) {
  if (!s.operation) fail_argument("OP", "an operation, for a case from flags", "none");
  if (s.parser->count("--seqlen") == 0) fail_argument("--seqlen", "a length, for a case from flags", "none");
  if (!s.names.empty()) fail_argument("--case", "names or the shape of one case, not both", "both");
  check_call_flags(*s.parser, *s.operation);
  const bool attention = is_attention(*s.operation);
  if (!attention && s.parser->count("--seqlen-k") != 0) {
    fail_argument("--seqlen-k", "an attention operation", operation_name(*s.operation));
  }
  Case c;
  c.name = "from_flags";
  c.source = "the command line's flags";
  c.operation = *s.operation;
  c.options = s.call;
  c.inputs = attention ? attention_inputs : gated_delta_inputs;
  c.dtype = s.dtype;
  c.heads_q = s.heads_q;
  c.heads_k = s.heads_k != 0 ? s.heads_k : s.heads_q;
  c.head_dim = s.head_dim;
  c.head_dim_v = s.head_dim_v != 0 ? s.head_dim_v : s.head_dim;
  const int64_t seqlen_k = s.parser->count("--seqlen-k") != 0 ? s.seqlen_k : s.seqlen;
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ...); };
  const double elements = product(s.batch, std::max(s.seqlen, seqlen_k), std::max(c.heads_q, c.heads_k),
                                  std::max(c.head_dim, c.head_dim_v));
  if (elements > most_elements) {
    fail_argument("the shape", fmt::format("at most {:.0f} elements a tensor", most_elements),
                  fmt::format("{:.0f}", elements));
  }
  c.lengths_q.assign(static_cast<size_t>(s.batch), s.seqlen);
  if (attention) c.lengths_k.assign(static_cast<size_t>(s.batch), seqlen_k);
  return c;
}

std::vector<Case> cases_by_name(const BenchSelection& s) {
  std::vector<Case> chosen;
  for (const std::string& name : s.names) {
    const auto found = std::find_if(cases().begin(), cases().end(), [&](const Case& c) { return c.name == name; });
    if (found == cases().end()) fail_argument("--case", "a name that bench --list shows", "'" + name + "'");
    if (s.operation && found->operation != *s.operation) {
      fail_argument("--case", fmt::format("a case of {}", operation_name(*s.operation)),
                    fmt::format("'{}' of {}", name, operation_name(found->operation)));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

}  // namespace

void add_bench_selection(CLI::App* app, BenchSelection* selection) {
  selection->parser = app;
  add_operation(app, &selection->operation);
  app->add_option("--case", selection->names, "this case of the list; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  constexpr const char* group = "One case from flags (random inputs)";
  const auto add = [&](const char* flag, int64_t* value, int64_t least, int64_t most, const char* help) {
    add_integer(app, flag, value, least, most, help)->group(group);
  };
  add("--batch", &selection->batch, 0, 65536, "(default 1)");
  add("--heads-q", &selection->heads_q, 1, 65536, "query heads; value heads of the gated delta rule (default 16)");
  add("--heads-k", &selection->heads_k, 1, 65536, "key heads (default: as --heads-q)");
  add("--seqlen", &selection->seqlen, 0, INT32_MAX, "tokens a sequence");
  add("--seqlen-k", &selection->seqlen_k, 0, INT32_MAX, "keys a sequence (default: as --seqlen)");
  add("--head-dim", &selection->head_dim, 1, 65536, "of q and k (default 128)");
  add("--head-dim-v", &selection->head_dim_v, 1, 65536, "of v (default: as --head-dim)");
  add_float_dtype(app, &selection->dtype)->group(group);
  add_call_flags(app, &selection->call);
}

std::vector<Case> select_cases(const BenchSelection& selection) {
  const auto given = [&](const char* flag) { return selection.parser->count(flag) != 0; };
  if (std::any_of(std::begin(shape_flags), std::end(shape_flags), given)) return {case_from_flags(selection)};
  for (const char* flag : call_flags) {
    if (given(flag)) fail_argument(flag, "the shape of one case with it (--seqlen and others)", "none");
  }
  if (!selection.names.empty()) return cases_by_name(selection);
  std::vector<Case> chosen;
  for (const Case& c : cases()) {
    if (c.bench && (!selection.operation || c.operation == *selection.operation)) chosen.push_back(c);
  }
  return chosen;
}

}  // namespace flashdelta::cli
