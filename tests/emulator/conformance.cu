// One kernel a primitive; see conformance.h.
#include "conformance.h"
#include "instructions.cuh"

namespace {

struct Lane {
  const uint32_t* in;
  uint32_t* out;
  uint32_t lane;
};

__device__ Lane lane_of(const uint32_t* in, uint32_t* out, int inputs, int outputs) {
  const uint32_t i = blockIdx.x * 32 + threadIdx.x;
  return {in + i * inputs, out + i * outputs, threadIdx.x};
}

__device__ float as_float(uint32_t x) { return __uint_as_float(x); }
__device__ uint32_t as_bits(float x) { return __float_as_uint(x); }

}  // namespace

#define CASE(name) extern "C" __global__ void name(const uint32_t* in, uint32_t* out)

// An mma of four fp32 sums with `a` and `b` registers, as the instruction's text says.
#define MMA(name, instruction, type)                                                                                  \
  CASE(name) {                                                                                                        \
    const Lane x = lane_of(in, out, 10, 4);                                                                           \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                   \
                 : "=" type(x.out[0]), "=" type(x.out[1]), "=" type(x.out[2]), "=" type(x.out[3])                     \
                 : "r"(x.in[0]), "r"(x.in[1]), "r"(x.in[2]), "r"(x.in[3]), "r"(x.in[4]), "r"(x.in[5]), type(x.in[6]), \
                   type(x.in[7]), type(x.in[8]), type(x.in[9]));                                                      \
  }

MMA(mma_bf16_integer, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "r")
MMA(mma_bf16_random, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "r")
MMA(mma_f16_integer, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "r")
MMA(mma_f16_random, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "r")
MMA(mma_tf32_integer, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "r")
MMA(mma_s8, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "r")

CASE(mma_f16_half_sums) {
  const Lane x = lane_of(in, out, 8, 2);
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};"
               : "=r"(x.out[0]), "=r"(x.out[1])
               : "r"(x.in[0]), "r"(x.in[1]), "r"(x.in[2]), "r"(x.in[3]), "r"(x.in[4]), "r"(x.in[5]), "r"(x.in[6]),
                 "r"(x.in[7]));
}
CASE(mma_bf16_k8_integer) {
  const Lane x = lane_of(in, out, 7, 4);
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
               : "=r"(x.out[0]), "=r"(x.out[1]), "=r"(x.out[2]), "=r"(x.out[3])
               : "r"(x.in[0]), "r"(x.in[1]), "r"(x.in[2]), "r"(x.in[3]), "r"(x.in[4]), "r"(x.in[5]), "r"(x.in[6]));
}

// Rows are found in a scattered order, so that each lane's address counts.
#define ROW_OF(lane) (((lane)*5 + 3) & 31)

#define LOAD_MATRIX(name, modifier)                                                             \
  CASE(name) {                                                                                  \
    __shared__ __align__(16) uint4 rows[32];                                                    \
    const Lane x = lane_of(in, out, 4, 4);                                                      \
    rows[x.lane] = make_uint4(x.in[0], x.in[1], x.in[2], x.in[3]);                              \
    __syncwarp();                                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" modifier ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(x.out[0]), "=r"(x.out[1]), "=r"(x.out[2]), "=r"(x.out[3])               \
                 : "r"(shared_address(&rows[ROW_OF(x.lane)]))                                   \
                 : "memory");                                                                   \
  }
LOAD_MATRIX(load_matrix, "")
LOAD_MATRIX(load_matrix_trans, ".trans")

CASE(load_matrix_few) {
  __shared__ __align__(16) uint4 rows[32];
  const Lane x = lane_of(in, out, 4, 6);
  rows[x.lane] = make_uint4(x.in[0], x.in[1], x.in[2], x.in[3]);
  __syncwarp();
  const uint32_t row = shared_address(&rows[ROW_OF(x.lane)]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x.out[0]) : "r"(row) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(x.out[1]) : "r"(row) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(x.out[2]), "=r"(x.out[3])
               : "r"(row)
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(x.out[4]), "=r"(x.out[5])
               : "r"(row)
               : "memory");
}

#define STORE_MATRIX(name, modifier)                                                                 \
  CASE(name) {                                                                                       \
    __shared__ __align__(16) uint4 rows[32];                                                         \
    const Lane x = lane_of(in, out, 4, 4);                                                           \
    asm volatile("stmatrix.sync.aligned.m8n8.x4" modifier                                            \
                 ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(&rows[ROW_OF(x.lane)])), \
                 "r"(x.in[0]), "r"(x.in[1]), "r"(x.in[2]), "r"(x.in[3])                              \
                 : "memory");                                                                        \
    __syncwarp();                                                                                    \
    const uint4 row = rows[x.lane];                                                                  \
    x.out[0] = row.x;                                                                                \
    x.out[1] = row.y;                                                                                \
    x.out[2] = row.z;                                                                                \
    x.out[3] = row.w;                                                                                \
  }
STORE_MATRIX(store_matrix, "")
STORE_MATRIX(store_matrix_trans, ".trans")

CASE(move_matrix) {
  const Lane x = lane_of(in, out, 1, 1);
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(x.out[0]) : "r"(x.in[0]));
}

CASE(shuffles) {
  const Lane x = lane_of(in, out, 2, 10);
  const unsigned all = 0xffffffffu;
  const int by = x.in[1] & 31, same = __shfl_sync(all, by, 0);
  x.out[0] = __shfl_sync(all, x.in[0], by);
  x.out[1] = __shfl_up_sync(all, x.in[0], same);
  x.out[2] = __shfl_down_sync(all, x.in[0], same);
  x.out[3] = __shfl_xor_sync(all, x.in[0], same);
  x.out[4] = __shfl_sync(all, x.in[0], by, 8);
  x.out[5] = __shfl_up_sync(all, x.in[0], 3, 8);
  x.out[6] = __shfl_down_sync(all, x.in[0], 3, 16);
  x.out[7] = __shfl_xor_sync(all, x.in[0], 5, 4);
  int inside;
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, %3, 0, -1; selp.b32 %1, 1, 0, p; }"
               : "=r"(x.out[8]), "=r"(inside)
               : "r"(x.in[0]), "r"(same));
  x.out[9] = inside;
}

CASE(votes) {
  const Lane x = lane_of(in, out, 1, 9);
  const unsigned all = 0xffffffffu;
  const uint32_t v = x.in[0];
  int same = 0;
  x.out[0] = __ballot_sync(all, v & 1);
  x.out[1] = __any_sync(all, (v & 31) == 0);
  x.out[2] = __all_sync(all, (v & 0xff00) != 0);
  x.out[3] = __match_any_sync(all, v & 3);
  x.out[4] = __match_all_sync(all, blockIdx.x & 1 ? v : 7u, &same) + 2 * same;
  x.out[5] = __reduce_add_sync(all, v);
  x.out[6] = __reduce_min_sync(all, static_cast<int>(v));
  x.out[7] = __reduce_max_sync(all, v);
  x.out[8] = __reduce_xor_sync(all, v) ^ __reduce_and_sync(all, v | 1) ^ __reduce_or_sync(all, v);
}

CASE(pack) {
  const Lane x = lane_of(in, out, 2, 8);
  // Sizes that the formats hold, and some that they do not.
  const float a = as_float(x.in[0]) * 0x1p-10f, b = as_float(x.in[1]) * 0x1p-10f;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x.out[0]) : "f"(a), "f"(b));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x.out[1]) : "f"(a), "f"(b));
  asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(x.out[2]) : "f"(a), "f"(b));
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(x.out[3]) : "f"(a), "f"(b));
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a));
  x.out[4] = h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(b));
  x.out[5] = h;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b));
  x.out[6] = h;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b));
  x.out[7] = h;
}

CASE(unpack) {
  const Lane x = lane_of(in, out, 1, 7);
  // No NaNs: their payloads are not compared.
  const uint32_t v = x.in[0] & 0xbfffbfffu;
  const auto low = static_cast<uint16_t>(v), high = static_cast<uint16_t>(v >> 16);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(low));
  x.out[0] = as_bits(f);
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(high));
  x.out[1] = as_bits(f);
  asm("cvt.f32.bf16 %0, %1;" : "=f"(f) : "h"(low));
  x.out[2] = as_bits(f);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x.out[3]) : "h"(static_cast<uint16_t>(low & 0x3f3f)));
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(x.out[4]) : "h"(static_cast<uint16_t>(low & 0x3f3f)));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x.out[5]) : "f"(as_float(v)));
  x.out[6] = static_cast<uint32_t>(static_cast<int16_t>(v)) ^ static_cast<uint32_t>(static_cast<int8_t>(v >> 8));
}

CASE(to_integer) {
  const Lane x = lane_of(in, out, 1, 8);
  const float a = as_float(x.in[0]);
  x.out[0] = __float2int_rn(a);
  x.out[1] = __float2int_rz(a);
  x.out[2] = __float2int_rd(a);
  x.out[3] = __float2int_ru(a);
  x.out[4] = __float2uint_rn(a);
  x.out[5] = __float2uint_rz(a);
  x.out[6] = static_cast<uint32_t>(__float2ll_rz(a) >> 4);
  x.out[7] = as_bits(rintf(a) + floorf(a * 0.5f));
}

CASE(from_integer) {
  const Lane x = lane_of(in, out, 1, 4);
  const auto wide = static_cast<long long>(x.in[0]) * 0x12345;
  x.out[0] = as_bits(__int2float_rn(static_cast<int>(x.in[0])));
  x.out[1] = as_bits(__uint2float_rn(x.in[0]));
  x.out[2] = as_bits(__ll2float_rn(-wide));
  x.out[3] = as_bits(__int2float_rz(static_cast<int>(x.in[0])));
}

CASE(integer) {
  const Lane x = lane_of(in, out, 3, 24);
  const uint32_t a = x.in[0], b = x.in[1], s = x.in[2];
  const auto sa = static_cast<int>(a), sb = static_cast<int>(b);
  x.out[0] = __umulhi(a, b);
  x.out[1] = __mulhi(sa, sb);
  x.out[2] = __byte_perm(a, b, s * 0x1234 + a);
  x.out[3] = __funnelshift_l(a, b, s);
  x.out[4] = __funnelshift_r(a, b, s);
  x.out[5] = __funnelshift_lc(a, b, s);
  x.out[6] = __funnelshift_rc(a, b, s);
  x.out[7] = __popc(a) + 64 * __clz(b >> (s & 31)) + 4096 * __ffs(a << (s & 31));
  x.out[8] = __brev(a);
  asm("bfe.u32 %0, %1, %2, %3;" : "=r"(x.out[9]) : "r"(a), "r"(s), "r"(b & 63));
  asm("bfe.s32 %0, %1, %2, %3;" : "=r"(x.out[10]) : "r"(a), "r"(s), "r"(b & 63));
  asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(x.out[11]) : "r"(a), "r"(b), "r"(s), "r"(a & 63));
  asm("lop3.b32 %0, %1, %2, %3, 0xd2;" : "=r"(x.out[12]) : "r"(a), "r"(b), "r"(s));
  asm("shl.b32 %0, %1, %2;" : "=r"(x.out[13]) : "r"(a), "r"(s));
  asm("shr.u32 %0, %1, %2;" : "=r"(x.out[14]) : "r"(a), "r"(s));
  asm("shr.s32 %0, %1, %2;" : "=r"(x.out[15]) : "r"(a), "r"(s));
  x.out[16] = sa / static_cast<int>(s + 1) + sb % static_cast<int>(s + 3);
  x.out[17] = a / (s + 1) + b % (s + 3);
  const unsigned long long wide = (static_cast<unsigned long long>(a) << 32 | b) / (s + 7);
  x.out[18] = static_cast<uint32_t>(wide) ^ static_cast<uint32_t>(wide >> 32);
  const long long product = static_cast<long long>(sa) * sb + static_cast<long long>(s);
  x.out[19] = static_cast<uint32_t>(product >> 17);
  x.out[20] = min(sa, sb) ^ max(a, b);
  x.out[21] = abs(sa) - (a < b ? 1 : 0) + (sa < sb ? 16 : 0);
  x.out[22] = static_cast<uint32_t>((static_cast<long long>(sa) << s) ^ (static_cast<long long>(sb) >> s));
  x.out[23] = static_cast<uint16_t>(static_cast<uint16_t>(a) * static_cast<uint16_t>(b) + static_cast<uint16_t>(s));
}

CASE(single) {
  const Lane x = lane_of(in, out, 3, 16);
  const float a = as_float(x.in[0]), b = as_float(x.in[1]), c = as_float(x.in[2]);
  const float d = as_float((x.in[1] & 0x807fffffu) | (x.in[0] & 0x7f800000u));  // of a's size
  x.out[0] = as_bits(__fadd_rn(a, d));
  x.out[1] = as_bits(__fadd_rz(a, d));
  x.out[2] = as_bits(__fadd_rd(a, d));
  x.out[3] = as_bits(__fadd_ru(a, d));
  x.out[4] = as_bits(__fmul_rn(a, b));
  x.out[5] = as_bits(__fmul_rz(a, b));
  x.out[6] = as_bits(__fmaf_rn(a, b, c));
  x.out[7] = as_bits(__fmaf_rd(a, b, c));
  x.out[8] = as_bits(__fmaf_ru(a, b, c));
  x.out[9] = as_bits(__fmaf_rn(a, d, -a * d));
  x.out[10] = as_bits(fmaxf(a, b));
  x.out[11] = as_bits(fminf(a, b));
  x.out[12] = as_bits(__fdiv_rn(a, b));
  x.out[13] = as_bits(__fsqrt_rn(fabsf(a)));
  x.out[14] = as_bits(__frcp_rn(a));
  x.out[15] = as_bits(__saturatef(a)) + (a < b) + 2 * (a <= d) + 4 * (a != a);
}

#define HALVES(name, type)                                                            \
  CASE(name) {                                                                        \
    const Lane x = lane_of(in, out, 3, 7);                                            \
    const uint32_t a = x.in[0], b = x.in[1], c = x.in[2];                             \
    asm("add.rn." type " %0, %1, %2;" : "=r"(x.out[0]) : "r"(a), "r"(b));             \
    asm("sub.rn." type " %0, %1, %2;" : "=r"(x.out[1]) : "r"(a), "r"(b));             \
    asm("mul.rn." type " %0, %1, %2;" : "=r"(x.out[2]) : "r"(a), "r"(b));             \
    asm("fma.rn." type " %0, %1, %2, %3;" : "=r"(x.out[3]) : "r"(a), "r"(b), "r"(c)); \
    asm("max." type " %0, %1, %2;" : "=r"(x.out[4]) : "r"(a), "r"(b));                \
    asm("min." type " %0, %1, %2;" : "=r"(x.out[5]) : "r"(a), "r"(b));                \
    asm("neg." type " %0, %1;" : "=r"(x.out[6]) : "r"(a));                            \
  }
HALVES(half_precision, "f16x2")
HALVES(bf16_precision, "bf16x2")

#define SPECIAL(name, instruction)                                  \
  CASE(name) {                                                      \
    const Lane x = lane_of(in, out, 1, 1);                          \
    float y;                                                        \
    asm(instruction " %0, %1;" : "=f"(y) : "f"(as_float(x.in[0]))); \
    x.out[0] = as_bits(y);                                          \
  }
SPECIAL(ex2, "ex2.approx.ftz.f32")
SPECIAL(rcp, "rcp.approx.ftz.f32")
SPECIAL(reciprocal_root, "rsqrt.approx.ftz.f32")
SPECIAL(square_root, "sqrt.approx.ftz.f32")
SPECIAL(lg2, "lg2.approx.ftz.f32")
SPECIAL(tangent, "tanh.approx.f32")

CASE(sine) {
  const Lane x = lane_of(in, out, 1, 2);
  x.out[0] = as_bits(__sinf(as_float(x.in[0])));
  x.out[1] = as_bits(__cosf(as_float(x.in[0])));
}
