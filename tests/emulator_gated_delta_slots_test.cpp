// State pools over 2^31 elements (FlashInfer #3230): slots that lie that far apart, in memory of which only the touched
// pages are there.
#include <sys/mman.h>

#include "emulator_gated_delta_expect.hpp"

namespace flashdelta::test {
namespace {

constexpr int64_t slot_stride = (int64_t{1} << 31) + 64;

class FarSlots {
 public:
  explicit FarSlots(int64_t slots)
      : bytes_(static_cast<size_t>(slots * slot_stride * 4)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  FarSlots(const FarSlots&) = delete;
  FarSlots& operator=(const FarSlots&) = delete;
  ~FarSlots() {
    if (there()) munmap(data_, bytes_);
  }
  bool there() const { return data_ != MAP_FAILED; }
  float* slot(int64_t i) const { return static_cast<float*>(data_) + i * slot_stride; }

 private:
  size_t bytes_;
  void* data_;
};

class EmulatorGatedDeltaSlots : public EmulatorGatedDelta {};

TEST_F(EmulatorGatedDeltaSlots, FarApart) {
  for (int64_t tokens : {2, 33}) {  // the recurrent kernel, the chunked ones
    Options x;
    x.dim_k = x.dim_v = 64;
    x.lengths = {tokens};
    x.initial_pool = x.in_place = true;
    x.tokens_after = 0;
    Call call(x);
    const Answers answers = expected_answers(call);
    const std::vector<uint8_t> before = call.initial.bytes();
    GatedDeltaProblem far = answers.problem;
    const FarSlots memory(far.initial.slots);
    if (!memory.there()) GTEST_SKIP() << "no address space";
    const int64_t each = far.heads_v * far.dim_k * far.dim_v;
    for (int64_t i = 0; i < far.initial.slots * each; i++) {
      memory.slot(i / each)[i % each] = static_cast<float>(call.initial.get(i));
    }
    far.initial.data = reinterpret_cast<char*>(memory.slot(0));
    far.initial.slot_stride = slot_stride;
    far.initial.head_stride = far.dim_k * far.dim_v;
    far.initial.row_stride = far.dim_v;
    far.final = far.initial;
    const Status status = emulate(far, 1);
    ASSERT_TRUE(status.ok()) << status.message;
    for (int64_t i = 0; i < far.initial.slots * each; i++) call.initial.set(i, memory.slot(i / each)[i % each]);
    expect_close(call, answers, before, contract_factor(x));
  }
}

}  // namespace
}  // namespace flashdelta::test
