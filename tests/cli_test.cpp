// The command line as its users meet it: exit codes, one line of error, what is written and what is not.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tensor_file.hpp"
#include "run_program.hpp"
#include "temporary_folder.hpp"

namespace flashdelta {
namespace {

using Words = std::vector<std::string>;

HostTensor floats(flashdelta_dtype dtype, std::vector<int64_t> shape, float size = 1) {
  HostTensor tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.numel(); i++) tensor.set(i, size * std::sin(1.3f * static_cast<float>(i) + 0.7f));
  return tensor;
}

HostTensor constant(std::vector<int64_t> shape, float value) {
  HostTensor tensor(FLASHDELTA_FP32, std::move(shape));
  for (int64_t i = 0; i < tensor.numel(); i++) tensor.set(i, value);
  return tensor;
}

HostTensor ints(const std::vector<int32_t>& values) {
  HostTensor tensor(FLASHDELTA_INT32, {static_cast<int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), tensor.bytes());
  return tensor;
}

TensorMap attention_inputs(int64_t batch = 1, int64_t queries = 7, int64_t keys = 9) {
  return {{"q", floats(FLASHDELTA_BF16, {batch, queries, 4, 16})},
          {"k", floats(FLASHDELTA_BF16, {batch, keys, 2, 16})},
          {"v", floats(FLASHDELTA_BF16, {batch, keys, 2, 24})}};
}

TensorMap packed_inputs(const std::vector<int32_t>& cu_seqlens) {
  return {{"q", floats(FLASHDELTA_BF16, {10, 4, 16})},
          {"k", floats(FLASHDELTA_BF16, {10, 2, 16})},
          {"v", floats(FLASHDELTA_BF16, {10, 2, 16})},
          {"cu_seqlens_q", ints(cu_seqlens)},
          {"cu_seqlens_k", ints(cu_seqlens)}};
}

TensorMap gated_delta_inputs(int64_t tokens = 130, int64_t heads_v = 4) {
  return {{"q", floats(FLASHDELTA_BF16, {1, tokens, 2, 16}, 0.2f)},
          {"k", floats(FLASHDELTA_BF16, {1, tokens, 2, 16}, 0.2f)},
          {"v", floats(FLASHDELTA_BF16, {1, tokens, heads_v, 24})},
          {"g", constant({1, tokens, heads_v}, -0.05f)},
          {"beta", constant({1, tokens, heads_v}, 0.5f)}};
}

class Cli : public testing::Test {
 protected:
  std::string file(const TensorMap& tensors) {
    const std::string path = folder_.path("in.safetensors");
    const FileError error = write_tensors(path, tensors);
    EXPECT_TRUE(error.ok()) << error.message;
    return path;
  }

  std::string output() const { return folder_.path("out.safetensors"); }

  static ProgramResult cli(Words arguments) {
    arguments.insert(arguments.begin(), FLASHDELTA_CLI);
    return run_program(std::move(arguments));
  }

  // run OP IN -o OUT and more flags.
  ProgramResult run(const std::string& operation, const std::string& in, const Words& more = {}) {
    Words arguments{"run", operation, in, "-o", output()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return cli(arguments);
  }

  // The exit code, one line of error at the end that holds every word, and nothing on stdout.
  static void expect_error(const ProgramResult& result, int code, const Words& words) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    ASSERT_FALSE(result.err.empty());
    EXPECT_EQ(result.err.back(), '\n');
    const size_t before = result.err.rfind('\n', result.err.size() - 2);
    const std::string line = result.err.substr(before == std::string::npos ? 0 : before + 1);
    EXPECT_TRUE(line.starts_with("flashdelta: ")) << line;
    for (const std::string& word : words) {
      EXPECT_NE(line.find(word), std::string::npos) << "no '" << word << "' in: " << line;
    }
  }

  // Refused, and what the target held is still there.
  void expect_refused(const std::string& operation, const std::string& in, int code, const Words& words,
                      const Words& more = {}) {
    folder_.write("out.safetensors", "old");
    expect_error(run(operation, in, more), code, words);
    EXPECT_EQ(folder_.read("out.safetensors"), "old");
    EXPECT_EQ(folder_.names().size(), std::filesystem::exists(folder_.path("in.safetensors")) ? 2u : 1u);
  }

  TensorMap expect_written(const ProgramResult& result) {
    EXPECT_EQ(result.code, 0) << result.err;
    TensorMap tensors;
    const FileError error = read_tensors(output(), &tensors, nullptr);
    EXPECT_TRUE(error.ok()) << error.message;
    return tensors;
  }

  static nlohmann::json expect_json(const ProgramResult& result, int code = 0) {
    EXPECT_EQ(result.code, code) << result.err;
    const auto document = nlohmann::json::parse(result.out, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << result.out;
    EXPECT_EQ(document.value("schema_version", 0), 1);
    return document;
  }

  TemporaryFolder folder_;
};

void expect_shape(const TensorMap& tensors, const std::string& name, flashdelta_dtype dtype,
                  const std::vector<int64_t>& shape) {
  ASSERT_TRUE(tensors.contains(name)) << name;
  EXPECT_EQ(tensors.at(name).dtype(), dtype) << name;
  EXPECT_EQ(tensors.at(name).shape(), shape) << name;
}

// ---- What is written ----

TEST_F(Cli, AttentionWritesOutputAndLse) {
  const TensorMap got = expect_written(run("attention-forward", file(attention_inputs(2)), {"--causal"}));
  EXPECT_EQ(got.size(), 2u);
  expect_shape(got, "o", FLASHDELTA_BF16, {2, 7, 4, 24});
  expect_shape(got, "lse", FLASHDELTA_FP32, {2, 4, 7});
  EXPECT_EQ(folder_.names(), (Words{"in.safetensors", "out.safetensors"}));
  const TensorMap packed = expect_written(run("attention-forward", file(packed_inputs({0, 4, 4, 10}))));
  expect_shape(packed, "lse", FLASHDELTA_FP32, {4, 10});
}

TEST_F(Cli, GatedDeltaWritesOutputAndStates) {
  const std::string in = file(gated_delta_inputs());
  const TensorMap got = expect_written(run("gated-delta-forward", in));
  EXPECT_EQ(got.size(), 2u);
  expect_shape(got, "o", FLASHDELTA_BF16, {1, 130, 4, 24});
  expect_shape(got, "final_state", FLASHDELTA_FP32, {1, 4, 16, 24});
  const TensorMap more =
      expect_written(run("gdn-forward", in, {"--checkpoint-every", "64", "--state-layout", "vk", "--chunk", "32"}));
  EXPECT_EQ(more.size(), 3u);
  expect_shape(more, "final_state", FLASHDELTA_FP32, {1, 4, 24, 16});
  expect_shape(more, "checkpoints", FLASHDELTA_FP32, {2, 4, 24, 16});
}

TEST_F(Cli, BothFormsOfGateAndBeta) {
  TensorMap raw = gated_delta_inputs();
  raw.erase("g");
  raw.erase("beta");
  raw["A_log"] = constant({4}, -1);
  raw["dt_bias"] = constant({4}, -2);
  raw["a"] = floats(FLASHDELTA_FP32, {1, 130, 4});
  raw["b"] = floats(FLASHDELTA_BF16, {1, 130, 4});
  EXPECT_EQ(cli({"check", "gated-delta-forward", file(raw), "--beta-scale", "2", "--l2norm"}).code, 0);
  TensorMap both = raw;
  both["g"] = constant({1, 130, 4}, -1);
  expect_refused("gated-delta-forward", file(both), 2, {"g", "A_log", "both"});
  both.erase("g");
  both["beta"] = constant({1, 130, 4}, 1);
  expect_refused("gated-delta-forward", file(both), 2, {"beta", "b", "both"});
  for (const char* name : {"A_log", "a", "dt_bias", "b", "q", "k", "v"}) {
    TensorMap missing = raw;
    missing.erase(name);
    expect_refused("gated-delta-forward", file(missing), 2, {name});
  }
  TensorMap neither = raw;
  for (const char* name : {"A_log", "a", "dt_bias"}) neither.erase(name);
  expect_refused("gated-delta-forward", file(neither), 2, {"g", "neither"});
}

TEST_F(Cli, OtherTensorsAreIgnored) {
  TensorMap tensors = attention_inputs();
  tensors["expected_o"] = floats(FLASHDELTA_FP32, {3});
  tensors["g"] = ints({1});
  const ProgramResult result = run("attention-forward", file(tensors));
  expect_written(result);
  EXPECT_NE(result.err.find("ignored: expected_o, g\n"), std::string::npos) << result.err;
}

TEST_F(Cli, ZeroSizesAreValid) {
  expect_shape(expect_written(run("attention-forward", file(attention_inputs(0)))), "o", FLASHDELTA_BF16,
               {0, 7, 4, 24});
  expect_shape(expect_written(run("attention-forward", file(attention_inputs(1, 0, 3)))), "lse", FLASHDELTA_FP32,
               {1, 4, 0});
  const TensorMap no_keys = expect_written(run("attention-forward", file(attention_inputs(1, 3, 0))));
  ASSERT_TRUE(no_keys.contains("lse"));
  EXPECT_EQ(no_keys.at("lse").get(0), -INFINITY);
  EXPECT_EQ(no_keys.at("o").get(0), 0);
  TensorMap no_tokens = gated_delta_inputs(0);
  no_tokens["initial_state"] = constant({1, 4, 16, 24}, 3);
  const TensorMap state = expect_written(run("gated-delta-forward", file(no_tokens)));
  ASSERT_TRUE(state.contains("final_state"));
  EXPECT_EQ(state.at("final_state").get(100), 3);
}

TEST_F(Cli, ArraysOfNumPyAreInputs) {
  const auto npy = [&](const std::string& name, const std::string& shape, int64_t count) {
    std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}";
    std::string bytes = std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(dict.size()) + '\0' + dict;
    const HostTensor values = floats(FLASHDELTA_FP32, {count});
    bytes.append(static_cast<const char*>(values.data()), values.bytes());
    return folder_.write(name, bytes);
  };
  const std::string q = npy("q.npy", "(1, 3, 1, 8)", 24), k = npy("k.npy", "(1, 3, 1, 8)", 24);
  const std::string v = npy("v.npy", "(1, 3, 1, 8)", 24);
  const ProgramResult result = cli({"run", "attention-forward", q, k, v, "-o", output()});
  expect_shape(expect_written(result), "o", FLASHDELTA_FP32, {1, 3, 1, 8});
  expect_error(cli({"run", "attention-forward", q, k, k, "-o", output()}), 2, {"k.npy", "'k'"});
}

TEST_F(Cli, AutoNamesItsBackend) {
  const ProgramResult result = run("attention-forward", file(attention_inputs()), {"--backend", "auto"});
  expect_written(result);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("backend c"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << "no terminal, no bar";
}

// ---- Wrong content: exit 2, nothing written ----

TEST_F(Cli, SequencesThatLie) {
  expect_refused("attention-forward", file(packed_inputs({0, 6, 4, 10})), 2, {"cu_seqlens", "6", "4"});
  expect_refused("attention-forward", file(packed_inputs({1, 4, 10})), 2, {"cu_seqlens", "0", "1"});
  expect_refused("attention-forward", file(packed_inputs({0, 4, 11})), 2, {"cu_seqlens", "10", "11"});
  expect_refused("attention-forward", file(packed_inputs({0, -2147483647, 10})), 2, {"cu_seqlens", "-2147483647"});
  for (const auto& [values, words] : std::vector<std::pair<std::vector<int32_t>, Words>>{
           {{0, 100, 50, 130}, {"100", "50"}}, {{5, 130}, {"0", "5"}}, {{0, 131}, {"130", "131"}}}) {
    TensorMap tensors = gated_delta_inputs();
    tensors["cu_seqlens"] = ints(values);
    Words all = words;
    all.push_back("cu_seqlens");
    expect_refused("gated-delta-forward", file(tensors), 2, all);
  }
}

TEST_F(Cli, ShapesThatDoNotFit) {
  expect_refused("gated-delta-forward", file(gated_delta_inputs(130, 3)), 2, {"3", "2"});  // HV no multiple of HK
  TensorMap heads = attention_inputs();
  heads["q"] = floats(FLASHDELTA_BF16, {1, 7, 3, 16});
  expect_refused("attention-forward", file(heads), 2, {"3", "2"});
  TensorMap size = attention_inputs();
  size["k"] = floats(FLASHDELTA_BF16, {1, 9, 2, 20});
  expect_refused("attention-forward", file(size), 2, {"16", "20"});
  TensorMap dtype = attention_inputs();
  dtype["v"] = floats(FLASHDELTA_FP32, {1, 9, 2, 24});
  expect_refused("attention-forward", file(dtype), 2, {"v", "bf16", "fp32"});
  TensorMap rank = attention_inputs();
  rank["q"] = floats(FLASHDELTA_BF16, {16});
  expect_refused("attention-forward", file(rank), 2, {"q"});
  TensorMap none = attention_inputs();
  none.erase("v");
  expect_refused("attention-forward", file(none), 2, {"v"});
}

TEST_F(Cli, FilesThatLie) {
  const std::string path = folder_.path("in.safetensors");
  const auto refused = [&](const std::string& header, size_t data, const Words& words) {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    folder_.write("in.safetensors", bytes + header + std::string(data, '\0'));
    expect_refused("attention-forward", path, 2, words);
  };
  const std::string f64 = R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]}})";
  refused(R"({"q":)" + f64, 8, {"q", "BF16", "F64"});
  refused(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, {"'q'", "8", "4"});
  refused(R"({"q":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4, {"'q'", "F99"});
  refused(R"({"q\n\u001b":1})", 0, {"\\x0a\\x1b"});
  folder_.write("in.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  expect_refused("attention-forward", path, 2, {"100000000", "18446744073709551615"});
  folder_.write("in.safetensors", "short");
  expect_refused("attention-forward", path, 2, {"8 bytes", "5 bytes"});
}

// ---- Wrong flags: exit 2 ----

TEST_F(Cli, WrongFlags) {
  const std::string in = file(attention_inputs());
  const auto refused = [&](const Words& more, const Words& words) {
    expect_refused("attention-forward", in, 2, words, more);
  };
  refused({"--scale", "nan"}, {"--scale", "finite", "'nan'"});
  refused({"--scale", "1e999"}, {"--scale", "'1e999'"});
  refused({"--scale", "1x"}, {"--scale", "'1x'"});
  refused({"--scale"}, {"--scale", "run --help"});
  refused({"--softcap", "inf"}, {"--softcap", "'inf'"});
  refused({"--softcap", "-1"}, {"softcap", "-1"});
  refused({"--window", "3"}, {"--window", "LEFT,RIGHT", "'3'"});
  refused({"--window", "3,"}, {"--window", "''"});
  refused({"--window", "-2,0"}, {"--window", "-1", "'-2'"});
  refused({"--window", "1,2,3"}, {"--window", "'2,3'"});
  refused({"--threads", "-1"}, {"--threads", "0", "'-1'"});
  refused({"--threads", "9999999999"}, {"--threads", "'9999999999'"});
  refused({"--backend", "gpu"}, {"--backend", "auto|cpu|cuda|emulator", "'gpu'"});
  refused({"--arch", "sm70"}, {"--arch", "sm120", "'sm70'"});
  refused({"--l2norm"}, {"--l2norm", "gated delta", "attention-forward"});
  refused({"--no-such-flag"}, {"--no-such-flag", "run --help"});
  expect_refused("attention", in, 2, {"OP", "'attention'"});
  const std::string delta = file(gated_delta_inputs());
  const auto refused_delta = [&](const Words& more, const Words& words) {
    expect_refused("gated-delta-forward", delta, 2, words, more);
  };
  refused_delta({"--causal"}, {"--causal", "attention", "gated-delta-forward"});
  refused_delta({"--window", "1,0"}, {"--window"});
  refused_delta({"--state-layout", "kk"}, {"--state-layout", "kv|vk", "'kk'"});
  refused_delta({"--chunk", "48"}, {"--chunk", "'48'"});
  refused_delta({"--beta-scale", "3"}, {"--beta-scale", "1 or 2", "'3'"});
  refused_delta({"--context-parallel", "on"}, {"--context-parallel", "'on'"});
  refused_delta({"--decay-threshold", "-inf"}, {"--decay-threshold", "finite"});
  refused_delta({"--checkpoint-every", "65"}, {"checkpoint_every", "64", "65"});
}

TEST_F(Cli, WrongCommands) {
  expect_error(cli({}), 2, {"subcommand", "--help"});
  expect_error(cli({"walk"}), 2, {"walk"});
  expect_error(cli({"run"}), 2, {"OP"});
  expect_error(cli({"run", "attention-forward"}), 2, {"IN"});
  expect_error(cli({"run", "attention-forward", file(attention_inputs())}), 2, {"--output"});
  expect_error(cli({"plan", "attention-forward", "--arch", "sm120"}), 2, {"--head-dim"});
  expect_error(cli({"bench", "--case", "no such"}), 2, {"--case", "'no such'"});
  expect_error(cli({"bench", "--seqlen", "4"}), 2, {"OP"});
  expect_error(cli({"bench", "--causal"}), 2, {"--causal"});
}

TEST_F(Cli, HelpAndVersion) {
  EXPECT_EQ(cli({"--version"}).out, fmt::format("flashdelta {}\n", FLASHDELTA_VERSION_STRING));
  for (const Words& arguments : {Words{"--help"}, Words{"run", "--help"}, Words{"bench", "-h"}}) {
    const ProgramResult result = cli(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("Usage"), std::string::npos);
    EXPECT_EQ(result.err, "");
  }
}

// ---- Not supported: exit 3 ----

TEST_F(Cli, WhatIsNotSupported) {
  const std::string in = file(attention_inputs());
  expect_refused("attention-backward", in, 3, {"attention_backward", "forward"});
  expect_refused("gated-delta-backward", in, 3, {"gated_delta_backward", "forward"});
  expect_refused("gdn-backward", in, 3, {"gated_delta_backward"});
  expect_error(cli({"check", "attention-backward", in}), 3, {"forward"});
  expect_error(cli({"plan", "gdn-backward", "--arch", "sm120", "--head-dim", "128"}), 3, {"forward"});
  expect_error(cli({"bench", "attention-backward"}), 3, {"forward"});
}

TEST_F(Cli, BackendsThatAreNotThereSaySo) {
  const auto info = expect_json(cli({"info", "--json"}));
  for (const auto& backend : info["backends"]) {
    const std::string name = backend["name"];
    if (backend["available"]) continue;
    expect_refused("attention-forward", file(attention_inputs()), 3, {name}, {"--backend", name});
  }
}

// ---- Files: exit 4 ----

TEST_F(Cli, FilesThatCannotBeRead) {
  for (const std::string& path : {folder_.path("missing"), folder_.path("."), std::string("/dev/null")}) {
    expect_error(run("attention-forward", path), 4, {path, "cannot read"});
    EXPECT_TRUE(folder_.names().empty());
  }
}

TEST_F(Cli, FilesThatCannotBeWritten) {
  const std::string in = file(attention_inputs());
  for (const std::string& path :
       {std::string("/dev/full"), folder_.path("missing/out"), in + "/out", folder_.path(".")}) {
    expect_error(cli({"run", "attention-forward", in, "-o", path}), 4, {path, "cannot write"});
  }
  EXPECT_EQ(folder_.names(), Words{"in.safetensors"});
}

TEST_F(Cli, AFullStdoutIsAnError) {
  for (const Words& arguments : {Words{"info"}, Words{"--version"}, Words{"--help"}, Words{"bench", "--list"}}) {
    Words all{FLASHDELTA_CLI};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_error(run_program(all, {}, "/dev/full"), 4, {"stdout", "cannot write"});
  }
}

TEST_F(Cli, APipeIsWrittenDirectly) {
  const ProgramResult result = cli({"run", "attention-forward", file(attention_inputs()), "-o", "/dev/stdout"});
  EXPECT_EQ(result.code, 0) << result.err;
  folder_.write("out.safetensors", result.out);
  EXPECT_EQ(expect_written(result).size(), 2u);
}

TEST_F(Cli, TheInputMayBeTheOutput) {
  const std::string in = file(attention_inputs());
  EXPECT_EQ(cli({"run", "attention-forward", in, "-o", in}).code, 0);
  TensorMap tensors;
  ASSERT_TRUE(read_tensors(in, &tensors, nullptr).ok());
  EXPECT_TRUE(tensors.contains("lse"));
}

// ---- Interrupts ----

TEST_F(Cli, InterruptsLeaveNothingBehind) {
  constexpr int64_t tokens = 32768;
  const auto big = [] { return constant({1, tokens, 1, 256}, 0.5f); };
  const std::string in = file({{"q", big()}, {"k", big()}, {"v", big()}});
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    folder_.write("out.safetensors", "old");
    const ProgramResult result =
        run_program({FLASHDELTA_CLI, "run", "attention-forward", in, "-o", output()}, {signal, "backend cpu"});
    expect_error(result, code, {signal == SIGINT ? "interrupted" : "terminated"});
    EXPECT_EQ(folder_.read("out.safetensors"), "old");
    EXPECT_EQ(folder_.names(), (Words{"in.safetensors", "out.safetensors"}));
  }
}

// ---- check ----

TEST_F(Cli, CheckComparesWithTheOracle) {
  const ProgramResult table = cli({"check", "attention-forward", file(attention_inputs()), "--window", "2,-1"});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* word : {"o ", "lse", "ok", "28 of 28", "FLOP/s"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << table.out;
  }
  const auto json = expect_json(cli({"check", "gdn-forward", file(gated_delta_inputs()), "--json"}));
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["operation"], "gated-delta-forward");
  EXPECT_EQ(json["tensors"].size(), 2u);
  for (const auto& tensor : json["tensors"]) EXPECT_LE(tensor["error"], tensor["tolerance"]);
}

bool available(const nlohmann::json& info, const std::string& name) {
  for (const auto& backend : info["backends"]) {
    if (backend["name"] == name) return backend["available"];
  }
  return false;
}

TEST_F(Cli, CountersAreTheEmulators) {
  const bool built = available(expect_json(cli({"info", "--json"})), "emulator");
  expect_error(cli({"check", "attention-forward", file(attention_inputs()), "--backend", "cpu", "--counters"}),
               built ? 2 : 3, {"--counters", "emulator"});
  if (!built) return;
  const std::string in = std::string(FLASHDELTA_SOURCE_DIR) + "/tests/vectors/attn_plain_d128.safetensors";
  const auto json =
      expect_json(cli({"check", "attention-forward", in, "--backend", "emulator", "--counters", "--json"}));
  EXPECT_EQ(json["passed"], true);
  EXPECT_GT(json["counters"]["mma_bf16"], 0);
  EXPECT_EQ(json["counters"]["shared_wavefronts"], json["counters"]["shared_wavefronts_ideal"]);
}

TEST_F(Cli, ForecastsNameTheirCards) {
  if (!available(expect_json(cli({"info", "--json"})), "emulator")) return;
  const Words plan = {"plan", "attention-forward", "--arch", "sm120",    "--head-dim",
                      "64",   "--seqlen",          "1024",   "--predict"};
  Words with_json = plan;
  with_json.push_back("--json");
  const auto json = expect_json(cli(with_json));
  ASSERT_EQ(json["forecasts"].size(), 3u);
  for (const auto& forecast : json["forecasts"]) {
    EXPECT_GT(forecast["ms"], 0);
    for (const auto& [limit, share] : forecast["shares"].items()) EXPECT_LE(share, 1.0) << limit;
  }
  // Of the delta rule, what context parallelism may make of it: few heads compose, many have no room to.
  for (const char* heads : {"8", "48"}) {
    const auto delta = expect_json(cli({"plan", "gated-delta-forward", "--arch", "sm120", "--head-dim", "128",
                                        "--seqlen", "32768", "--heads-q", heads, "--predict", "--json"}));
    for (const auto& forecast : delta["forecasts"]) {
      EXPECT_EQ(forecast["composed"].is_null(), heads == std::string("48"));
      EXPECT_GE(forecast["most_parts"]["exact"], 1);
      if (forecast["composed"].is_null()) continue;
      EXPECT_LT(forecast["composed"]["ms"], forecast["ms"]);
    }
  }
  Words unknown = plan;
  unknown.insert(unknown.end(), {"--device", "rtx-1"});
  expect_error(cli(unknown), 2, {"rtx-1"});
}

TEST_F(Cli, CheckFailsOnWhatIsWrong) {
  TensorMap tensors = attention_inputs();
  tensors["v"].set(5, NAN);  // NaN in an output is always wrong
  const std::string in = file(tensors);
  const ProgramResult table = cli({"check", "attention-forward", in, "-o", output()});
  EXPECT_EQ(table.code, 1) << table.err;
  EXPECT_NE(table.out.find("WRONG"), std::string::npos) << table.out;
  EXPECT_TRUE(std::filesystem::exists(output()));
  const auto json = expect_json(cli({"check", "attention-forward", in, "--json"}), 1);
  EXPECT_EQ(json["passed"], false);
}

// ---- plan ----

nlohmann::json one_candidate(const nlohmann::json& plan) {
  EXPECT_EQ(plan["candidates"].size(), 1u);
  return plan["candidates"][0];
}

TEST_F(Cli, PlanKnowsItsAnswers) {
  struct Answer {
    const char* arch;
    const char* candidate;
    int64_t kib;
    bool fits;
    int64_t resident;
  };
  for (const Answer& answer : {Answer{"sm120", "block_q=128,block_kv=128", 96, true, 1},
                               Answer{"sm80", "block_kv=128,block_q=128,stages=1", 96, true, 1},
                               Answer{"sm120", "block_q=128,block_kv=128,warps=4,stages=2", 160, false, 0},
                               Answer{"sm80", "block_q=128,block_kv=128,warps=4,stages=2", 160, true, 1},
                               Answer{"sm120", "block_q=128,block_kv=176", 120, false, 0},
                               Answer{"sm80", "block_q=128,block_kv=176", 120, true, 1},
                               Answer{"sm120", "block_q=128,block_kv=80", 72, true, 1},
                               Answer{"sm80", "block_q=128,block_kv=80", 72, true, 2}}) {
    const auto plan = expect_json(cli({"plan", "attention-forward", "--arch", answer.arch, "--dtype", "bf16",
                                       "--head-dim", "128", "--candidate", answer.candidate, "--json"}));
    const auto candidate = one_candidate(plan);
    EXPECT_EQ(candidate["shared_bytes"], answer.kib * 1024) << answer.arch << " " << answer.candidate;
    EXPECT_EQ(candidate["fits"], answer.fits) << answer.arch << " " << answer.candidate;
    EXPECT_EQ(candidate["resident_blocks"], answer.resident) << answer.arch << " " << answer.candidate;
    EXPECT_EQ(candidate["reason"].get<std::string>().empty(), answer.fits);
    EXPECT_EQ(plan["chosen"].is_null(), !answer.fits);
  }
}

TEST_F(Cli, PlanHasTheSchemasKeys) {
  const auto plan = expect_json(
      cli({"plan", "gated-delta-forward", "--arch", "sm120", "--head-dim", "128", "--seqlen", "4096", "--json"}));
  for (const char* key : {"arch", "algorithm", "target", "output_path", "shared_limit", "chosen", "candidates"}) {
    EXPECT_TRUE(plan.contains(key)) << key;
  }
  EXPECT_EQ(plan["arch"], "sm120");
  EXPECT_EQ(plan["shared_limit"], 99 * 1024);
  EXPECT_EQ(plan["chosen"]["block_kv"], 32);
  for (const auto& candidate : plan["candidates"]) {
    for (const char* key :
         {"block_q", "block_kv", "block_v", "warps", "stages", "q_in_registers", "kernel", "padded_head_dim",
          "shared_bytes", "parts", "resident_blocks", "kv_iterations", "fits", "reason"}) {
      EXPECT_TRUE(candidate.contains(key)) << key;
    }
    EXPECT_EQ(candidate.size(), 14u);
    int64_t sum = 0;
    for (const auto& [name, bytes] : candidate["parts"].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(candidate["shared_bytes"], sum);
  }
}

TEST_F(Cli, PlanRefusesWrongRequests) {
  const Words start{"plan", "attention-forward", "--arch"};
  const auto plan = [&](const std::string& arch, const Words& more) {
    Words all = start;
    all.push_back(arch);
    all.insert(all.end(), more.begin(), more.end());
    return cli(all);
  };
  expect_error(plan("sm70", {"--head-dim", "128"}), 2, {"arch", "sm70"});
  expect_error(plan("sm120", {"--head-dim", "0"}), 2, {"--head-dim", "'0'"});
  expect_error(plan("sm120", {"--head-dim", "128", "--dtype", "fp8"}), 2, {"--dtype", "'fp8'"});
  expect_error(plan("sm120", {"--head-dim", "128", "--seqlen", "-1"}), 2, {"--seqlen", "'-1'"});
  expect_error(plan("sm120", {"--head-dim", "128", "--candidate", "block_q=128"}), 2, {"block_kv"});
  expect_error(plan("sm120", {"--head-dim", "128", "--candidate", "block_q=x,block_kv=1"}), 2, {"block_q", "x"});
  EXPECT_NE(plan("sm120", {"--head-dim", "128"}).out.find("chosen"), std::string::npos);
}

// ---- info and bench ----

TEST_F(Cli, InfoNamesBuildAndProfiles) {
  const auto info = expect_json(cli({"info", "--json"}));
  EXPECT_EQ(info["version"], FLASHDELTA_VERSION_STRING);
  EXPECT_GE(info["cpu"]["threads"], 1);
  EXPECT_EQ(info["profiles"].size(), 7u);
  EXPECT_EQ(info["cards"].size(), 5u);
  EXPECT_EQ(info["backends"][0]["name"], "cpu");
  EXPECT_EQ(info["backends"][0]["available"], true);
  EXPECT_NE(cli({"info"}).out.find("sm120"), std::string::npos);
}

TEST_F(Cli, BenchTimesOneCaseFromFlags) {
  const Words shape{"--batch", "2",          "--heads-q", "4",       "--heads-k", "2",        "--seqlen",
                    "24",      "--head-dim", "32",        "--dtype", "fp32",      "--repeat", "3"};
  const auto bench = [&](const std::string& operation, const Words& more) {
    Words all{"bench", operation};
    all.insert(all.end(), shape.begin(), shape.end());
    all.insert(all.end(), more.begin(), more.end());
    return cli(all);
  };
  for (const char* operation : {"attention-forward", "gdn-forward"}) {
    const auto json = expect_json(bench(operation, {"--json"}));
    ASSERT_EQ(json["results"].size(), 1u);
    const auto& result = json["results"][0];
    EXPECT_GT(result["median_s"], 0.0);
    EXPECT_LE(result["min_s"], result["median_s"]);
    EXPECT_GE(result["max_s"], result["median_s"]);
    EXPECT_NEAR(result["tokens_per_s"].get<double>() * result["median_s"].get<double>(), 48, 1e-6);
    EXPECT_EQ(result["dtype"], "fp32");
  }
  const std::string csv = bench("attention-forward", {"--format", "csv", "--causal"}).out;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
  EXPECT_NE(bench("attention-forward", {"--head-dim-v", "64"}).out.find("FLOP/s"), std::string::npos);
  expect_error(bench("attention-forward", {"--l2norm"}), 2, {"--l2norm"});
  expect_error(bench("attention-forward", {"--head-dim-v", "33"}), 2, {"33"});
  expect_error(bench("gdn-forward", {"--heads-k", "3"}), 2, {});
}

TEST_F(Cli, BenchListsItsCases) {
  const auto json = expect_json(cli({"bench", "--list", "--json"}));
  ASSERT_GT(json["cases"].size(), 10u);
  const std::string name = json["cases"][0]["name"];
  const auto timed = expect_json(cli({"bench", "--case", name, "--repeat", "1", "--warmup", "0", "--json"}));
  EXPECT_EQ(timed["results"][0]["name"], name);
}

}  // namespace
}  // namespace flashdelta
