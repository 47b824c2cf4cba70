// The attention forward kernels' own PTX on the emulator of an SM120, against float64: the public vectors, the case
// list, hostile and random shapes with padding and outputs of NaN. A detector that speaks up fails the call.
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "cases/cases.hpp"
#include "cpu_attention_call.hpp"
#include "device/attention_forward.hpp"
#include "device/emulator_device.hpp"
#include "device/gpu_backends.hpp"
#include "io/check_tally.hpp"
#include "io/tensor_file.hpp"
#include "support.hpp"

namespace flashdelta {

void PrintTo(const Case& one, std::ostream* out) { *out << one.name << " (" << one.source << ")"; }

namespace test {
namespace {

namespace fs = std::filesystem;
using emulator::Counter;

flashdelta_execution on_emulator() {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = FLASHDELTA_BACKEND_EMULATOR;
  execution.arch = 120;
  execution.num_threads = 2;
  return execution;
}

// gtest's parameterised and plain fixtures alike.
template <class Base>
class NeedsKernels : public Base {
 protected:
  void SetUp() override {
    const Status status = emulator_available();
    if (!status.ok()) GTEST_SKIP() << status.message;
  }
};

// ---- The public vectors ----

class EmulatorAttentionVectors : public NeedsKernels<testing::TestWithParam<fs::path>> {};

CallOptions options_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const auto metadata = nlohmann::json::parse(header).at("__metadata__");
  const auto json = nlohmann::json::parse(metadata.at("options").get<std::string>());
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
    } else {
      ADD_FAILURE() << "an option that this test does not know: " << name;
    }
  }
  return options;
}

// What the kernels take; all else they refuse by name.
bool in_the_kernels(const AttentionProblem& p) { return p.q.dtype != FLASHDELTA_FP32; }

// Runs, or is refused where it should be; true: it ran.
bool run_or_refuse(Call& call) {
  AttentionProblem problem;
  EXPECT_TRUE(make_problem(call.attention, &problem).ok());
  for (const auto& [name, tensor] : call.outputs) poison(tensor);
  const Status ran = run_call(call, on_emulator());
  const bool expected = in_the_kernels(problem);
  EXPECT_EQ(ran.code, expected ? FLASHDELTA_OK : FLASHDELTA_NOT_SUPPORTED) << ran.message;
  return expected && ran.ok();
}

TEST_P(EmulatorAttentionVectors, meet_the_answers) {
  TensorMap tensors;
  const FileError error = read_tensors(GetParam().string(), &tensors, nullptr);
  ASSERT_TRUE(error.ok()) << error.message;
  Call call = call_of(Operation::attention_forward, tensors, options_of(GetParam()));
  if (!run_or_refuse(call)) return;
  for (const std::string name : {"o", "lse"}) {
    const HostTensor &got = call.outputs.at(name), &want = tensors.at("expected_" + name);
    Tally tally;
    ASSERT_EQ(got.shape(), want.shape());
    for (int64_t i = 0; i < want.numel(); i++) tally.add(got.get(i), want.get(i));
    if (name == "o") {
      EXPECT_EQ(tally.verdict("o", tally.relative_l2(), tolerance_of(tensors.at("q").dtype()), 0).fault, "");
    } else {
      EXPECT_EQ(tally.verdict("lse", tally.lse_error(), 2e-3, 0).fault, "");
    }
  }
}

std::vector<fs::path> vector_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FLASHDELTA_SOURCE_DIR "/tests/vectors")) {
    if (entry.path().filename().string().rfind("attn_", 0) == 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, EmulatorAttentionVectors, testing::ValuesIn(vector_files()),
                         [](const auto& file) { return file.param.stem().string(); });

// ---- The case list ----

// Larger cases are for the GPU. Blocks of short sequences cost the emulator what their padded tiles cost.
bool small_enough(const Case& one) {
  double work = 0;
  for (size_t b = 0; b < one.lengths_q.size(); b++) {
    const double rows = static_cast<double>(one.lengths_q[b] * one.heads_q + 64 * one.heads_k);
    work += rows * static_cast<double>((one.lengths_k[b] + 64) * (one.head_dim + one.head_dim_v));
  }
  return work < 5e9;
}

std::vector<Case> small_attention_cases() {
  std::vector<Case> small;
  for (const Case& one : cases()) {
    if (one.operation == Operation::attention_forward && small_enough(one)) small.push_back(one);
  }
  return small;
}

class EmulatorAttentionCases : public NeedsKernels<testing::TestWithParam<Case>> {};

TEST_P(EmulatorAttentionCases, agree_with_the_oracle) {
  const Case& one = GetParam();
  Call call = call_of(one.operation, one.inputs(one, 7), one.options);
  ASSERT_FALSE(HasFailure());
  if (!run_or_refuse(call)) return;
  std::vector<OutputError> errors;
  ASSERT_TRUE(check_call(call, 7, &errors).ok());
  ASSERT_FALSE(errors.empty());
  for (const OutputError& error : errors) EXPECT_EQ(error.fault, "") << error.name << " " << error.relative_l2;
}

INSTANTIATE_TEST_SUITE_P(All, EmulatorAttentionCases, testing::ValuesIn(small_attention_cases()),
                         [](const auto& one) { return one.param.name; });

// ---- Shapes made to hurt ----

class EmulatorAttention : public NeedsKernels<testing::Test> {};

// In a workspace of exactly the size asked for, its bytes NaN.
Status emulate(EmulatorDevice& device, const AttentionProblem& problem) {
  const ArchProfile& arch = *device.info().arch;
  size_t bytes = 0;
  FLASHDELTA_RETURN_IF_ERROR(attention_forward_workspace_on(problem, arch, device.info().sm_count, &bytes));
  std::vector<float> workspace(bytes / 4 + 1, std::numeric_limits<float>::quiet_NaN());
  const Status status = attention_forward_on(device, arch, problem, workspace.data(), nullptr);
  EXPECT_TRUE(std::isnan(workspace.back())) << "wrote past the workspace";
  return status;
}

// On a device of its own, with that seed's order of warps and blocks; gaps between rows must stay NaN.
emulator::Counters expect_right_on_emulator(const AttentionOptions& options, uint32_t seed,
                                            const std::function<void(AttentionCall&)>& change = {},
                                            const char* arch = "sm120") {
  AttentionCall call(options);
  if (change) change(call);
  EXPECT_TRUE(call.run().ok());  // on the CPU: it binds the problem that check() reads
  for (const flashdelta_tensor* t : {&call.arguments().o, &call.arguments().lse}) {
    const size_t bytes = t == &call.arguments().o ? call.o_memory().size() : call.lse_memory().size();
    std::memset(t->data, 0xff, t->data == nullptr ? 0 : bytes);
  }
  AttentionProblem problem;
  EXPECT_TRUE(make_problem(call.arguments(), &problem).ok());
  EmulatorDevice device(*parse_arch(arch), 2, seed);
  const Status status = emulate(device, problem);
  EXPECT_TRUE(status.ok()) << status.message;
  call.check();
  EXPECT_EQ(device.counters()[Counter::kSharedWavefronts], device.counters()[Counter::kSharedWavefrontsIdeal]);
  return device.counters();
}

AttentionOptions packed(std::vector<int64_t> q, std::vector<int64_t> k) {
  AttentionOptions x;
  x.q = std::move(q), x.k = std::move(k);
  x.packed_q = true;
  x.keys = Keys::packed;
  return x;
}

// The kernels of a call on a card of that many SMs.
ForwardChoice choice_of(AttentionCall& call, const char* arch, int sm_count) {
  AttentionProblem problem;
  EXPECT_TRUE(make_problem(call.arguments(), &problem).ok());
  ForwardChoice choice;
  EXPECT_TRUE(choose_forward(problem, *parse_arch(arch), sm_count, &choice).ok());
  return choice;
}

TEST_F(EmulatorAttention, EveryScheduleOfTheWarps) {
  AttentionOptions x = packed({70, 0, 33}, {90, 5, 130});
  x.heads_q = 2;
  x.causal = true;
  for (uint32_t seed = 0; seed < 6; seed++) {
    x.head_dim = x.head_dim_v = seed % 2 == 0 ? 64 : 128;
    x.seed = seed + 1;
    expect_right_on_emulator(x, seed);
  }
}

TEST_F(EmulatorAttention, LogitsThatRamp) {
  AttentionOptions x = packed({40}, {300});
  for (double slope : {1.0, 30.0, -30.0}) {
    expect_right_on_emulator(x, 1, [&](AttentionCall& call) {
      call.write_k([&](int64_t, int64_t j, int64_t, int64_t c, float old) {
        return c == 0 ? static_cast<float>(slope) * static_cast<float>(j) : old;
      });
      call.write_q([](int64_t, int64_t, int64_t, int64_t c, float old) { return c == 0 ? 4.f : old; });
    });
  }
}

int64_t any_of(std::mt19937& random, std::initializer_list<int64_t> values) {
  return *(values.begin() + random() % values.size());
}

AttentionOptions random_options(std::mt19937& random) {
  AttentionOptions x = packed({}, {});
  for (int64_t sequences = 1 + random() % 3; sequences > 0; sequences--) {
    x.q.push_back(any_of(random, {0, 1, 9, 63, 65, 100}));
    x.k.push_back(any_of(random, {0, 1, 9, 63, 65, 129, 192}));
  }
  x.dtype = random() % 2 == 0 ? FLASHDELTA_BF16 : FLASHDELTA_FP16;
  if (random() % 3 == 0) x.o_dtype = FLASHDELTA_FP32;
  x.heads_k = 1 + random() % 2;
  x.heads_q = x.heads_k * any_of(random, {1, 2, 3, 7});
  x.head_dim = any_of(random, {8, 40, 64, 72, 104, 128, 160, 192, 256, 264, 512});
  x.head_dim_v = random() % 2 == 0 ? x.head_dim : any_of(random, {16, 64, 88, 128, 264});
  x.causal = random() % 2 == 0;
  if (random() % 3 == 0) x.window_left = any_of(random, {0, 5, 70});
  if (!x.causal && random() % 3 == 0) x.window_right = any_of(random, {0, 5, 70});
  x.sink = random() % 3 == 0;
  if (random() % 3 == 0) x.softcap = any_of(random, {1, 20, 50});
  x.keys = std::array{Keys::packed, Keys::paged, Keys::cached, Keys::dense}[random() % 4];
  x.page_size = any_of(random, {1, 16, 48, 64, 256});
  x.lse = random() % 4 != 0;
  x.seed = random();
  return x;
}

TEST_F(EmulatorAttention, RandomShapes) {
  std::mt19937 random(20261129);
  for (uint32_t i = 0; i < 60; i++) {
    const AttentionOptions x = random_options(random);
    expect_right_on_emulator(x, i);
    if (HasFailure()) {
      FAIL() << "shape " << i << ": D " << x.head_dim << " DV " << x.head_dim_v << " softcap " << x.softcap << " keys "
             << static_cast<int>(x.keys) << " page " << x.page_size << " window " << x.window_left << " "
             << x.window_right << " sink " << x.sink;
    }
  }
}

// A cap far over every logit changes nothing, one far under them makes all weights equal.
TEST_F(EmulatorAttention, CapsOfAnySize) {
  for (double softcap : {1e-40, 1e-6, 0.5, 1e4, 1e12, 1e40}) {
    AttentionOptions x = packed({20}, {70});
    x.softcap = softcap;
    x.gain = 3;
    x.dtype = FLASHDELTA_FP16;
    expect_right_on_emulator(x, 1);
  }
}

// Lengths, rows and pages come from the device unchecked there: a kernel that follows a wild one leaves the tensors.
TEST_F(EmulatorAttention, WildIndicesStayInside) {
  AttentionOptions x;
  x.q = {5, 5}, x.k = {60, 33};
  for (const Keys keys : {Keys::paged, Keys::cached, Keys::dense}) {
    x.keys = keys;
    AttentionCall call(x);
    AttentionProblem problem;
    ASSERT_TRUE(make_problem(call.arguments(), &problem).ok());
    std::vector<int64_t> used = {1'000'000'000'000, -5};
    std::vector<int32_t> wild(static_cast<size_t>(2 * (keys == Keys::paged ? problem.page_table.row_stride : 1)));
    for (size_t i = 0; i < wild.size(); i++) wild[i] = i % 2 == 0 ? -100 : 2'000'000'000;
    problem.seqused_k.data = used.data();
    if (keys == Keys::paged) problem.page_table.data = wild.data();
    if (keys == Keys::cached) problem.cache_batch_idx.data = wild.data();
    EmulatorDevice device(*parse_arch("sm120"), 2, 1);
    const Status status = emulate(device, problem);
    EXPECT_TRUE(status.ok()) << status.message;
  }
}

// Few rows against many keys: blocks share the keys, and another kernel adds up what they found.
TEST_F(EmulatorAttention, SplitKeys) {
  AttentionOptions x;
  x.heads_q = 6, x.heads_k = 2;
  x.k = {1500, 0, 700};
  x.causal = true;
  for (const int64_t dim : {64, 128, 256, 512}) {
    x.head_dim = dim, x.head_dim_v = dim == 128 ? 72 : dim;
    x.dtype = dim == 128 ? FLASHDELTA_FP16 : FLASHDELTA_BF16;
    x.o_dtype = dim == 64 ? FLASHDELTA_FP32 : FLASHDELTA_NONE;
    x.keys = dim == 256 ? Keys::paged : dim == 512 ? Keys::dense : Keys::packed;
    x.packed_q = dim != 64;
    x.q = x.packed_q ? std::vector<int64_t>{1, 3, 2} : std::vector<int64_t>{2, 2, 2};
    x.sink = dim != 128;
    x.lse = dim != 512;
    x.window_left = dim == 256 ? 1200 : -1;
    x.seed = static_cast<uint64_t>(dim);
    AttentionCall call(x);
    const ForwardChoice choice = choice_of(call, "sm120", 170);
    EXPECT_GT(choice.splits, 3);
    expect_right_on_emulator(x, 1);
  }
}

// Every row for few query rows: their number, head sizes that are padded, pages of whole tiles, all that masks and
// caps.
TEST_F(EmulatorAttention, FewRows) {
  struct Rows {
    std::vector<int64_t> q;
    int64_t group;
    const char* kernel;
  };
  const Rows few[] = {{{1, 1, 0}, 6, "q16"}, {{2, 1, 2}, 8, "q16"}, {{16, 3, 9}, 4, "q64"}, {{3, 1, 0}, 20, "q64"}};
  uint32_t seed = 0;
  for (const flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    for (const int64_t dim : {40, 64, 72, 128, 192, 256}) {
      for (const Rows& rows : few) {
        AttentionOptions x = packed(rows.q, {300, 17, 140});
        x.dtype = dtype;
        x.heads_k = 1 + seed % 2, x.heads_q = x.heads_k * rows.group;
        x.head_dim = dim, x.head_dim_v = seed % 3 == 0 ? dim : dim - 8;
        x.keys = std::array{Keys::packed, Keys::paged, Keys::cached, Keys::dense}[seed % 4];
        x.page_size = seed % 8 == 1 ? 64 : 128;
        x.causal = seed % 2 == 0;
        if (x.keys == Keys::dense) x.k = {140, 140, 140};
        x.window_left = seed % 5 == 0 ? 90 : -1;
        x.sink = seed % 3 == 1, x.softcap = seed % 7 == 2 ? 20 : 0;
        x.seed = ++seed;
        const auto bound = [&](AttentionCall& call) {
          call.arguments().max_seqlen_q = *std::max_element(rows.q.begin(), rows.q.end());
        };
        AttentionCall call(x);
        bound(call);
        const ForwardChoice choice = choice_of(call, "sm120", 170);
        ASSERT_NE(choice.decode, nullptr) << dim << " " << rows.kernel;
        EXPECT_NE(std::string(choice.decode->name).find(rows.kernel), std::string::npos) << choice.decode->name;
        expect_right_on_emulator(x, seed, bound);
      }
    }
  }
}

// 65 to 96 rows, whose last groups have two warps each, on a card of one SM, which any work fills.
TEST_F(EmulatorAttention, RowsSpreadOverPairsOfWarps) {
  struct Rows {
    std::vector<int64_t> q, k;
    int64_t group;
  };
  const Rows all[] = {
      {{16, 3, 9}, {300, 17, 140}, 6}, {{65, 0, 1}, {65, 9, 33}, 1}, {{20, 20, 20}, {150, 150, 150}, 4}};
  uint32_t seed = 0;
  for (const flashdelta_dtype dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16}) {
    for (const int64_t dim : {256, 200}) {
      for (const Rows& rows : all) {
        AttentionOptions x = packed(rows.q, rows.k);
        x.dtype = dtype;
        x.heads_k = 1 + seed % 2, x.heads_q = x.heads_k * rows.group;
        x.head_dim = dim, x.head_dim_v = dim == 200 ? 136 : dim;
        x.causal = seed % 4 != 1;
        x.keys = std::array{Keys::packed, Keys::cached, Keys::dense}[seed % 3];
        if (x.keys == Keys::dense) x.k = {150, 150, 150};
        x.window_left = seed % 5 == 3 ? 40 : -1;
        x.sink = seed % 2 == 1, x.o_dtype = seed % 3 == 1 ? FLASHDELTA_FP32 : FLASHDELTA_NONE;
        x.seed = ++seed;
        const auto bound = [&](AttentionCall& call) {
          call.arguments().max_seqlen_q = *std::max_element(rows.q.begin(), rows.q.end());
        };
        AttentionCall call(x);
        bound(call);
        const ForwardChoice choice = choice_of(call, "sm121", 1);
        ASSERT_NE(choice.row, nullptr);
        EXPECT_TRUE(choice.row->config.paired) << choice.row->name;
        const emulator::Counters counters = expect_right_on_emulator(x, seed, bound, "sm121");
        EXPECT_GT(counters[Counter::kBulkBytes], 0u);
        if (seed % 4 != 0) continue;  // and piece by piece
        EXPECT_EQ(expect_right_on_emulator(x, seed, bound, "sm89")[Counter::kBulkBytes], 0u);
      }
    }
  }
}

// Boxes bring what lies behind a sequence's end as well, and cp.async zeros: the same bits go out.
TEST_F(EmulatorAttention, PairsOfWarpsWithBoxesAndPieceByPiece) {
  AttentionOptions x = packed({16, 3, 9}, {300, 17, 140});
  x.heads_q = 6, x.head_dim = x.head_dim_v = 256, x.causal = true;
  for (const Keys keys : {Keys::packed, Keys::cached}) {
    x.keys = keys;
    AttentionCall call(x);
    call.arguments().max_seqlen_q = 16;
    AttentionProblem problem;
    ASSERT_TRUE(make_problem(call.arguments(), &problem).ok());
    std::vector<char> boxes;
    for (const char* arch : {"sm121", "sm89"}) {
      EmulatorDevice device(*parse_arch(arch), 2, 1);
      ASSERT_TRUE(emulate(device, problem).ok());
      EXPECT_EQ(device.counters()[Counter::kBulkBytes] > 0, boxes.empty()) << arch;
      if (boxes.empty()) boxes = call.o_memory();
      EXPECT_EQ(call.o_memory(), boxes) << arch;
    }
  }
}

// Keys that climb from tile to tile, warp to warp and part to part: whatever joins parts must rescale.
TEST_F(EmulatorAttention, FewRowsOfLogitsThatRamp) {
  for (const double slope : {30.0, -30.0}) {
    for (const int64_t queries : {1, 16, 24}) {
      AttentionOptions x = packed({queries}, {700});
      x.heads_q = 4, x.head_dim = x.head_dim_v = queries == 24 ? 256 : 128;
      const auto ramp = [&](AttentionCall& call) {
        call.write_k([&](int64_t, int64_t j, int64_t, int64_t c, float old) {
          return c == 0 ? static_cast<float>(slope) * static_cast<float>(j) : old;
        });
        call.write_q([](int64_t, int64_t, int64_t, int64_t c, float old) { return c == 0 ? 4.f : old; });
      };
      expect_right_on_emulator(x, 1, ramp, queries == 24 ? "sm121" : "sm120");  // 96 rows: pairs of warps
    }
  }
}

// Pages smaller than a tile of the rows for few queries are the general rows'.
TEST_F(EmulatorAttention, PagesOfAnySizeAreTaken) {
  AttentionOptions x;
  x.q = {2, 2}, x.k = {150, 40};
  x.keys = Keys::paged;
  for (const int64_t page : {1, 8, 24, 16, 32}) {
    x.page_size = page;
    AttentionCall call(x);
    const ForwardChoice choice = choice_of(call, "sm120", 170);
    EXPECT_EQ(choice.decode != nullptr, page % 16 == 0) << page;
    expect_right_on_emulator(x, 1);
  }
}

// The rows that want more blocks an SM than SM120 holds, under an architecture that holds them.
TEST_F(EmulatorAttention, RowsOfLargerCards) {
  for (const int64_t dim : {128, 256, 232}) {
    AttentionOptions x = packed({190, 100}, {150, 90});
    x.heads_q = x.heads_k = 60, x.head_dim = x.head_dim_v = dim;
    x.causal = dim != 256;
    x.window_left = dim == 232 ? 50 : -1;
    AttentionCall call(x);
    EXPECT_TRUE(call.run().ok());
    std::memset(call.arguments().o.data, 0xff, call.o_memory().size());
    std::memset(call.arguments().lse.data, 0xff, call.lse_memory().size());
    AttentionProblem problem;
    ASSERT_TRUE(make_problem(call.arguments(), &problem).ok());
    ForwardChoice choice;
    EmulatorDevice device(*parse_arch("sm90"), 2, 1);
    ASSERT_TRUE(choose_forward(problem, *parse_arch("sm90"), device.info().sm_count, &choice).ok());
    ASSERT_NE(choice.row, nullptr);
    EXPECT_EQ(choice.row->wanted_blocks, 2) << choice.row->name;
    const Status status = emulate(device, problem);
    EXPECT_TRUE(status.ok()) << status.message;
    call.check();
  }
}

// One block more than the card has SMs: the last query tile is shared by several blocks.
AttentionOptions one_tile_over(int64_t dim) {
  AttentionOptions x;
  const int64_t keys = dim == 256 ? 400 : 520;
  x.q = {33, 33, 33}, x.k = {keys, keys, keys};
  x.heads_k = 57, x.heads_q = 114;
  x.head_dim = x.head_dim_v = dim;
  x.seed = static_cast<uint64_t>(dim);
  return x;
}

void without_used_lengths(AttentionCall& call) {
  call.arguments().seqused_k = {};
  for (flashdelta_tensor* x : {&call.arguments().k, &call.arguments().v}) x->shape[1] -= 2;  // all that there are
}

TEST_F(EmulatorAttention, LastTilesAreShared) {
  for (const int64_t dim : {64, 128, 256}) {
    AttentionOptions x = one_tile_over(dim);
    if (dim == 128) x.head_dim_v = 72, x.dtype = FLASHDELTA_FP16;
    if (dim == 64) x.o_dtype = FLASHDELTA_FP32;
    x.sink = dim != 256, x.lse = dim != 128;
    AttentionCall call(x);
    without_used_lengths(call);
    const ForwardChoice choice = choice_of(call, "sm120", 170);
    ASSERT_NE(choice.row, nullptr);
    EXPECT_EQ(choice.tail.whole_blocks, 170) << choice.row->name;
    EXPECT_GT(choice.tail.parts, 2);
    expect_right_on_emulator(x, static_cast<uint32_t>(dim), without_used_lengths);
  }
}

// Lengths that the device alone knows, and blocks of unequal work, get a block a tile.
TEST_F(EmulatorAttention, TilesOfUnknownLengthAreNotShared) {
  for (const int kind : {0, 1, 2}) {
    AttentionOptions x = one_tile_over(64);
    if (kind == 0) x.packed_q = true, x.keys = Keys::packed;
    if (kind == 1) x.causal = true;
    AttentionCall call(x);
    if (kind == 1) without_used_lengths(call);
    const ForwardChoice choice = choice_of(call, "sm120", 170);
    EXPECT_EQ(choice.tail.parts, 1);
  }
}

// Causal sequences long enough that the short query tiles of all of them come after the others.
TEST_F(EmulatorAttention, ShortTilesComeLast) {
  AttentionOptions x = packed({300, 3, 150}, {300, 40, 200});
  x.heads_q = 8, x.heads_k = 2, x.head_dim = x.head_dim_v = 64, x.causal = true;
  AttentionCall call(x);
  AttentionProblem problem;
  ASSERT_TRUE(make_problem(call.arguments(), &problem).ok());
  const AttentionForwardParams params = forward_params(problem, ForwardTile(decode_rows[2]));
  EXPECT_EQ(params.q_tiles, 29);
  EXPECT_EQ(params.late_tiles, 3);
  expect_right_on_emulator(x, 5);
}

// The same call gives the same bits, in whatever order blocks run.
TEST_F(EmulatorAttention, SharedKeysHaveOneAnswer) {
  AttentionOptions few = packed({2}, {2000});
  few.heads_q = 4;
  for (const AttentionOptions& x : {few, one_tile_over(64)}) {
    AttentionCall call(x);
    if (!x.packed_q) without_used_lengths(call);
    AttentionProblem problem;
    ASSERT_TRUE(make_problem(call.arguments(), &problem).ok());
    std::vector<char> first;
    for (uint32_t seed = 0; seed < 3; seed++) {
      EmulatorDevice device(*parse_arch("sm120"), 2, seed);
      ASSERT_TRUE(emulate(device, problem).ok());
      if (seed == 0) first = call.o_memory();
      EXPECT_EQ(call.o_memory(), first);
    }
  }
}

// Exact counts: 100 queries of two heads that share 192 keys are 200 rows in four q64 blocks of three key tiles. Of the
// 16 warps 13 have rows, and each of those does 2 * 32 mma a tile.
TEST_F(EmulatorAttention, CountersAreExact) {
  AttentionOptions x = packed({100}, {192});
  x.heads_q = 2;
  const emulator::Counters c = expect_right_on_emulator(x, 3);
  const uint64_t blocks = 4, tiles = 3, warps = 4 * blocks, busy = 13;
  EXPECT_EQ(c[Counter::kMmaBf16], busy * tiles * 64);
  EXPECT_EQ(c[Counter::kLdmatrix], busy * tiles * (32 + 3) + warps * (tiles + 1));
  EXPECT_EQ(c[Counter::kCpAsync], warps * (4 + tiles * 8));
  EXPECT_EQ(c[Counter::kCpAsyncBytes], 200u * 128 + blocks * 192 * 256);
  EXPECT_EQ(c[Counter::kSharedLoadBytes], c[Counter::kLdmatrix] * 512);
  EXPECT_EQ(c[Counter::kSharedStoreBytes], 0u);
  EXPECT_EQ(c[Counter::kGlobalStoreBytes], 200u * (128 + 4));
  EXPECT_EQ(c[Counter::kEx2], busy * (tiles * 32 + 2) + warps * 4);
  EXPECT_EQ(c[Counter::kBarrier], warps * 2);
  EXPECT_EQ(c[Counter::kLocal], 0u);
  EXPECT_EQ(c[Counter::kSharedWavefronts], c[Counter::kSharedWavefrontsIdeal]);
}

}  // namespace
}  // namespace test
}  // namespace flashdelta
