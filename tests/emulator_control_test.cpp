// Control flow: lanes that part and meet again, early returns, switches, local arrays; what a module refuses to load.
#include <array>
#include <cstring>
#include <functional>

#include "emulator/control.h"
#include "emulator/harness.hpp"

namespace flashdelta::test {
namespace {

using emulator::Counter;

class Control : public EmulatorTest {
 protected:
  Outcome run(const std::string& kernel, uint32_t threads, uint32_t seed) {
    out.assign(threads, 0);
    Launcher launcher("control", kernel);
    launcher.buffer(out).parameters(out.data());
    launcher.launch.block = {threads, 1, 1};
    Outcome r = launcher.run(seed);
    EXPECT_TRUE(r.status.ok()) << r.status.message;
    EXPECT_TRUE(r.report.silent()) << r.report.text();
    return r;
  }

  std::vector<int> out;
};

TEST_F(Control, LanesTakeTheirOwnPaths) {
  struct Case {
    const char* name;
    int (*function)(int, int*);
  };
#define CONTROL_CASE(name) {#name, control_##name},
  const Case cases[] = {FOR_EACH_CONTROL_KERNEL(CONTROL_CASE)};
#undef CONTROL_CASE
  int something = 0;
  for (const Case& c : cases) {
    for (uint32_t threads : {32u, 128u, 45u}) {
      run(c.name, threads, threads);
      for (uint32_t i = 0; i < threads; ++i) {
        ASSERT_EQ(out[i], c.function(static_cast<int>(i), &something)) << c.name << " thread " << i;
      }
    }
  }
}

TEST_F(Control, EarlyReturns) {
  run("early_returns", 32, 0);
  std::vector<int> expected(32);
  for (int i = 0; i < 32; ++i) {
    int x = i;
    bool returned = i % 5 == 0;
    expected[static_cast<size_t>(i)] = -5;
    for (int k = 0; k < i && !returned; ++k) {
      x += k;
      returned = x > 100;
      expected[static_cast<size_t>(i)] = -x;
    }
    if (!returned) expected[static_cast<size_t>(i)] = x;
  }
  EXPECT_EQ(out, expected);
}

TEST_F(Control, WarpWideInstructionsAfterDivergence) {
  const Outcome r = run("meets_again", 64, 3);
  EXPECT_EQ(r.counters[Counter::kShuffle], 8u);
  std::vector<int> x(64);
  for (int i = 0; i < 64; ++i) x[static_cast<size_t>(i)] = i;
  for (int k = 0; k < 4; ++k) {
    for (int& v : x) {
      v = (v & 1) != 0 ? 3 * v + 1 : v / 2;
      while (v > 50) v -= 7;
    }
    std::vector<int> y = x;
    for (size_t i = 0; i < 64; ++i) x[i] = y[i ^ 1] + k;
  }
  EXPECT_EQ(out, x);
}

// Module::load needs no nvcc: the text is here.
std::string kernel_text(const std::string& body) {
  return ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n"
         ".reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;\nld.param.u64 %rd1, [out];\n" +
         body + "\nret;\n}\n";
}

std::string refusal(const std::string& body) {
  emulator::Module module;
  const Status status = module.load(kernel_text(body));
  EXPECT_FALSE(status.ok()) << body;
  return status.message;
}

TEST(Loading, RefusesWhatItDoesNotKnowByNameAndLine) {
  EXPECT_NE(refusal("wgmma.fence.sync.aligned;").find("PTX line 8: the emulator does not know the opcode wgmma.fence"),
            std::string::npos);
  EXPECT_NE(refusal("mov.u64 %rd2, %globaltimer;").find("%globaltimer"), std::string::npos);
  EXPECT_NE(refusal("call.uni (%r1), vprintf, (%rd1, %rd2);").find("call.uni"), std::string::npos);
  EXPECT_NE(refusal("add.s32 %r1, %r2;").find("this form: add.s32 %r1, %r2 (kernel k)"), std::string::npos);
  EXPECT_NE(refusal("add.s32 %r1, %r2, %nothing;").find("the operand %nothing"), std::string::npos);
  EXPECT_NE(refusal("bra nowhere;").find("nowhere"), std::string::npos);
  EXPECT_NE(refusal("add.s32 %r1, %r2, %rd1;").find("%rd1"), std::string::npos);
  EXPECT_NE(refusal("@%p9 bra nowhere;").find("%p9"), std::string::npos);
  emulator::Module module;
  EXPECT_FALSE(module.load("this is no PTX").ok());
  EXPECT_FALSE(emulator::Module().load(".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<2>;\nret;\n").ok());
}

TEST(Loading, ReadsKernelFacts) {
  emulator::Module module;
  const Status status = module.load(
      ".version 9.0\n.target sm_120\n.address_size 64\n.shared .align 16 .b8 tile[48];\n"
      ".visible .entry first(.param .u32 a, .param .u64 b, .param .align 8 .b8 c[20])\n.reqntid 64, 2, 1\n"
      "{\n.reg .b32 %r<2>;\n.shared .align 4 .b8 more[6];\nmov.u32 %r1, tile;\nret;\n}\n"
      ".visible .entry second()\n.maxntid 96\n{\nret;\n}\n");
  ASSERT_TRUE(status.ok()) << status.message;
  emulator::KernelInfo info;
  ASSERT_TRUE(module.find("first", &info).ok());
  EXPECT_EQ(info.parameters.size(), 3u);
  EXPECT_EQ(info.parameters[1].offset, 8u);
  EXPECT_EQ(info.parameter_bytes, 36u);
  EXPECT_EQ(info.static_shared_bytes, 54u);
  EXPECT_EQ(info.max_threads, 128u);
  EXPECT_EQ(info.required_block[1], 2u);
  ASSERT_TRUE(module.find("sec", &info).ok());
  EXPECT_EQ(info.max_threads, 96u);
  EXPECT_EQ(info.static_shared_bytes, 0u);
  EXPECT_FALSE(module.find("third", &info).ok());
}

// Packing into 16 bits, as fp16 and as bf16: what is too large becomes the largest finite number only where it is told
// to.
TEST(Modules, SaturatingPacksStayFinite) {
  const std::string ptx =
      ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n"
      ".reg .b32 %r<5>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [out];\n"
      "cvt.rn.satfinite.f16x2.f32 %r1, 0f7F7FFFFF, 0fFF800000;\ncvt.rn.f16x2.f32 %r2, 0f7F7FFFFF, 0f3F800000;\n"
      "cvt.rn.satfinite.bf16x2.f32 %r3, 0f7F800000, 0f3F800000;\ncvt.rn.bf16x2.f32 %r4, 0f7F7FFFFF, 0f3F800000;\n"
      "st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};\nret;\n}\n";
  emulator::Module module;
  const Status loaded = module.load(ptx);
  ASSERT_TRUE(loaded.ok()) << loaded.message;
  alignas(16) std::array<uint32_t, 4> out{};
  emulator::Memory memory;
  memory.add(out.data(), sizeof out, "out");
  emulator::Launch launch;
  launch.kernel = "k";
  launch.block = {1, 1, 1};
  const auto address = reinterpret_cast<uint64_t>(out.data());
  launch.parameters.resize(sizeof address);
  std::memcpy(launch.parameters.data(), &address, sizeof address);
  emulator::Report report;
  const Status ran = module.launch(memory, launch, &report, nullptr);
  ASSERT_TRUE(ran.ok()) << ran.message;
  EXPECT_TRUE(report.silent()) << report.text();
  EXPECT_EQ(out, (std::array<uint32_t, 4>{0x7bfffbff, 0x7c003c00, 0x7f7f3f80, 0x7f803f80}));
}

}  // namespace
}  // namespace flashdelta::test
