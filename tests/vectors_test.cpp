// The public forward vectors (tests/vectors): float64 answers of an independent implementation. The CPU backend must
// meet them within its tolerance, the oracle within fp32's rounding of the stored answers.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/problem.hpp"
#include "io/check_tally.hpp"
#include "io/tensor_file.hpp"
#include "reference/reference.hpp"
#include "support.hpp"

namespace flashdelta::test {
namespace {

namespace fs = std::filesystem;

// What a file's metadata say about the call.
struct Vector {
  Operation operation = Operation::attention_forward;
  CallOptions options;
  TensorMap tensors;
};

nlohmann::json metadata_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  return nlohmann::json::parse(header).at("__metadata__");
}

CallOptions options_of(const nlohmann::json& json) {
  CallOptions options;
  for (const auto& [name, value] : json.items()) {
    if (name == "causal") {
      options.causal = value.get<bool>();
    } else if (name == "window") {
      options.window_left = value.at(0).get<int64_t>();
      options.window_right = value.at(1).get<int64_t>();
    } else if (name == "softcap") {
      options.softcap = value.get<double>();
    } else if (name == "scale") {
      options.scale = value.get<double>();
    } else if (name == "l2norm") {
      options.l2norm = value.get<bool>();
    } else {
      ADD_FAILURE() << "an option that this test does not know: " << name;
    }
  }
  return options;
}

Vector read_vector(const fs::path& path) {
  Vector vector;
  const FileError error = read_tensors(path.string(), &vector.tensors, nullptr);
  EXPECT_TRUE(error.ok()) << error.message;
  const nlohmann::json metadata = metadata_of(path);
  const auto operation = parse_operation(metadata.at("op").get<std::string>());
  EXPECT_TRUE(operation.has_value());
  vector.operation = operation.value_or(Operation::attention_forward);
  vector.options = options_of(nlohmann::json::parse(metadata.at("options").get<std::string>()));
  return vector;
}

// Writes the oracle's answers into the call's outputs, which then hold what a perfect backend would have written.
void run_oracle(const AttentionProblem& p) {
  for (int64_t b = 0; b < p.batch; b++) {
    const Span queries = p.queries(b);
    for (int64_t row = 0; row < queries.length * p.heads_q; row++) {
      const int64_t i = row / p.heads_q, head = row % p.heads_q;
      const reference::AttentionRow want = reference::attention_row(p, b, i, head);
      const int64_t first = p.o.index(queries.outer, queries.begin + i, head);
      for (int64_t c = 0; c < p.head_dim_v; c++) {
        store_float(p.o.data, p.o.dtype, first + c, static_cast<float>(want.o[static_cast<size_t>(c)]));
      }
      p.lse_row(queries.outer, head)[queries.begin + i] = static_cast<float>(want.lse);
    }
  }
}

void run_oracle(const GatedDeltaProblem& p) {
  for (int64_t unit = 0; unit < p.sequences * p.heads_v; unit++) {
    const int64_t n = unit / p.heads_v, head = unit % p.heads_v;
    const Span span = p.sequence(n);
    const reference::GatedDeltaHead want = reference::gated_delta_head(p, n, head);
    for (int64_t t = 0; t < span.length; t++) {
      const int64_t first = p.o.index(span.outer, span.begin + t, head);
      for (int64_t c = 0; c < p.dim_v; c++) {
        store_float(p.o.data, p.o.dtype, first + c, static_cast<float>(want.o[static_cast<size_t>(t * p.dim_v + c)]));
      }
    }
    for (int64_t i = 0; i < p.dim_k * p.dim_v; i++) {
      store_float(p.final.data, p.final.dtype, p.final.index(n, head) + i,
                  static_cast<float>(want.state[static_cast<size_t>(i)]));
    }
  }
}

// The call with o in fp32, so that the oracle's answers are not rounded to the inputs' dtype.
template <typename Args>
void run_oracle_in_fp32(Call& call, Args& args) {
  HostTensor o(FLASHDELTA_FP32, call.outputs.at("o").shape());
  args.o = o.view();
  call.outputs["o"] = o;
  std::conditional_t<std::is_same_v<Args, flashdelta_attention_forward_args>, AttentionProblem, GatedDeltaProblem>
      problem;
  ASSERT_TRUE(make_problem(args, &problem).ok());
  run_oracle(problem);
}

Tally compare(const HostTensor& got, const HostTensor& want) {
  Tally tally;
  EXPECT_EQ(got.shape(), want.shape());
  for (int64_t i = 0; i < want.numel(); i++) tally.add(got.get(i), want.get(i));
  return tally;
}

// Every expected_NAME of the file against the output NAME.
void expect_vector(const Call& call, const TensorMap& tensors, double tolerance, double lse_tolerance) {
  int compared = 0;
  for (const auto& [name, want] : tensors) {
    if (name.rfind("expected_", 0) != 0) continue;
    const std::string output = name.substr(9);
    ASSERT_EQ(call.outputs.count(output), 1u) << output;
    const Tally tally = compare(call.outputs.at(output), want);
    const bool lse = output == "lse";
    const OutputError error = tally.verdict(output.c_str(), lse ? tally.lse_error() : tally.relative_l2(),
                                            lse ? lse_tolerance : tolerance, 0);
    EXPECT_EQ(error.fault, "") << output;
    compared++;
  }
  EXPECT_EQ(compared, 2);
}

class Vectors : public testing::TestWithParam<fs::path> {};

TEST_P(Vectors, cpu_meets_the_answers) {
  const Vector vector = read_vector(GetParam());
  Call call = call_of(vector.operation, vector.tensors, vector.options);
  for (const auto& [name, tensor] : call.outputs) poison(tensor);
  const Status ran = run_call(call, on_cpu());
  ASSERT_TRUE(ran.ok()) << ran.message;
  expect_vector(call, vector.tensors, tolerance_of(vector.tensors.at("q").dtype()), 2e-3);
}

TEST_P(Vectors, oracle_agrees) {
  const Vector vector = read_vector(GetParam());
  Call call = call_of(vector.operation, vector.tensors, vector.options);
  for (const auto& [name, tensor] : call.outputs) poison(tensor);
  if (vector.operation == Operation::attention_forward) {
    run_oracle_in_fp32(call, call.attention);
  } else {
    run_oracle_in_fp32(call, call.gated_delta);
  }
  expect_vector(call, vector.tensors, 1e-6, 1e-6);
}

std::vector<fs::path> vector_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FLASHDELTA_SOURCE_DIR "/tests/vectors")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, Vectors, testing::ValuesIn(vector_files()),
                         [](const auto& file) { return file.param.stem().string(); });

TEST(VectorFiles, are_all_there) { EXPECT_EQ(vector_files().size(), 31u); }

}  // namespace
}  // namespace flashdelta::test
