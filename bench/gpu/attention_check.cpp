// Runs every attention forward kernel that this build has machine code for, on the card at hand, below the library.
//
//   attention_check check            hostile shapes against float64; exits 1 on an error beyond tolerance
//   attention_check time [RUNS]      benchmark shapes: TFLOP/s held to SM120's residency, and not; error of sampled
//                                    rows
//   attention_check time RUNS HEADS  the same with HEADS heads in flight
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "bench/gpu/attention_problem.hpp"
#include "cuda/images.hpp"

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

// More shared memory than the kernel uses, so that no more blocks are resident than on SM120.
int held_bytes(const ForwardRow& row, const cudaDeviceProp& card) {
  const int sm = static_cast<int>(card.sharedMemPerMultiprocessor);
  const int needed = (sm / (row.resident_blocks + 1) - 1024 + 128) / 128 * 128;
  return std::max(row.config.shared_bytes(), std::min(needed, static_cast<int>(card.sharedMemPerBlockOptin)));
}

class Kernel {
 public:
  Kernel(const ForwardRow& row, const cudaDeviceProp& card) : row_(row) {
    const std::string name = std::string("flashdelta_") + row.name;
    for (const KernelImage& image : kernel_images()) {
      if (image.kernel != name || image.is_ptx || image.arch != card.major * 10 + card.minor) continue;
      CHECK(cudaLibraryLoadData(&library_, image.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
      CHECK(cudaLibraryGetKernel(&kernel_, library_, name.c_str()));
    }
  }
  explicit operator bool() const { return kernel_ != nullptr; }

  void launch(const AttentionForwardParams& params, int64_t blocks, int shared_bytes) const {
    if (blocks == 0) return;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel_), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(row_.config.value_parts));
    config.blockDim = dim3(row_.config.threads());
    config.dynamicSmemBytes = shared_bytes;
    void* arguments[] = {const_cast<AttentionForwardParams*>(&params)};
    CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel_), arguments));
  }

 private:
  const ForwardRow& row_;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

// Milliseconds, the median of `runs` after three; 0 runs: one launch, untimed.
double run(const Kernel& kernel, const ForwardRow& row, AttentionProblem16& problem, bool packed, int heads_in_flight,
           int shared_bytes, int runs) {
  AttentionForwardParams p = problem.params(row.config, heads_in_flight);
  Buffer q(problem.q()), k(problem.k()), v(problem.v()), o(problem.o()), lse(problem.lse());
  Buffer offsets_q(problem.offsets_q()), offsets_k(problem.offsets_k());
  p.q = q.device, p.k = k.device, p.v = v.device, p.o = o.device, p.lse = static_cast<float*>(lse.device);
  if (packed) p.cu_seqlens_q = offsets_q.device, p.cu_seqlens_k = offsets_k.device;
  const int64_t blocks = problem.blocks(p);
  for (int i = 0; i < (runs > 0 ? 3 : 1); i++) kernel.launch(p, blocks, shared_bytes);
  CHECK(cudaDeviceSynchronize());
  std::vector<float> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < runs; i++) {
    CHECK(cudaEventRecord(begin));
    kernel.launch(p, blocks, shared_bytes);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&times.emplace_back(), begin, end));
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaMemcpy(problem.o().data(), o.device, problem.o().size() * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(problem.lse().data(), lse.device, problem.lse().size() * 4, cudaMemcpyDeviceToHost));
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

bool right(const AttentionProblem16::Errors& e, const ForwardRow& row) {
  const double tolerance = row.config.element == Element::bf16 ? 6e-3 : 1e-3;
  return e.o <= tolerance && e.lse <= 1 && e.touched_padding == 0 && e.wrong_infinities == 0;
}

int check(const cudaDeviceProp& card) {
  int failures = 0, ran = 0;
  for (const ForwardRow& row : forward_rows) {
    const Kernel kernel(row, card);
    if (!kernel) continue;
    double worst_o = 0, worst_lse = 0;
    uint64_t seed = 1;
    std::vector<AttentionShape> shapes = hostile_shapes(row.config.head_dim, row.config.head_dim_v);
    for (const AttentionShape& s : hostile_shapes(row.config.head_dim - 8, row.config.head_dim_v - 24)) {
      shapes.push_back(s);
    }
    if (row.config.general) {
      for (size_t i = 0; i < shapes.size(); i += 3) shapes[i].softcap = 2;
    }
    for (const AttentionShape& shape : shapes) {
      AttentionProblem16 problem(shape, row.config.element, seed++);
      run(kernel, row, problem, shape.packed, 3, row.config.shared_bytes(), 0);
      const AttentionProblem16::Errors e = problem.errors();
      worst_o = std::max(worst_o, e.o), worst_lse = std::max(worst_lse, e.lse);
      ran++;
      if (right(e, row)) continue;
      failures++;
      std::printf("FAIL %s %s: o %.2e, lse %.2f of tolerance, padding %lld, infinities %lld\n", row.name,
                  shape.text().c_str(), e.o, e.lse, static_cast<long long>(e.touched_padding),
                  static_cast<long long>(e.wrong_infinities));
    }
    std::printf("%-36s worst o %.2e, worst lse %.3f of tolerance\n", row.name, worst_o, worst_lse);
  }
  std::printf("%d launches, %d failures\n", ran, failures);
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
    for (const ForwardRow& row : forward_rows) {
      if (row.config.head_dim != t.head_dim || row.config.element != Element::bf16) continue;
      const Kernel kernel(row, card);
      if (!kernel) continue;
      const double held = run(kernel, row, problem, false, heads_in_flight, held_bytes(row, card), runs);
      const double free = run(kernel, row, problem, false, heads_in_flight, row.config.shared_bytes(), runs);
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
  if (mode == "time") return time_all(card, argc > 2 ? std::atoi(argv[2]) : 21, argc > 3 ? std::atoi(argv[3]) : 16);
  return check(card);
}
