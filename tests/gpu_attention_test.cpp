// What only a card can show of attention: a call captured in a CUDA graph and replayed with other lengths, offsets and
// pages on the device, and keys that lie more than 2^31 elements apart. Where there is no device the program says so.
#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <random>
#include <type_traits>

#include "device/device.hpp"
#include "support.hpp"

namespace flashdelta::test {
namespace {

Device* device = nullptr;

// The few calls of the driver that the library itself has no use for.
struct GraphDriver {
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*stream_create)(void**, unsigned);
  int (*begin)(void*, int);
  int (*end)(void*, void**);
  int (*instantiate)(void**, void*, unsigned long long);
  int (*launch)(void*, void*);

  GraphDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto look_up = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      EXPECT_NE(function, nullptr) << name;
    };
    look_up(retain, "cuDevicePrimaryCtxRetain");
    look_up(set_current, "cuCtxSetCurrent");
    look_up(stream_create, "cuStreamCreate");
    look_up(begin, "cuStreamBeginCapture_v2");
    look_up(end, "cuStreamEndCapture");
    look_up(instantiate, "cuGraphInstantiateWithFlags");
    look_up(launch, "cuGraphLaunch");
    void* context = nullptr;
    EXPECT_EQ(retain(&context, 0), 0);
    EXPECT_EQ(set_current(context), 0);
  }
};

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { EXPECT_TRUE(device->allocate(bytes, &data_).ok()) << bytes; }
  template <typename T>
  explicit Memory(const std::vector<T>& host) : Memory(host.size() * sizeof(T)) {
    put(host);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { device->release(data_); }

  template <typename T>
  void put(const std::vector<T>& host, size_t at_byte = 0) {
    EXPECT_TRUE(device->copy_to_device(at(at_byte), host.data(), host.size() * sizeof(T)).ok());
  }
  std::vector<char> get() const {
    std::vector<char> host(bytes_);
    EXPECT_TRUE(device->copy_to_host(host.data(), data_, bytes_).ok());
    return host;
  }
  void* at(size_t byte = 0) const { return static_cast<char*>(data_) + byte; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// bf16 numbers of magnitude 0.5 to 1.
std::vector<uint16_t> numbers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> x(count);
  for (uint16_t& bits : x) bits = static_cast<uint16_t>(0x3f00 + (random() & 0x7f) + (random() & 1) * 0x8000);
  return x;
}

flashdelta_tensor view(void* data, flashdelta_dtype dtype, const std::vector<int64_t>& shape) {
  flashdelta_tensor t{};
  EXPECT_EQ(flashdelta_tensor_contiguous(data, dtype, static_cast<int32_t>(shape.size()), shape.data(), &t),
            FLASHDELTA_OK);
  return t;
}

flashdelta_execution on_stream(void* stream) {
  flashdelta_execution e = FLASHDELTA_EXECUTION_INIT;
  e.backend = FLASHDELTA_BACKEND_CUDA;
  e.stream = stream;
  return e;
}

size_t workspace_bytes(const flashdelta_attention_forward_args& args, const flashdelta_execution& e) {
  size_t bytes = 0;
  EXPECT_EQ(flashdelta_attention_forward_workspace(&args, &e, &bytes), FLASHDELTA_OK) << flashdelta_last_error();
  return bytes;
}

// Of a fresh call on the default stream.
std::vector<char> output_of(const flashdelta_attention_forward_args& args, const Memory& o) {
  const flashdelta_execution e = on_stream(nullptr);
  const size_t bytes = workspace_bytes(args, e);
  Memory workspace(std::max<size_t>(bytes, 1));
  EXPECT_EQ(flashdelta_attention_forward(&args, &e, workspace.at(), bytes), FLASHDELTA_OK) << flashdelta_last_error();
  EXPECT_TRUE(device->synchronize(nullptr).ok());
  return o.get();
}

// Captures the call before any other has run it, then replays it after each change and compares with a fresh call.
void expect_replays(const flashdelta_attention_forward_args& args, Memory& o,
                    const std::vector<std::function<void()>>& changes) {
  const GraphDriver driver;
  void *stream = nullptr, *graph = nullptr, *executable = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, 1), 0);
  const flashdelta_execution e = on_stream(stream);
  const size_t bytes = workspace_bytes(args, e);
  Memory workspace(std::max<size_t>(bytes, 1));
  ASSERT_EQ(driver.begin(stream, 0), 0);
  EXPECT_EQ(flashdelta_attention_forward(&args, &e, workspace.at(), bytes), FLASHDELTA_OK) << flashdelta_last_error();
  ASSERT_EQ(driver.end(stream, &graph), 0);
  ASSERT_EQ(driver.instantiate(&executable, graph, 0), 0);
  std::vector<char> before;
  for (const auto& change : changes) {
    change();
    o.put(std::vector<char>(o.get().size(), static_cast<char>(0xff)));
    ASSERT_EQ(driver.launch(executable, stream), 0);
    ASSERT_TRUE(device->synchronize(stream).ok());
    const std::vector<char> replayed = o.get();
    o.put(std::vector<char>(replayed.size(), static_cast<char>(0xff)));
    EXPECT_EQ(replayed, output_of(args, o));
    EXPECT_NE(replayed, before);
    before = replayed;
  }
}

TEST(GpuAttention, GraphOfDecodeWithOtherLengthsAndPages) {
  constexpr int64_t batch = 3, heads = 8, heads_k = 2, dim = 128, page = 16, pages = 600, pages_sequence = 160;
  Memory q(numbers(batch * heads * dim, 1)), o(batch * heads * dim * 2);
  Memory k(numbers(pages * page * heads_k * dim, 2)), v(numbers(pages * page * heads_k * dim, 3));
  Memory used(batch * 4), table(batch * pages_sequence * 4);
  flashdelta_attention_forward_args args;
  flashdelta_attention_forward_init(&args);
  args.q = view(q.at(), FLASHDELTA_BF16, {batch, 1, heads, dim});
  args.o = view(o.at(), FLASHDELTA_BF16, {batch, 1, heads, dim});
  args.k = view(k.at(), FLASHDELTA_BF16, {pages, page, heads_k, dim});
  args.v = view(v.at(), FLASHDELTA_BF16, {pages, page, heads_k, dim});
  args.seqused_k = view(used.at(), FLASHDELTA_INT32, {batch});
  args.page_table = view(table.at(), FLASHDELTA_INT32, {batch, pages_sequence});
  const auto set = [&](const std::vector<int32_t>& lengths, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> entries(batch * pages_sequence);
    for (int32_t& entry : entries) entry = static_cast<int32_t>(random() % pages);
    used.put(lengths);
    table.put(entries);
  };
  expect_replays(args, o,
                 {[&] {
                    set({2560, 17, 900}, 1);
                  },
                  [&] {
                    set({3, 0, 2000}, 2);
                  },
                  [&] {
                    set({3, 0, 2000}, 3);
                  }});
}

TEST(GpuAttention, GraphOfPackedPromptsWithOtherOffsets) {
  constexpr int64_t batch = 3, heads = 4, dim = 64, total = 700;
  Memory q(numbers(total * heads * dim, 1)), k(numbers(total * heads * dim, 2)), v(numbers(total * heads * dim, 3));
  Memory o(total * heads * dim * 2), offsets((batch + 1) * 4);
  flashdelta_attention_forward_args args;
  flashdelta_attention_forward_init(&args);
  args.q = view(q.at(), FLASHDELTA_BF16, {total, heads, dim});
  args.k = view(k.at(), FLASHDELTA_BF16, {total, heads, dim});
  args.v = view(v.at(), FLASHDELTA_BF16, {total, heads, dim});
  args.o = view(o.at(), FLASHDELTA_BF16, {total, heads, dim});
  args.cu_seqlens_q = args.cu_seqlens_k = view(offsets.at(), FLASHDELTA_INT32, {batch + 1});
  args.causal = 1;
  expect_replays(args, o,
                 {[&] {
                    offsets.put(std::vector<int32_t>{0, 100, 400, 700});
                  },
                  [&] {
                    offsets.put(std::vector<int32_t>{0, 650, 650, 700});
                  }});
}

// A few blocks more than the card has SMs: the last query tiles are shared, and another kernel adds their parts up.
TEST(GpuAttention, GraphOfPromptsWhoseLastTilesAreShared) {
  constexpr int64_t tokens = 128, keys = 1100, dim = 128;
  const int64_t heads = 2 * device->info().sm_count + 3;
  Memory q(numbers(tokens * heads * dim, 1)), o(tokens * heads * dim * 2);
  Memory k(numbers(keys * heads * dim, 2)), v(numbers(keys * heads * dim, 3));
  flashdelta_attention_forward_args args;
  flashdelta_attention_forward_init(&args);
  args.q = view(q.at(), FLASHDELTA_BF16, {1, tokens, heads, dim});
  args.o = view(o.at(), FLASHDELTA_BF16, {1, tokens, heads, dim});
  args.k = view(k.at(), FLASHDELTA_BF16, {1, keys, heads, dim});
  args.v = view(v.at(), FLASHDELTA_BF16, {1, keys, heads, dim});
  EXPECT_GT(workspace_bytes(args, on_stream(nullptr)), 0u);
  expect_replays(args, o,
                 {[&] { q.put(numbers(tokens * heads * dim, 4)); }, [&] { k.put(numbers(keys * heads * dim, 5)); }});
}

// The same keys packed, far apart in one tensor, and in the last pages of a pool.
TEST(GpuAttention, KeysOverTwoToTheThirtyFirst) {
  constexpr int64_t tokens = 320, dim = 128, page = 16, stride = int64_t{1} << 23;  // 2.7e9 elements in all
  constexpr int64_t elements = (tokens - 1) * stride + dim, pages = elements / (page * dim);
  for (const int64_t queries : {1, 40, 320}) {
    Memory q(numbers(queries * dim, 1)), o(queries * dim * 2), used(std::vector<int32_t>{tokens});
    const std::vector<uint16_t> key_numbers = numbers(tokens * dim, 2), value_numbers = numbers(tokens * dim, 3);
    Memory k(key_numbers), v(value_numbers);
    flashdelta_attention_forward_args args;
    flashdelta_attention_forward_init(&args);
    args.q = view(q.at(), FLASHDELTA_BF16, {1, queries, 1, dim});
    args.o = view(o.at(), FLASHDELTA_BF16, {1, queries, 1, dim});
    args.k = view(k.at(), FLASHDELTA_BF16, {1, tokens, 1, dim});
    args.v = view(v.at(), FLASHDELTA_BF16, {1, tokens, 1, dim});
    args.causal = 1;
    const std::vector<char> want = output_of(args, o);

    Memory far_k(elements * 2), far_v(elements * 2);
    for (int64_t t = 0; t < tokens; t++) {
      const auto row = [&](const std::vector<uint16_t>& x) {
        return std::vector<uint16_t>(x.begin() + t * dim, x.begin() + (t + 1) * dim);
      };
      far_k.put(row(key_numbers), static_cast<size_t>(t * stride * 2));
      far_v.put(row(value_numbers), static_cast<size_t>(t * stride * 2));
    }
    args.k = view(far_k.at(), FLASHDELTA_BF16, {1, tokens, 1, dim});
    args.v = view(far_v.at(), FLASHDELTA_BF16, {1, tokens, 1, dim});
    args.k.strides[1] = args.v.strides[1] = stride;
    args.k.strides[0] = args.v.strides[0] = tokens * stride;
    EXPECT_EQ(output_of(args, o), want) << queries << " queries, strided";

    std::vector<int32_t> entries(tokens / page);
    for (size_t i = 0; i < entries.size(); i++) entries[i] = static_cast<int32_t>(pages - entries.size() + i);
    const auto last = static_cast<size_t>((pages * page - tokens) * dim * 2);
    far_k.put(key_numbers, last);
    far_v.put(value_numbers, last);
    Memory table(entries);
    args.k = view(far_k.at(), FLASHDELTA_BF16, {pages, page, 1, dim});
    args.v = view(far_v.at(), FLASHDELTA_BF16, {pages, page, 1, dim});
    args.seqused_k = view(used.at(), FLASHDELTA_INT32, {1});
    args.page_table = view(table.at(), FLASHDELTA_INT32, {1, static_cast<int64_t>(entries.size())});
    if (queries == 1) {  // more are other kernels' with pages of 16, whose order of sums is not this one's
      EXPECT_EQ(output_of(args, o), want) << queries << " queries, paged";
    }
  }
}

}  // namespace
}  // namespace flashdelta::test

int main(int argc, char** argv) {
  if (flashdelta_backend_available(FLASHDELTA_BACKEND_CUDA) != FLASHDELTA_OK) {
    std::printf("SKIPPED PROGRAM: %s\n", flashdelta_last_error());
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  const flashdelta::Status status = flashdelta::open_cuda_device(0, &flashdelta::test::device);
  if (!status.ok()) {
    std::printf("%s\n", status.message.c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}
