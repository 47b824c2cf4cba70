/* flashdelta: softmax attention and the gated delta rule, for GPUs with 99 KiB of shared memory a block.
 *
 * This header is the library's only ABI. It is plain C, and unstable until version 1.0: until then a minor version
 * may change a struct, and a caller must be compiled with the header of the library that it loads.
 *
 * Rules that hold for every call:
 *  - Tensors are views: the caller owns the memory, the library keeps no pointer after a call returns.
 *  - A call has three parts: a check (descriptors and everything that the host can see), a workspace query, a run.
 *    The run allocates nothing, synchronises nothing and reads no device memory on the host.
 *  - Functions return a status; flashdelta_last_error() has the sentence that names the argument, what was expected
 *    and what came. Nothing is launched and nothing is written when the status is not FLASHDELTA_OK.
 *  - The library never prints, exits, aborts or throws.
 */
#ifndef FLASHDELTA_FLASHDELTA_H
#define FLASHDELTA_FLASHDELTA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define FLASHDELTA_VERSION_MAJOR 0
#define FLASHDELTA_VERSION_MINOR 1
#define FLASHDELTA_VERSION_PATCH 0
#define FLASHDELTA_VERSION_STRING "0.1.0"

#if defined(_WIN32)
#define FLASHDELTA_API
#else
#define FLASHDELTA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Enums. Values are part of the ABI; every enum is 4 bytes. ---- */

typedef enum flashdelta_status {
  FLASHDELTA_OK = 0,
  FLASHDELTA_INVALID_ARGUMENT = 1, /* an argument is wrong; the message names it */
  FLASHDELTA_NOT_SUPPORTED = 2,    /* right, but not on this backend; the message says what would be */
  FLASHDELTA_WORKSPACE_TOO_SMALL = 3,
  FLASHDELTA_DEVICE_ERROR = 4, /* the driver or the device failed; the message carries its words */
  FLASHDELTA_CANCELLED = 5,    /* the progress callback asked to stop; outputs are unspecified */
  FLASHDELTA_OUT_OF_MEMORY = 6,
  FLASHDELTA_INTERNAL_ERROR = 7,
  FLASHDELTA_STATUS_FORCE_INT32 = 0x7fffffff
} flashdelta_status;

typedef enum flashdelta_dtype {
  FLASHDELTA_NONE = 0, /* an absent tensor */
  FLASHDELTA_BF16 = 1,
  FLASHDELTA_FP16 = 2,
  FLASHDELTA_FP32 = 3,
  FLASHDELTA_INT32 = 4,
  FLASHDELTA_INT64 = 5,
  FLASHDELTA_DTYPE_FORCE_INT32 = 0x7fffffff
} flashdelta_dtype;

typedef enum flashdelta_backend {
  FLASHDELTA_BACKEND_AUTO = 0, /* where q's memory lies: CUDA for device memory, else CPU; never the emulator */
  FLASHDELTA_BACKEND_CPU = 1,
  FLASHDELTA_BACKEND_CUDA = 2,
  FLASHDELTA_BACKEND_EMULATOR = 3, /* runs the GPU kernels' own PTX on the CPU; tensors are host memory */
  FLASHDELTA_BACKEND_FORCE_INT32 = 0x7fffffff
} flashdelta_backend;

typedef enum flashdelta_state_layout {
  FLASHDELTA_STATE_KV = 0, /* [.., K, V] */
  FLASHDELTA_STATE_VK = 1, /* [.., V, K] */
  FLASHDELTA_STATE_LAYOUT_FORCE_INT32 = 0x7fffffff
} flashdelta_state_layout;

typedef enum flashdelta_context_parallel {
  FLASHDELTA_CONTEXT_PARALLEL_OFF = 0,
  FLASHDELTA_CONTEXT_PARALLEL_EXACT = 1,       /* cut where it pays, whatever the gates: segments' maps of the state are
                                                  composed in fp32; the result is the same up to rounding */
  FLASHDELTA_CONTEXT_PARALLEL_DECAY_START = 2, /* may start a segment from zero where the gates have decayed the old
                                                  state by more than decay_threshold; the error of a state is at most
                                                  exp(decay_threshold) * norm(old state): tokens whose
                                                  beta * |k|^2 > 2 count as less decay */
  FLASHDELTA_CONTEXT_PARALLEL_FORCE_INT32 = 0x7fffffff
} flashdelta_context_parallel;

/* ---- Tensor views ---- */

#define FLASHDELTA_MAX_NDIM 5

/* A view of memory that the caller owns. An all-zero struct (dtype NONE) is an absent tensor.
 * The last dimension is contiguous (its stride is 1, or its size at most 1); other strides are any 64-bit number of
 * elements. data may be null where the tensor has no elements. */
typedef struct flashdelta_tensor {
  void* data;
  flashdelta_dtype dtype;
  int32_t ndim;
  int64_t shape[FLASHDELTA_MAX_NDIM];
  int64_t strides[FLASHDELTA_MAX_NDIM]; /* in elements */
} flashdelta_tensor;

/* Fills *out as a contiguous view. INVALID_ARGUMENT: ndim outside 0 to 5, a negative size, an element count that
 * overflows. */
FLASHDELTA_API flashdelta_status flashdelta_tensor_contiguous(void* data, flashdelta_dtype dtype, int32_t ndim,
                                                              const int64_t* shape, flashdelta_tensor* out);

/* Views a DLPack tensor. dl_tensor points to a DLTensor (dlpack.h, any version whose DLTensor layout is that of 0.2 to
 * 1.x); byte_offset and null strides are handled; float 16/32, bfloat 16, int 32/64 with one lane are taken.
 * device_type and device_id, where not null, receive the DLDevice. The memory stays the DLPack owner's. */
FLASHDELTA_API flashdelta_status flashdelta_tensor_from_dlpack(const void* dl_tensor, flashdelta_tensor* out,
                                                               int32_t* device_type, int32_t* device_id);

/* ---- Where and how a call runs ---- */

typedef struct flashdelta_execution {
  size_t struct_size; /* sizeof(flashdelta_execution) */
  flashdelta_backend backend;
  int32_t device;      /* CUDA device ordinal */
  void* stream;        /* cudaStream_t; null is the default stream */
  int32_t arch;        /* 0: the device's own profile; 80, 86, 89, 90, 100, 120, 121: plan under that one's limits */
  int32_t num_threads; /* CPU and emulator: at most this many threads; 0: all that OpenMP gives */
  /* CPU and emulator: called now and then from the calling thread with the work done so far, null: never.
   * A nonzero return stops the call with FLASHDELTA_CANCELLED. */
  int32_t (*progress)(void* user, int64_t done, int64_t total);
  void* progress_user;
} flashdelta_execution;

#define FLASHDELTA_EXECUTION_INIT \
  { sizeof(flashdelta_execution), FLASHDELTA_BACKEND_AUTO, 0, NULL, 0, 0, NULL, NULL }

/* ---- Softmax attention (Dao et al., FlashAttention-2, arXiv 2307.08691) ----
 *
 *   s = scale * q k^T;  s = softcap * tanh(s / softcap) where softcap > 0
 *   query i of a sequence sits at key position p = i + TK - TQ (bottom-right alignment)
 *   visible keys j: p - window_left <= j <= p + window_right, a bound of -1 being none; causal sets window_right to 0
 *   o = softmax(s) v; sink is one more logit a head, in the denominator only
 *   lse = log of the denominator, natural log. A row that sees no key has o = 0 and lse = -inf (lse = sink with one).
 *
 * Query head h reads key head h / (HQ / HK). D and DV are multiples of 8 from 8 to 512 and may differ.
 *
 * Queries are dense, q [B,TQ,HQ,D], o [B,TQ,HQ,DV], lse [B,HQ,TQ]; or packed, q [total_q,HQ,D] with cu_seqlens_q [B+1],
 * o [total_q,HQ,DV], lse [HQ,total_q]. Tokens past cu_seqlens_q[B] are not written.
 * Keys are one of
 *   dense   k [B,TK,HK,D], v [B,TK,HK,DV]; with cache_batch_idx [B], k and v [C,TK,HK,..] and sequence b reads row
 *           cache_batch_idx[b];
 *   packed  k [total_k,HK,D], v [total_k,HK,DV] with cu_seqlens_k [B+1];
 *   paged   k [pages,page_size,HK,D], v [pages,page_size,HK,DV] with page_table [B,pages_per_sequence] int32; token j
 * of sequence b is token j % page_size of page page_table[b][j / page_size]. seqused_k is required. seqused_k [B] says
 * how many keys of each sequence are used (TK in the formula above); at most what there is room for.
 */
typedef struct flashdelta_attention_forward_args {
  size_t struct_size;
  flashdelta_tensor q, k, v;         /* bf16, fp16 or fp32, all three the same */
  flashdelta_tensor o;               /* output, q's dtype or fp32 */
  flashdelta_tensor lse;             /* output, fp32, or absent */
  flashdelta_tensor sink;            /* [HQ], fp32 or q's dtype, or absent */
  flashdelta_tensor cu_seqlens_q;    /* [B+1] int32 or int64, or absent */
  flashdelta_tensor cu_seqlens_k;    /* [B+1] int32 or int64, or absent */
  flashdelta_tensor seqused_k;       /* [B] int32 or int64, or absent */
  flashdelta_tensor cache_batch_idx; /* [B] int32 or int64, or absent */
  flashdelta_tensor page_table;      /* [B,pages_per_sequence] int32, or absent */
  /* What a plan needs of lengths that lie on a device. 0 or null where unknown. Host memory, B+1 entries. */
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  const int64_t* host_cu_seqlens_q;
  const int64_t* host_cu_seqlens_k;
  double scale;         /* NaN: D^-0.5 */
  double softcap;       /* 0: off */
  int64_t window_left;  /* -1: unbounded */
  int64_t window_right; /* -1: unbounded */
  int32_t causal;       /* 0 or 1 */
  int32_t reserved;     /* 0 */
} flashdelta_attention_forward_args;

/* Sets every field to its default: absent tensors, default scale, no mask. */
FLASHDELTA_API void flashdelta_attention_forward_init(flashdelta_attention_forward_args* args);

/* Checks all that the host can see: every descriptor, the host copies of lengths, and on the CPU and emulator backends,
 * whose tensors are host memory, the contents of cu_seqlens, seqused_k, cache_batch_idx and page_table too. */
FLASHDELTA_API flashdelta_status flashdelta_attention_forward_check(const flashdelta_attention_forward_args* args,
                                                                    const flashdelta_execution* execution);

/* Bytes of workspace that the run needs; 0 is possible. On the CPU at most 48 MiB at any length. On CUDA it also loads
 * the kernels of the run, which may then be captured in a graph; a replay reads lengths, offsets and indices anew. */
FLASHDELTA_API flashdelta_status flashdelta_attention_forward_workspace(const flashdelta_attention_forward_args* args,
                                                                        const flashdelta_execution* execution,
                                                                        size_t* bytes);

/* Runs. workspace is memory of the backend's device, aligned to 256 bytes, not shared with a call in flight on another
 * stream; null where 0 bytes are needed. On CUDA the call is asynchronous on the stream, and lengths, offsets and
 * indices that lie on the device are clamped by the kernels, not checked. */
FLASHDELTA_API flashdelta_status flashdelta_attention_forward(const flashdelta_attention_forward_args* args,
                                                              const flashdelta_execution* execution, void* workspace,
                                                              size_t workspace_bytes);

/* ---- Gated delta rule (Yang et al., Gated Delta Networks, arXiv 2412.06464) ----
 *
 *   D_t = exp(g_t) S_{t-1};  u_t = beta_t (v_t - D_t^T k_t);  S_t = D_t + k_t u_t^T;  o_t = scale S_t^T q_t
 *
 * q, k [B,T,HK,K]; v, o [B,T,HV,V]; value head h reads key head h / (HV / HK). K and V are multiples of 8 from 8 to
 * 256. With cu_seqlens [N+1], B = 1 and T is the total; tokens past cu_seqlens[N] are neither read for results nor
 * written. Without it N = B.
 *
 * The gate is g [B,T,HV], a natural logarithm (g = -inf resets the state), or A_log [HV], a [B,T,HV], dt_bias [HV]:
 * g = -exp(A_log) softplus(a + dt_bias). beta is beta [B,T,HV], from 0 to 2, or b [B,T,HV]: beta = beta_scale
 * sigmoid(b). One form of each, never both.
 *
 * States are [N,HV,K,V], or [N,HV,V,K] with state_layout VK. With initial_state_indices [N], initial_state is a pool
 * [slots,HV,..] and sequence n starts from slot initial_state_indices[n]; with final_state_indices [N], or without them
 * but with initial_state_indices, which then serve for both, final_state is a pool and slot final_state_indices[n] is
 * written. A negative index skips the sequence: o = 0, no state is read or written. No slot may be written twice.
 * final_state may be the same view as initial_state (in place); other outputs overlap nothing.
 * An empty sequence's final state is its initial state (zero where there is none).
 *
 * token_state_indices [N,max T]: the state after token t of sequence n is also written to slot
 * token_state_indices[n][t] of the final_state pool, where that is not negative. With num_accepted_tokens [N] as well,
 * sequence n starts from slot token_state_indices[n][num_accepted_tokens[n] - 1] (the number clamped to 1 .. max T) of
 * initial_state.
 */
typedef struct flashdelta_gated_delta_forward_args {
  size_t struct_size;
  flashdelta_tensor q, k, v;        /* bf16, fp16 or fp32, all three the same */
  flashdelta_tensor g, beta;        /* fp32 or q's dtype */
  flashdelta_tensor A_log, dt_bias; /* [HV] fp32 or q's dtype */
  flashdelta_tensor a, b;           /* [B,T,HV] fp32 or q's dtype */
  flashdelta_tensor o;              /* output, q's dtype or fp32 */
  flashdelta_tensor initial_state;  /* fp32 or bf16, or absent: zero */
  flashdelta_tensor final_state;    /* output, or absent; initial_state's dtype, else fp32 or bf16 */
  flashdelta_tensor checkpoints;    /* output [rows,HV,K,V] (or V,K), final_state's dtype rule; see checkpoint_every */
  flashdelta_tensor cu_seqlens;     /* [N+1] int32 or int64, or absent */
  flashdelta_tensor initial_state_indices; /* [N] int32 or int64, or absent */
  flashdelta_tensor final_state_indices;   /* [N] int32 or int64, or absent */
  flashdelta_tensor token_state_indices;   /* [N,max T] int32 or int64, or absent */
  flashdelta_tensor num_accepted_tokens;   /* [N] int32 or int64, or absent */
  int64_t max_seqlen;                      /* as in attention: 0 or null where unknown */
  const int64_t* host_cu_seqlens;
  double scale;           /* NaN: K^-0.5 */
  double beta_scale;      /* 1 or 2; for b alone */
  double decay_threshold; /* natural log, negative; for decay_start alone; default -9 */
  /* 0: none. Else a multiple of 64: the state after every checkpoint_every tokens of a sequence is written to
   * checkpoints. Sequence n owns length_n / checkpoint_every rows (rounded down), packed in order of n; rows beyond the
   * last are left alone, and so are a skipped sequence's. T_total / checkpoint_every rows always suffice. */
  int64_t checkpoint_every;
  int32_t chunk;     /* tokens a chunk: 0 (the plan's), 32 or 64 */
  int32_t qk_l2norm; /* 1: q and k are x * rsqrt(sum x^2 + 1e-6) first */
  flashdelta_state_layout state_layout;
  flashdelta_context_parallel context_parallel; /* default EXACT */
} flashdelta_gated_delta_forward_args;

FLASHDELTA_API void flashdelta_gated_delta_forward_init(flashdelta_gated_delta_forward_args* args);
FLASHDELTA_API flashdelta_status flashdelta_gated_delta_forward_check(const flashdelta_gated_delta_forward_args* args,
                                                                      const flashdelta_execution* execution);
FLASHDELTA_API flashdelta_status flashdelta_gated_delta_forward_workspace(
    const flashdelta_gated_delta_forward_args* args, const flashdelta_execution* execution, size_t* bytes);
FLASHDELTA_API flashdelta_status flashdelta_gated_delta_forward(const flashdelta_gated_delta_forward_args* args,
                                                                const flashdelta_execution* execution, void* workspace,
                                                                size_t workspace_bytes);

/* ---- Gradients: declared so that callers can be written; every call answers FLASHDELTA_NOT_SUPPORTED today. ---- */

typedef struct flashdelta_attention_backward_args {
  size_t struct_size;
  flashdelta_attention_forward_args forward; /* q, k, v, o and lse of the forward call, its lengths and options */
  flashdelta_tensor do_;                     /* gradient of o */
  flashdelta_tensor dq, dk, dv;              /* outputs */
  flashdelta_tensor dsink;                   /* output, or absent */
} flashdelta_attention_backward_args;

typedef struct flashdelta_gated_delta_backward_args {
  size_t struct_size;
  flashdelta_gated_delta_forward_args forward;
  flashdelta_tensor do_;                  /* gradient of o */
  flashdelta_tensor dfinal_state;         /* or absent: zero */
  flashdelta_tensor dq, dk, dv;           /* outputs */
  flashdelta_tensor dg, dbeta;            /* outputs, for g and beta */
  flashdelta_tensor dinitial_state;       /* output, or absent */
  flashdelta_tensor dA_log, da, ddt_bias; /* outputs, for A_log, a, dt_bias */
  flashdelta_tensor db;                   /* output, for b */
} flashdelta_gated_delta_backward_args;

FLASHDELTA_API void flashdelta_attention_backward_init(flashdelta_attention_backward_args* args);
FLASHDELTA_API void flashdelta_gated_delta_backward_init(flashdelta_gated_delta_backward_args* args);
FLASHDELTA_API flashdelta_status flashdelta_attention_backward_workspace(const flashdelta_attention_backward_args* args,
                                                                         const flashdelta_execution* execution,
                                                                         size_t* bytes);
FLASHDELTA_API flashdelta_status flashdelta_attention_backward(const flashdelta_attention_backward_args* args,
                                                               const flashdelta_execution* execution, void* workspace,
                                                               size_t workspace_bytes);
FLASHDELTA_API flashdelta_status flashdelta_gated_delta_backward_workspace(
    const flashdelta_gated_delta_backward_args* args, const flashdelta_execution* execution, size_t* bytes);
FLASHDELTA_API flashdelta_status flashdelta_gated_delta_backward(const flashdelta_gated_delta_backward_args* args,
                                                                 const flashdelta_execution* execution, void* workspace,
                                                                 size_t workspace_bytes);

/* ---- About the library ---- */

/* "0.1.0"; never null. */
FLASHDELTA_API const char* flashdelta_version(void);

/* The sentence of the last call on this thread that did not return FLASHDELTA_OK; "" before any. Never null; valid
 * until this thread's next failing call. */
FLASHDELTA_API const char* flashdelta_last_error(void);

/* A status's name, as "INVALID_ARGUMENT"; never null. */
FLASHDELTA_API const char* flashdelta_status_name(flashdelta_status status);

/* OK where this build and machine can run the backend; else NOT_SUPPORTED, and flashdelta_last_error() says why. */
FLASHDELTA_API flashdelta_status flashdelta_backend_available(flashdelta_backend backend);

#ifdef __cplusplus
}
#endif

/* ---- Layout, pinned ---- */
#ifdef __cplusplus
#define FLASHDELTA_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define FLASHDELTA_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif
FLASHDELTA_STATIC_ASSERT(sizeof(void*) == 8, "64-bit only");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_status) == 4, "enums are 4 bytes");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_tensor) == 96, "flashdelta_tensor layout");
FLASHDELTA_STATIC_ASSERT(offsetof(flashdelta_tensor, shape) == 16, "flashdelta_tensor layout");
FLASHDELTA_STATIC_ASSERT(offsetof(flashdelta_tensor, strides) == 56, "flashdelta_tensor layout");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_execution) == 48, "flashdelta_execution layout");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_attention_forward_args) == 8 + 11 * 96 + 72, "attention_forward layout");
FLASHDELTA_STATIC_ASSERT(offsetof(flashdelta_attention_forward_args, scale) == 8 + 11 * 96 + 32,
                         "attention_forward layout");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_gated_delta_forward_args) == 8 + 18 * 96 + 64, "gated_delta_forward layout");
FLASHDELTA_STATIC_ASSERT(offsetof(flashdelta_gated_delta_forward_args, scale) == 8 + 18 * 96 + 16,
                         "gated_delta_forward layout");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_attention_backward_args) ==
                             8 + sizeof(flashdelta_attention_forward_args) + 5 * 96,
                         "attention_backward layout");
FLASHDELTA_STATIC_ASSERT(sizeof(flashdelta_gated_delta_backward_args) ==
                             8 + sizeof(flashdelta_gated_delta_forward_args) + 12 * 96,
                         "gated_delta_backward layout");

#endif /* FLASHDELTA_FLASHDELTA_H */
