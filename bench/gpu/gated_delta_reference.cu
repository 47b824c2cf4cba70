// The gated delta rule's recurrence in float64 on the card, a block 32 value columns of a sequence and value head, four
// threads a column, the state in their registers. And random inputs, each number from its index alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "bench/gpu/gated_delta_reference.h"

namespace flashdelta::bench {
namespace {

__device__ uint32_t hash(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ float normal(int64_t i, uint32_t seed) {
  const uint32_t a = hash(static_cast<uint32_t>(i) ^ hash(static_cast<uint32_t>(i >> 32) + seed)),
                 b = hash(a + 0x9e37u);
  return sqrtf(-2 * logf((a + 1.0f) * 0x1p-32f)) * cospif(2 * (b * 0x1p-32f));
}

__device__ void store(void* data, bool fp16, int64_t i, float x) {
  if (fp16) {
    static_cast<__half*>(data)[i] = __float2half(x);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(x);
  }
}

__device__ double load(const void* data, bool fp16, int64_t i) {
  return fp16 ? __half2float(static_cast<const __half*>(data)[i])
              : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

// A warp a row.
__global__ void fill_rows(void* data, bool fp16, int64_t rows, int features, bool normalise, uint32_t seed) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  float sum = 0;
  for (int f = threadIdx.x % 32; f < features; f += 32) {
    const float x = normal(row * features + f, seed);
    sum += x * x;
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  const float factor = normalise ? rsqrtf(sum) : 1;
  for (int f = threadIdx.x % 32; f < features; f += 32) {
    store(data, fp16, row * features + f, normal(row * features + f, seed) * factor);
  }
}

__global__ void fill_gates(float* g, float* beta, int64_t count, int heads, Gates gates, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float x = normal(i, seed + 7), y = normal(i, seed + 8);
  const bool still = gates == Gates::zero || (gates == Gates::mixed && i % heads % 4 == 3);
  g[i] = still ? 0 : -log1pf(expf(-x)) / 16;
  if (gates == Gates::resets && hash(static_cast<uint32_t>(i) + seed) % 50 == 0) g[i] = -INFINITY;
  beta[i] = 1 / (1 + expf(-y));
}

__global__ void fill_states(float* states, int64_t count, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) states[i] = normal(i, seed + 9);
}

// R: rows of the state a thread, 4 R >= dim_k.
template <int R>
__global__ void __launch_bounds__(128) recurrence(ReferenceProblem p, ReferenceErrors* errors) {
  __shared__ double q[256], k[256];
  const int heads_v = p.heads_k * p.group, blocks = (p.dim_v + 31) / 32;
  const int column = blockIdx.x % blocks * 32 + threadIdx.x / 4, part = threadIdx.x % 4;
  const int head = blockIdx.x / blocks % heads_v, n = blockIdx.x / blocks / heads_v;
  const bool inside = column < p.dim_v;
  const int64_t state = (int64_t{n} * heads_v + head) * p.dim_k * p.dim_v + column;
  double s[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int row = r * 4 + part;
    s[r] = inside && row < p.dim_k && p.initial != nullptr ? p.initial[state + int64_t{row} * p.dim_v] : 0;
  }
  ReferenceErrors sum{};
  for (int t = p.cu_seqlens[n]; t < p.cu_seqlens[n + 1]; t++) {
    const int64_t key = (int64_t{t} * p.heads_k + head / p.group) * p.dim_k;
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * R; i += 128) {
      q[i] = i < p.dim_k ? load(p.q, p.fp16, key + i) : 0;
      k[i] = i < p.dim_k ? load(p.k, p.fp16, key + i) : 0;
    }
    __syncthreads();
    const int64_t token = int64_t{t} * heads_v + head, value = token * p.dim_v + column;
    const double decay = exp(static_cast<double>(p.g[token]));
    double u = 0, o = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
      s[r] *= decay;
      u += s[r] * k[r * 4 + part];
    }
    u += __shfl_xor_sync(0xffffffffu, u, 1);
    u += __shfl_xor_sync(0xffffffffu, u, 2);
    u = p.beta[token] * ((inside ? load(p.v, p.fp16, value) : 0) - u);
#pragma unroll
    for (int r = 0; r < R; r++) {
      s[r] += k[r * 4 + part] * u;
      o += s[r] * q[r * 4 + part];
    }
    o += __shfl_xor_sync(0xffffffffu, o, 1);
    o += __shfl_xor_sync(0xffffffffu, o, 2);
    if (!inside || part != 0) continue;
    const double difference = load(p.o, p.fp16, value) - p.scale * o;
    sum.o_difference += difference * difference;
    sum.o_norm += p.scale * o * p.scale * o;
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int row = r * 4 + part;
    if (!inside || row >= p.dim_k) continue;
    const double difference = p.final[state + int64_t{row} * p.dim_v] - s[r];
    sum.state_difference += difference * difference;
    sum.state_norm += s[r] * s[r];
  }
  atomicAdd(&errors->o_difference, sum.o_difference);
  atomicAdd(&errors->o_norm, sum.o_norm);
  atomicAdd(&errors->state_difference, sum.state_difference);
  atomicAdd(&errors->state_norm, sum.state_norm);
}

}  // namespace

void fill_inputs(const ReferenceProblem& p, int64_t tokens, Gates gates, uint32_t seed) {
  const int64_t heads_v = int64_t{p.heads_k} * p.group;
  const auto rows = [&](const void* data, int64_t heads, int features, bool normalise, uint32_t stream) {
    const int64_t count = tokens * heads;
    fill_rows<<<static_cast<unsigned>((count + 3) / 4), 128>>>(const_cast<void*>(data), p.fp16, count, features,
                                                               normalise, seed * 16 + stream);
  };
  rows(p.q, p.heads_k, p.dim_k, true, 1);
  rows(p.k, p.heads_k, p.dim_k, true, 2);
  rows(p.v, heads_v, p.dim_v, false, 3);
  const int64_t numbers = tokens * heads_v, states = p.sequences * heads_v * p.dim_k * p.dim_v;
  fill_gates<<<static_cast<unsigned>((numbers + 255) / 256), 256>>>(const_cast<float*>(p.g), const_cast<float*>(p.beta),
                                                                    numbers, static_cast<int>(heads_v), gates, seed);
  if (p.initial == nullptr) return;
  fill_states<<<static_cast<unsigned>((states + 255) / 256), 256>>>(const_cast<float*>(p.initial), states, seed);
}

void compare_with_recurrence(const ReferenceProblem& p, ReferenceErrors* errors) {
  const auto blocks = static_cast<unsigned>(p.sequences * p.heads_k * p.group * ((p.dim_v + 31) / 32));
  if (p.dim_k <= 64) {
    recurrence<16><<<blocks, 128>>>(p, errors);
  } else if (p.dim_k <= 128) {
    recurrence<32><<<blocks, 128>>>(p, errors);
  } else {
    recurrence<64><<<blocks, 128>>>(p, errors);
  }
}

}  // namespace flashdelta::bench
