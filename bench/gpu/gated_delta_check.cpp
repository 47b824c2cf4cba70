// The gated delta forward on a real card, below the C ABI:
//
//   gated_delta_check check
//     hostile shapes, from graphs, against a float64 recurrence on the card; exits 1 on an error
//
//   gated_delta_check time [RUNS [SHAPES]]
//     the benchmark's shapes, the first so many: medians in ms by kind of context parallelism, held to SM120's
//     residency and not, and errors
//
//   gated_delta_check kernels [RUNS [SHAPE]]
//     each kernel's median alone, for these shapes or the one of that number, from 0
#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "bench/gpu/gated_delta_reference.h"
#include "bench/gpu/timing_device.hpp"
#include "device/gated_delta_forward.hpp"

namespace {

using namespace flashdelta;
using namespace flashdelta::bench;

struct Shape {
  int heads_k, group;
  std::vector<int> lengths;
  Gates gates = Gates::mixed;
  int dim_k = 128, dim_v = 128;
  bool fp16 = false, initial = true;
  bool composes = false;  // by exact alone
};

class Memory {
 public:
  explicit Memory(size_t bytes) {
    check_cuda(cudaMalloc(&data_, std::max<size_t>(bytes, 256)), "memory");
    check_cuda(cudaMemset(data_, 0xFF, std::max<size_t>(bytes, 256)), "poison");
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  char* get() const { return static_cast<char*>(data_); }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

class Problem {
 public:
  Problem(const Shape& s, uint32_t seed)
      : shape_(s),
        tokens_(std::accumulate(s.lengths.begin(), s.lengths.end(), int64_t{0})),
        heads_v_(s.heads_k * s.group),
        q_(tokens_ * s.heads_k * s.dim_k * 2),
        k_(tokens_ * s.heads_k * s.dim_k * 2),
        v_(tokens_ * heads_v_ * s.dim_v * 2),
        o_(tokens_ * heads_v_ * s.dim_v * 2),
        g_(tokens_ * heads_v_ * 4),
        beta_(tokens_ * heads_v_ * 4),
        initial_(state_bytes()),
        final_(state_bytes()),
        cu_seqlens_((s.lengths.size() + 1) * 4) {
    std::vector<int32_t> offsets{0};
    for (int length : s.lengths) offsets.push_back(offsets.back() + length);
    check_cuda(cudaMemcpy(cu_seqlens_.get(), offsets.data(), offsets.size() * 4, cudaMemcpyHostToDevice), "offsets");
    fill_inputs(reference(), tokens_, s.gates, seed);
  }

  GatedDeltaProblem problem() const {
    GatedDeltaProblem p;
    p.sequences = sequences();
    p.heads_k = shape_.heads_k, p.heads_v = heads_v_, p.dim_k = shape_.dim_k, p.dim_v = shape_.dim_v;
    p.tokens = p.max_tokens = tokens_;
    const flashdelta_dtype dtype = shape_.fp16 ? FLASHDELTA_FP16 : FLASHDELTA_BF16;
    const auto rows = [](const Memory& m, flashdelta_dtype type, int64_t heads, int64_t features) {
      return Rows{m.get(), type, 0, heads * features, features};
    };
    p.q = rows(q_, dtype, shape_.heads_k, p.dim_k);
    p.k = rows(k_, dtype, shape_.heads_k, p.dim_k);
    p.v = rows(v_, dtype, heads_v_, p.dim_v);
    p.o = rows(o_, dtype, heads_v_, p.dim_v);
    p.g = rows(g_, FLASHDELTA_FP32, heads_v_, 1);
    p.beta = rows(beta_, FLASHDELTA_FP32, heads_v_, 1);
    const auto states = [&](const Memory& m) {
      const int64_t head = p.dim_k * p.dim_v;
      return States{m.get(), FLASHDELTA_FP32, p.sequences, heads_v_ * head, head, p.dim_v};
    };
    if (shape_.initial) p.initial = states(initial_);
    p.final = states(final_);
    p.cu_seqlens = {cu_seqlens_.get(), FLASHDELTA_INT32, 0};
    p.scale = scale();
    return p;
  }

  // Relative L2 errors of o and of the final states.
  std::pair<double, double> errors() const {
    Memory sums(sizeof(ReferenceErrors));
    check_cuda(cudaMemset(sums.get(), 0, sizeof(ReferenceErrors)), "sums");
    compare_with_recurrence(reference(), reinterpret_cast<ReferenceErrors*>(sums.get()));
    ReferenceErrors e;
    check_cuda(cudaMemcpy(&e, sums.get(), sizeof e, cudaMemcpyDeviceToHost), "sums");
    const auto relative = [](double difference, double norm) {
      return difference == 0 ? 0 : std::sqrt(difference / norm);
    };
    return {relative(e.o_difference, e.o_norm), relative(e.state_difference, e.state_norm)};
  }

 private:
  int64_t sequences() const { return static_cast<int64_t>(shape_.lengths.size()); }
  size_t state_bytes() const { return static_cast<size_t>(sequences() * heads_v_ * shape_.dim_k * shape_.dim_v * 4); }
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.dim_k))); }

  ReferenceProblem reference() const {
    return {q_.get(),
            k_.get(),
            v_.get(),
            o_.get(),
            g_.floats(),
            beta_.floats(),
            shape_.initial ? initial_.floats() : nullptr,
            final_.floats(),
            reinterpret_cast<const int32_t*>(cu_seqlens_.get()),
            static_cast<int>(sequences()),
            shape_.heads_k,
            shape_.group,
            shape_.dim_k,
            shape_.dim_v,
            scale(),
            shape_.fp16};
  }

  Shape shape_;
  int64_t tokens_;
  int heads_v_;
  Memory q_, k_, v_, o_, g_, beta_, initial_, final_, cu_seqlens_;
};

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::exit(3);
}

// Captures a call before any other has run it, and replays it three times, each in a workspace that holds NaN or what
// the one before left.
void replay(cudaStream_t stream, const std::function<void()>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  call();
  check_cuda(cudaStreamEndCapture(stream, &graph), "a capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  for (int i = 0; i < 3; i++) check_cuda(cudaGraphLaunch(executable, stream), "a replay");
  check_cuda(cudaStreamSynchronize(stream), "a replay");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

// The median of `runs` after three, in ms; 0 runs: untimed, replayed from a graph.
double run(Device& device, const ArchProfile& arch, const GatedDeltaProblem& p, int runs) {
  size_t bytes = 0;
  must(gated_delta_forward_workspace_on(p, arch, device.info().sm_count, &bytes));
  const Memory workspace(bytes);
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "a stream");
  const auto call = [&] { must(gated_delta_forward_on(device, arch, p, workspace.get(), stream)); };
  if (runs == 0) {
    must(prepare_gated_delta_forward(device, arch, p));
    replay(stream, call);
  }
  for (int i = 0; runs > 0 && i < 3; i++) call();
  std::vector<float> times;
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "an event");
  check_cuda(cudaEventCreate(&end), "an event");
  for (int i = 0; i < runs; i++) {
    check_cuda(cudaEventRecord(begin, stream), "an event");
    call();
    check_cuda(cudaEventRecord(end, stream), "an event");
    check_cuda(cudaEventSynchronize(end), "a call");
    check_cuda(cudaEventElapsedTime(&times.emplace_back(), begin, end), "a time");
  }
  check_cuda(cudaDeviceSynchronize(), "a call");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size()) / 2, times.end());
  return times[times.size() / 2];
}

int check(Device& device) {
  std::vector<Shape> shapes = {
      {4, 1, {4096}},
      {2, 4, {4096}, Gates::resets},
      {4, 1, {0, 410, 841, 0, 1135, 31, 33, 1, 0}},
      {16, 2, {410, 431, 294, 991, 386, 1584}},
      {2, 3, {47, 81}, Gates::zero},
      {1, 1, {100, 1, 64}, Gates::mixed, 64, 64},
      {2, 2, {100, 1, 64}, Gates::resets, 72, 200},
      {1, 2, {333, 65}, Gates::mixed, 256, 256},
      {1, 5, {500}, Gates::decaying, 8, 8},
      {1, 2, std::vector<int>(2050, 3)},
      {16, 2, std::vector<int>(2050, 5)},
      {2, 1, {28672, 4096}},
      {2, 1, {8192, 100}, Gates::decaying},
      {1, 3, {32768}, Gates::decaying},
      {2, 2, {5000}, Gates::resets},
      {2, 4, {32768}, Gates::zero, 128, 128, false, true, true},
      {2, 4, {32768}, Gates::mixed, 128, 128, false, true, true},
      {2, 4, {20000, 5, 0, 12345}, Gates::mixed, 128, 128, false, true, true},
      {1, 2, {9000, 3000}, Gates::zero, 72, 200, false, true, true},
      {1, 2, {9000}, Gates::resets, 256, 256, false, true, true},
      {2, 2, {16384}, Gates::zero, 64, 64, false, true, true},
  };
  int failures = 0;
  uint32_t seed = 1;
  for (Shape s : shapes) {
    for (bool fp16 : {false, true}) {
      s.fp16 = fp16, s.initial = !s.initial;
      const Problem problem(s, seed++);
      GatedDeltaProblem p = problem.problem();
      if (seed % 4 < 2 && !s.composes) p.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START;
      run(device, *parse_arch("sm120"), p, 0);
      const auto [o, state] = problem.errors();
      const double most = fp16 ? 1e-3 : 5e-3;
      const bool right = o <= most && state <= most;
      failures += !right;
      std::printf("%s %d/%d, %zu sequences from %d, K %d V %d, %s: o %.2e state %.2e\n", right ? "ok  " : "FAIL",
                  s.heads_k, s.heads_k * s.group, s.lengths.size(), s.lengths[0], s.dim_k, s.dim_v,
                  fp16 ? "fp16" : "bf16", o, state);
    }
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}

std::vector<Shape> benchmark_shapes() {
  return {{16, 3, {32768}},
          {16, 3, {8192}},
          {16, 3, {8192, 8192, 8192, 8192}},
          {16, 2, {32768}},
          {16, 4, {32768}},
          {2, 4, {32768}},
          {16, 3, std::vector<int>(8, 1024)},
          {2, 4, {4096}},
          {2, 4, {28672, 4096}},
          {4, 4, {32768}},
          {4, 1, {32768}},
          {16, 3, {1024}},
          {2, 4, {512}}};
}

int time_all(Device& device, int runs, size_t count) {
  std::printf("%-12s %-10s %-9s | held to SM120's residency: %9s %9s %11s | free: %9s %11s | %9s %9s\n", "heads",
              "lengths", "gates", "off", "exact", "decay_start", "exact", "decay_start", "o", "state");
  const ArchProfile& sm120 = *parse_arch("sm120");
  const ArchProfile& own = *device.info().arch;
  const std::vector<Shape> shapes = benchmark_shapes();
  for (Shape s : std::span(shapes).first(std::min(count, shapes.size()))) {
    for (Gates gates : {Gates::mixed, Gates::decaying, Gates::zero}) {
      s.gates = gates;
      const Problem problem(s, 7);
      const auto time = [&](const ArchProfile& arch, flashdelta_context_parallel parallel) {
        GatedDeltaProblem p = problem.problem();
        p.context_parallel = parallel;
        return run(device, arch, p, runs);
      };
      const double off = time(sm120, FLASHDELTA_CONTEXT_PARALLEL_OFF);
      const double exact = time(sm120, FLASHDELTA_CONTEXT_PARALLEL_EXACT);
      const double decay_start = time(sm120, FLASHDELTA_CONTEXT_PARALLEL_DECAY_START);
      const double free_decay_start = time(own, FLASHDELTA_CONTEXT_PARALLEL_DECAY_START);
      const double free_exact = time(own, FLASHDELTA_CONTEXT_PARALLEL_EXACT);
      const auto [o, state] = problem.errors();
      const char* names[] = {"mixed", "decaying", "zero"};
      std::printf("%2d/%-9d %zux%-8d %-9s | %36.3f %9.3f %11.3f | %15.3f %11.3f | %9.2e %9.2e\n", s.heads_k,
                  s.heads_k * s.group, s.lengths.size(), s.lengths[0], names[static_cast<int>(gates)], off, exact,
                  decay_start, free_exact, free_decay_start, o, state);
      std::fflush(stdout);
    }
  }
  return 0;
}

int time_kernels(Device& device, int runs, size_t only) {
  const std::vector<Shape> shapes = benchmark_shapes();
  for (size_t i = 0; i < shapes.size(); i++) {
    if (only != SIZE_MAX && only != i) continue;
    Shape s = shapes[i];
    for (auto parallel : {FLASHDELTA_CONTEXT_PARALLEL_OFF, FLASHDELTA_CONTEXT_PARALLEL_EXACT,
                          FLASHDELTA_CONTEXT_PARALLEL_DECAY_START}) {
      // Parts that start early want gates that let them.
      s.gates = parallel == FLASHDELTA_CONTEXT_PARALLEL_DECAY_START ? Gates::decaying : Gates::mixed;
      const Problem problem(s, 7);
      GatedDeltaProblem p = problem.problem();
      p.context_parallel = parallel;
      TimingDevice timing(device);
      run(timing, *parse_arch("sm120"), p, runs);
      const char* names[] = {"off", "exact", "decay_start"};
      std::printf("%d/%d, %zux%d, %s\n", s.heads_k, s.heads_k * s.group, s.lengths.size(), s.lengths[0],
                  names[parallel]);
      timing.print();
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  RuntimeDevice device;
  std::printf("%s\n", device.info().name.c_str());
  if (argc > 1 && std::string(argv[1]) == "time") {
    return time_all(device, argc > 2 ? std::atoi(argv[2]) : 21,
                    argc > 3 ? std::strtoul(argv[3], nullptr, 10) : SIZE_MAX);
  }
  if (argc > 1 && std::string(argv[1]) == "kernels") {
    return time_kernels(device, argc > 2 ? std::atoi(argv[2]) : 11,
                        argc > 3 ? std::strtoul(argv[3], nullptr, 10) : SIZE_MAX);
  }
  return check(device);
}
