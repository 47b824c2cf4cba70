// Runs every attention forward kernel that this build has machine code for, on the card at hand, below the library.
//
//   attention_check check            hostile shapes against float64; exits 1 on an error beyond tolerance
//   attention_check reduced          a few small shapes for every row of every table of attention, for a sanitizer
//   attention_check time [RUNS]      benchmark shapes: TFLOP/s held to SM120's residency, and not; sampled rows' error
//   attention_check time RUNS HEADS  the same with HEADS heads in flight, not as many as the host would have
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/gpu/attention_problem.hpp"
#include "bench/gpu/runtime_tensor_map.hpp"
#include "cuda/images.hpp"
#include "device/attention_boxes.hpp"

namespace {

using namespace flashdelta;
using namespace flashdelta::bench;

#define CHECK(call) check_cuda(call, #call)
void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(3);
}

struct Buffer {
  void* device = nullptr;
  template <class T>
  explicit Buffer(const std::vector<T>& host) {
    CHECK(cudaMalloc(&device, std::max<size_t>(256, host.size() * sizeof(T))));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(device); }
};

// What a launch has to know of a row, whichever table it is in.
struct Row {
  const char* name;
  Element element;
  int head_dim, head_dim_v, block_q, block_kv, threads, bytes, value_parts, resident_blocks;
  bool general, splits, tails, paired;
  bool boxes = true;  // of keys and values, where the kernel takes them

  explicit Row(const ForwardRow& row)
      : name(row.name),
        element(row.config.element),
        head_dim(row.config.head_dim),
        head_dim_v(row.config.head_dim_v),
        block_q(row.config.block_q),
        block_kv(row.config.block_kv),
        threads(row.config.threads()),
        bytes(row.config.dynamic_bytes()),
        value_parts(row.config.value_parts),
        resident_blocks(row.resident_blocks),
        general(row.config.general),
        splits(row.config.general),
        tails(row.config.value_parts == 1),
        paired(row.config.paired) {}
  explicit Row(const DecodeRow& row)
      : name(row.name),
        element(row.config.element),
        head_dim(row.config.head_dim),
        head_dim_v(row.config.head_dim_v),
        block_q(row.config.block_q()),
        block_kv(row.config.block_kv),
        threads(row.config.threads()),
        bytes(row.config.shared_bytes()),
        value_parts(1),
        resident_blocks(row.resident_blocks),
        general(true),
        splits(true),
        tails(false),
        paired(false) {}
};

// More shared memory than the kernel uses, so that no more blocks are resident than on SM120.
int held_bytes(const Row& row, const cudaDeviceProp& card) {
  const int sm = static_cast<int>(card.sharedMemPerMultiprocessor);
  const int needed = (sm / (row.resident_blocks + 1) - 1024 + 128) / 128 * 128;
  return std::max(row.bytes, std::min(needed, static_cast<int>(card.sharedMemPerBlockOptin)));
}

class Kernel {
 public:
  Kernel(const char* row, int threads, const cudaDeviceProp& card) : threads_(threads) {
    const std::string name = std::string("flashdelta_") + row;
    for (const KernelImage& image : kernel_images()) {
      if (image.kernel != name || image.is_ptx || image.arch != card.major * 10 + card.minor) continue;
      CHECK(cudaLibraryLoadData(&library_, image.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
      CHECK(cudaLibraryGetKernel(&kernel_, library_, name.c_str()));
    }
  }
  explicit operator bool() const { return kernel_ != nullptr; }

  template <class Params>
  void launch(const Params& params, dim3 grid, int shared_bytes) const {
    if (grid.x == 0) return;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel_), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes));
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads_);
    config.dynamicSmemBytes = shared_bytes;
    void* arguments[] = {const_cast<Params*>(&params)};
    CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel_), arguments));
  }

 private:
  const int threads_;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

// A problem on the device. Outputs go back to it on take().
struct OnDevice {
  OnDevice(const Row& row, AttentionProblem16& from, bool packed, int heads_in_flight)
      : problem(from),
        q(from.q()),
        k(from.k()),
        v(from.v()),
        o(from.o()),
        lse(from.lse()),
        offsets_q(from.offsets_q()),
        offsets_k(from.offsets_k()),
        params(from.params(row, heads_in_flight)) {
    params.q = q.device, params.k = k.device, params.v = v.device, params.o = o.device;
    params.lse = static_cast<float*>(lse.device);
    if (packed) params.cu_seqlens_q = offsets_q.device, params.cu_seqlens_k = offsets_k.device;
  }
  void take() {
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(problem.o().data(), o.device, problem.o().size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(problem.lse().data(), lse.device, problem.lse().size() * 4, cudaMemcpyDeviceToHost));
  }

  AttentionProblem16& problem;
  Buffer q, k, v, o, lse, offsets_q, offsets_k;
  AttentionForwardParams params;
};

dim3 grid_of(int64_t blocks, int value_parts, int splits = 1) {
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(value_parts), static_cast<unsigned>(splits));
}

void launch(const Kernel& kernel, const Row& row, const AttentionForwardParams& params, dim3 grid, int shared_bytes) {
  if (!row.paired) return kernel.launch(params, grid, shared_bytes);
  const auto map = [&](const TensorLayout& layout, EncodedTensorMap* to) {
    return row.boxes && encode_tensor_map(layout, to);
  };
  kernel.launch(paired_params(params, row.block_kv, map), grid, shared_bytes);
}

// Milliseconds, the median of `runs` after three; 0 runs: one launch, untimed.
double run(const Kernel& kernel, const Row& row, AttentionProblem16& problem, bool packed, int heads_in_flight,
           int shared_bytes, int runs) {
  OnDevice on(row, problem, packed, heads_in_flight);
  const dim3 grid = grid_of(problem.blocks(on.params), row.value_parts);
  for (int i = 0; i < (runs > 0 ? 3 : 1); i++) launch(kernel, row, on.params, grid, shared_bytes);
  CHECK(cudaDeviceSynchronize());
  std::vector<float> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < runs; i++) {
    CHECK(cudaEventRecord(begin));
    launch(kernel, row, on.params, grid, shared_bytes);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&times.emplace_back(), begin, end));
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  on.take();
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

bool right(const AttentionProblem16::Errors& e, const Row& row) {
  const double tolerance = row.element == Element::bf16 ? 6e-3 : 1e-3;
  return e.o <= tolerance && e.lse <= 1 && e.touched_padding == 0 && e.wrong_infinities == 0;
}

// 1: a failure, which it prints.
int judge(const AttentionProblem16& problem, const Row& row, const AttentionShape& shape) {
  const AttentionProblem16::Errors e = problem.errors();
  if (right(e, row)) return 0;
  std::printf("FAIL %s %s: o %.2e, lse %.2f of tolerance, padding %lld, infinities %lld\n", row.name,
              shape.text().c_str(), e.o, e.lse, static_cast<long long>(e.touched_padding),
              static_cast<long long>(e.wrong_infinities));
  return 1;
}

int check(const cudaDeviceProp& card) {
  int failures = 0, ran = 0;
  for (const ForwardRow& forward : forward_rows) {
    const Row row(forward);
    const Kernel kernel(row.name, row.threads, card);
    if (!kernel) continue;
    double worst_o = 0, worst_lse = 0;
    uint64_t seed = 1;
    std::vector<AttentionShape> shapes = hostile_shapes(row.head_dim, row.head_dim_v);
    for (const AttentionShape& s : hostile_shapes(row.head_dim - 8, row.head_dim_v - 24)) shapes.push_back(s);
    if (row.general) {
      for (size_t i = 0; i < shapes.size(); i += 3) shapes[i].softcap = 2;
    }
    for (const AttentionShape& shape : shapes) {
      AttentionProblem16 problem(shape, row.element, seed++);
      run(kernel, row, problem, shape.packed, 3, row.bytes, 0);
      const AttentionProblem16::Errors e = problem.errors();
      worst_o = std::max(worst_o, e.o), worst_lse = std::max(worst_lse, e.lse);
      ran++;
      failures += judge(problem, row, shape);
    }
    std::printf("%-36s worst o %.2e, worst lse %.3f of tolerance\n", row.name, worst_o, worst_lse);
  }
  std::printf("%d launches, %d failures\n", ran, failures);
  return failures != 0 || ran == 0;
}

// The call's keys shared by 3 blocks a query tile, and the kernel that adds their parts up.
void run_split(const Kernel& kernel, const Kernel& combine, const Row& row, AttentionProblem16& problem,
               const AttentionShape& shape) {
  constexpr int splits = 3;
  OnDevice on(row, problem, false, 3);
  const AttentionForwardParams& p = on.params;
  const int heads = p.heads_k * p.group, rows = p.batch * p.length_q * heads;
  Buffer parts(std::vector<float>(static_cast<size_t>(splits) * rows * (shape.head_dim_v + 1), NAN));
  AttentionForwardParams apart = p;
  apart.o = parts.device, apart.lse = static_cast<float*>(parts.device) + int64_t{splits} * rows * shape.head_dim_v;
  apart.o_is_fp32 = 1, apart.splits = splits;
  apart.o_head_stride = shape.head_dim_v, apart.o_token_stride = int64_t{heads} * shape.head_dim_v;
  apart.o_batch_stride = p.length_q * apart.o_token_stride;
  apart.lse_head_stride = p.length_q, apart.lse_batch_stride = int64_t{heads} * p.length_q;
  apart.o_split_stride = int64_t{rows} * shape.head_dim_v, apart.lse_split_stride = rows;
  kernel.launch(apart, grid_of(problem.blocks(p), row.value_parts, splits), row.bytes);
  AttentionCombineParams c{};
  c.partial_o = static_cast<const float*>(parts.device), c.partial_lse = apart.lse, c.o = p.o, c.lse = p.lse;
  c.o_batch_stride = p.o_batch_stride, c.o_token_stride = p.o_token_stride, c.o_head_stride = p.o_head_stride;
  c.lse_batch_stride = p.lse_batch_stride, c.lse_head_stride = p.lse_head_stride;
  c.batch = p.batch, c.tokens = p.length_q, c.heads = heads, c.head_dim_v = p.head_dim_v;
  c.rows = rows, c.splits = splits;
  combine.launch(c, dim3((rows + 3) / 4), 0);
  on.take();
}

// All query tiles but the first shared by 3 blocks.
void run_tail(const Kernel& kernel, const Kernel& tail, const Row& row, AttentionProblem16& problem,
              const AttentionShape& shape) {
  OnDevice on(row, problem, shape.packed, 3);
  const int64_t shared = problem.blocks(on.params) - 1, rows = shared * 3 * row.block_q;
  Buffer parts(std::vector<float>(rows * (shape.head_dim_v + 1), NAN));
  on.params.whole_blocks = 1, on.params.tail_parts = 3;
  on.params.tail_o = static_cast<float*>(parts.device), on.params.tail_lse = on.params.tail_o + rows * shape.head_dim_v;
  launch(kernel, row, on.params, grid_of(1 + shared * 3, row.value_parts), row.bytes);
  if (shared > 0) tail.launch(on.params, dim3(row.block_q / 4, static_cast<unsigned>(shared)), 0);
  on.take();
}

int check_reduced(const cudaDeviceProp& card) {
  std::vector<Row> rows;
  for (const ForwardRow& row : forward_rows) rows.emplace_back(row);
  for (const ForwardRow& row : paired_rows) rows.emplace_back(row);
  for (const DecodeRow& row : decode_rows) rows.emplace_back(row);
  int failures = 0, ran = 0;
  for (const Row& row : rows) {
    const bool bf16 = row.element == Element::bf16;
    const Kernel kernel(row.name, row.threads, card);
    const Kernel combine(forward_combine_rows[bf16 ? 0 : 1].name, 128, card);
    const Kernel tail(forward_tail_rows[bf16 ? 0 : 1].name, 128, card);
    if (!kernel || !combine || !tail) continue;
    AttentionShape packed{{33, 0, 70}, {200, 5, 70}}, dense{{25, 25}, {300, 300}};
    packed.packed = true, packed.window_right = 0, packed.group = 3;
    dense.heads_k = 2, dense.window_left = 130, dense.window_right = 40;
    packed.head_dim = dense.head_dim = row.head_dim, packed.head_dim_v = dense.head_dim_v = row.head_dim_v;
    if (row.general) packed.softcap = 2;
    packed.head_dim -= 8;
    const auto judged = [&](const AttentionShape& shape, const auto& launch) {
      AttentionProblem16 problem(shape, row.element, 1);
      launch(problem);
      ran++;
      failures += judge(problem, row, shape);
    };
    for (const AttentionShape& shape : {packed, dense}) {
      judged(shape, [&](AttentionProblem16& problem) { run(kernel, row, problem, shape.packed, 3, row.bytes, 0); });
      if (row.tails) judged(shape, [&](AttentionProblem16& x) { run_tail(kernel, tail, row, x, shape); });
      if (!row.paired) continue;
      Row pieces = row;
      pieces.boxes = false;
      judged(shape, [&](AttentionProblem16& x) { run(kernel, pieces, x, shape.packed, 3, row.bytes, 0); });
    }
    if (row.splits) judged(dense, [&](AttentionProblem16& x) { run_split(kernel, combine, row, x, dense); });
  }
  std::printf("%d calls of %zu rows, %d failures\n", ran, rows.size(), failures);
  return failures != 0 || ran == 0;
}

struct Timing {
  int batch, heads_q, heads_k, length, head_dim;
  bool causal;
};
constexpr Timing timings[] = {
    {4, 8, 8, 8192, 128, false},   {4, 16, 16, 4096, 128, false}, {4, 16, 16, 4096, 128, true},
    {1, 16, 16, 16384, 128, true}, {4, 32, 32, 4096, 64, false},  {4, 32, 32, 4096, 64, true},
    {2, 16, 16, 4096, 256, false}, {2, 16, 16, 4096, 256, true},  {4, 16, 2, 4096, 256, true},
    {4, 16, 16, 4096, 96, false},  {4, 16, 16, 4096, 96, true}};

int time_all(const cudaDeviceProp& card, int runs, int heads_in_flight) {
  std::printf("%-34s %-26s %10s %10s %9s\n", "row", "B H/HK T D", "SM120 held", "free", "error o");
  for (const Timing& t : timings) {
    AttentionShape shape{std::vector<int>(t.batch, t.length), std::vector<int>(t.batch, t.length)};
    shape.heads_k = t.heads_k, shape.group = t.heads_q / t.heads_k;
    shape.head_dim = shape.head_dim_v = t.head_dim;
    shape.window_right = t.causal ? 0 : -1;
    shape.contiguous = true;
    const double flop = 4.0 * t.batch * t.heads_q * t.length * t.length * t.head_dim / (t.causal ? 2 : 1);
    AttentionProblem16 problem(shape, Element::bf16, 7);
    for (const ForwardRow& forward : forward_rows) {
      const Row row(forward);
      if (row.head_dim != t.head_dim || row.element != Element::bf16) continue;
      const Kernel kernel(row.name, row.threads, card);
      if (!kernel) continue;
      const double held = run(kernel, row, problem, false, heads_in_flight, held_bytes(row, card), runs);
      const double free = run(kernel, row, problem, false, heads_in_flight, row.bytes, runs);
      const int64_t rows = int64_t{t.batch} * t.heads_q * t.length;
      std::printf("%-34s %d %d/%d %d %d %s %10.1f %10.1f %9.2e\n", row.name, t.batch, t.heads_q, t.heads_k, t.length,
                  t.head_dim, t.causal ? "causal" : "dense", flop / held * 1e-9, flop / free * 1e-9,
                  problem.errors(static_cast<int>(rows / 61)).o);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  cudaDeviceProp card;
  CHECK(cudaGetDeviceProperties(&card, 0));
  std::printf("%s, sm_%d%d\n", card.name, card.major, card.minor);
  if (mode == "time") return time_all(card, argc > 2 ? std::atoi(argv[2]) : 21, argc > 3 ? std::atoi(argv[3]) : 0);
  return mode == "reduced" ? check_reduced(card) : check(card);
}
