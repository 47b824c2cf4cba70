/* Causal softmax attention of random queries over random keys, in plain C: view, query the workspace, run.
 *   cc attention.c -lflashdelta -lm
 */
#include <flashdelta/flashdelta.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 256, HEADS_Q = 4, HEADS_K = 2, HEAD_DIM = 64 };

static float uniform(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, flashdelta_last_error());
  return 1;
}

int main(void) {
  static float q[TOKENS * HEADS_Q * HEAD_DIM], k[TOKENS * HEADS_K * HEAD_DIM], v[TOKENS * HEADS_K * HEAD_DIM];
  static float o[TOKENS * HEADS_Q * HEAD_DIM], lse[HEADS_Q * TOKENS];
  for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = uniform();
  for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = uniform(), v[i] = uniform();

  const int64_t q_shape[] = {1, TOKENS, HEADS_Q, HEAD_DIM}, k_shape[] = {1, TOKENS, HEADS_K, HEAD_DIM};
  const int64_t lse_shape[] = {1, HEADS_Q, TOKENS};
  flashdelta_attention_forward_args args;
  flashdelta_attention_forward_init(&args);
  args.causal = 1;
  if (flashdelta_tensor_contiguous(q, FLASHDELTA_FP32, 4, q_shape, &args.q) != FLASHDELTA_OK ||
      flashdelta_tensor_contiguous(k, FLASHDELTA_FP32, 4, k_shape, &args.k) != FLASHDELTA_OK ||
      flashdelta_tensor_contiguous(v, FLASHDELTA_FP32, 4, k_shape, &args.v) != FLASHDELTA_OK ||
      flashdelta_tensor_contiguous(o, FLASHDELTA_FP32, 4, q_shape, &args.o) != FLASHDELTA_OK ||
      flashdelta_tensor_contiguous(lse, FLASHDELTA_FP32, 3, lse_shape, &args.lse) != FLASHDELTA_OK) {
    return fail("tensor");
  }

  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  execution.backend = FLASHDELTA_BACKEND_CPU;
  size_t bytes = 0;
  if (flashdelta_attention_forward_workspace(&args, &execution, &bytes) != FLASHDELTA_OK) return fail("workspace");
  void* workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
  if (workspace == NULL) return fail("aligned_alloc");
  if (flashdelta_attention_forward(&args, &execution, workspace, bytes) != FLASHDELTA_OK) return fail("run");
  free(workspace);

  /* The first query of a causal call sees the first key alone: its output is that key's value. */
  printf("flashdelta %s: o[0] = %.6f, v[0] = %.6f, lse[0] = %.6f\n", flashdelta_version(), o[0], v[0], lse[0]);
  return o[0] == v[0] ? 0 : 1;
}
