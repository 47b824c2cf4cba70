// The public gated delta vectors (tests/vectors), float64 answers of an independent implementation, through the
// kernels' PTX on the emulator.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device/gpu_backends.hpp"
#include "emulator_gated_delta_run.hpp"
#include "io/tensor_file.hpp"
#include "support.hpp"

namespace flashdelta::test {
namespace {

namespace fs = std::filesystem;

CallOptions options_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const auto metadata = nlohmann::json::parse(header).at("__metadata__");
  CallOptions options;
  const auto given = nlohmann::json::parse(metadata.at("options").get<std::string>());
  for (const auto& [name, value] : given.items()) {
    if (name == "scale") {
      options.scale = value.get<double>();
    } else if (name == "l2norm") {
      options.l2norm = value.get<bool>();
    } else {
      ADD_FAILURE() << "an option that this test does not know: " << name;
    }
  }
  return options;
}

double relative_l2(const HostTensor& got, const HostTensor& want) {
  double difference = 0, norm = 0;
  EXPECT_EQ(got.shape(), want.shape());
  for (int64_t i = 0; i < want.numel(); i++) {
    const double d = got.get(i) - want.get(i);
    difference += d * d;
    norm += static_cast<double>(want.get(i)) * want.get(i);
  }
  return std::sqrt(difference / norm);
}

class EmulatorVectors : public testing::TestWithParam<fs::path> {};

TEST_P(EmulatorVectors, meet_the_answers) {
  TensorMap tensors;
  const FileError error = read_tensors(GetParam().string(), &tensors, nullptr);
  ASSERT_TRUE(error.ok()) << error.message;
  Call call = call_of(Operation::gated_delta_forward, tensors, options_of(GetParam()));
  for (const auto& [name, tensor] : call.outputs) poison(tensor);
  GatedDeltaProblem problem;
  ASSERT_TRUE(make_problem(call.gated_delta, &problem).ok());
  const Status ran = emulate(problem, 1);
  ASSERT_TRUE(ran.ok()) << ran.message;
  const double most = tensors.at("q").dtype() == FLASHDELTA_BF16 ? 5e-3 : 1e-3;
  for (const char* name : {"o", "final_state"}) {
    const double found = relative_l2(call.outputs.at(name), tensors.at(std::string("expected_") + name));
    RecordProperty(name, std::to_string(found));
    EXPECT_LE(found, most) << name;
  }
}

std::vector<fs::path> vector_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FLASHDELTA_SOURCE_DIR "/tests/vectors")) {
    if (entry.path().filename().string().rfind("gdn_", 0) == 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, EmulatorVectors, testing::ValuesIn(vector_files()),
                         [](const auto& file) { return file.param.stem().string(); });

TEST(EmulatorVectorFiles, are_all_there) { EXPECT_EQ(vector_files().size(), 16u); }

}  // namespace
}  // namespace flashdelta::test
