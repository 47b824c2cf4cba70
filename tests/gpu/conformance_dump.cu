// Runs the primitives of tests/emulator/conformance.h on this machine's GPU and writes their results, for the emulator
// to be compared with:
//   nvcc -std=c++20 -O3 -arch=sm_90 tests/gpu/conformance_dump.cu -o conformance_dump && ./conformance_dump OUT.bin
// The file: for each case its name in 32 bytes, the number of words (uint32), the words.
#include <cstdio>
#include <vector>

#include "../emulator/conformance.cu"

namespace {

bool check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

using CaseKernel = void (*)(const uint32_t*, uint32_t*);
#define KERNEL_ROW(name, inputs, outputs, blocks, rule) name,
const CaseKernel kKernels[] = {FOR_EACH_CONFORMANCE_CASE(KERNEL_ROW)};

bool run(const ConformanceCase& c, CaseKernel kernel, std::vector<uint32_t>* results) {
  const size_t letters = std::strlen(c.inputs);
  std::vector<uint32_t> inputs(c.blocks * 32 * letters);
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = conformance_word(c.inputs[i % letters], static_cast<uint32_t>(i));
  }
  results->resize(size_t{c.blocks} * 32 * c.outputs);
  uint32_t *in = nullptr, *out = nullptr;
  bool ok = check(cudaMalloc(&in, inputs.size() * 4), "cudaMalloc") &&
            check(cudaMalloc(&out, results->size() * 4), "cudaMalloc") &&
            check(cudaMemcpy(in, inputs.data(), inputs.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  if (ok) {
    kernel<<<c.blocks, 32>>>(in, out);
    ok = check(cudaMemcpy(results->data(), out, results->size() * 4, cudaMemcpyDeviceToHost), c.name);
  }
  cudaFree(in);
  cudaFree(out);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s OUT.bin\n", argv[0]);
    return 2;
  }
  std::FILE* file = std::fopen(argv[1], "wb");
  if (file == nullptr) {
    std::perror(argv[1]);
    return 4;
  }
  bool ok = true;
  size_t index = 0;
  for (const ConformanceCase& c : kConformanceCases) {
    std::vector<uint32_t> results;
    ok = run(c, kKernels[index++], &results) && ok;
    char name[32] = {};
    std::strncpy(name, c.name, sizeof(name) - 1);
    const auto count = static_cast<uint32_t>(results.size());
    ok = std::fwrite(name, sizeof(name), 1, file) == 1 && std::fwrite(&count, 4, 1, file) == 1 &&
         std::fwrite(results.data(), 4, count, file) == count && ok;
  }
  ok = std::fclose(file) == 0 && ok;
  if (ok) std::printf("%zu cases written to %s\n", index, argv[1]);
  return ok ? 0 : 1;
}
