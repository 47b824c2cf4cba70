// The gated delta rule: a row a case, {name, where it comes from, {lengths, HV, HK, K, V}, variant, options}.
// The words of a variant are in gated_delta_inputs.cpp.
#include "cases/inputs.hpp"

namespace flashdelta {
namespace {

struct Shape {
  std::vector<int64_t> lengths;
  int64_t heads_v, heads_k, dim_k, dim_v;
};

Case gated_delta(std::string name, std::string source, Shape shape, std::string variant = "", CallOptions options = {},
                 flashdelta_dtype dtype = FLASHDELTA_BF16) {
  Case one;
  one.name = "gdn_" + std::move(name);
  one.source = std::move(source);
  one.operation = Operation::gated_delta_forward;
  one.options = options;
  one.inputs = gated_delta_inputs;
  one.dtype = dtype;
  one.lengths_q = std::move(shape.lengths);
  one.heads_q = shape.heads_v;
  one.heads_k = shape.heads_k;
  one.head_dim = shape.dim_k;
  one.head_dim_v = shape.dim_v;
  one.variant = std::move(variant);
  return one;
}

Case timed(Case one) {
  one.bench = true;
  return one;
}

template <typename Set>
CallOptions with(Set set) {
  CallOptions options;
  set(options);
  return options;
}

const CallOptions l2norm = with([](CallOptions& o) { o.l2norm = true; });
const CallOptions value_major = with([](CallOptions& o) { o.state_layout = FLASHDELTA_STATE_VK; });
const CallOptions chunk_32 = with([](CallOptions& o) { o.chunk = 32; });
const CallOptions chunk_64 = with([](CallOptions& o) { o.chunk = 64; });
const CallOptions serial = with([](CallOptions& o) { o.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_OFF; });
const CallOptions decay_start =
    with([](CallOptions& o) { o.context_parallel = FLASHDELTA_CONTEXT_PARALLEL_DECAY_START; });
const CallOptions every_64 = with([](CallOptions& o) { o.checkpoint_every = 64; });
const CallOptions every_128_vk = with([](CallOptions& o) {
  o.checkpoint_every = 128;
  o.state_layout = FLASHDELTA_STATE_VK;
});
const CallOptions scale_1 = with([](CallOptions& o) { o.scale = 1.0; });
const CallOptions beta_2 = with([](CallOptions& o) { o.beta_scale = 2; });
const CallOptions whole_prefill = with([](CallOptions& o) {
  o.l2norm = true;
  o.beta_scale = 2;
  o.checkpoint_every = 64;
  o.state_layout = FLASHDELTA_STATE_VK;
});

constexpr flashdelta_dtype fp16 = FLASHDELTA_FP16, fp32 = FLASHDELTA_FP32;

const std::vector<int64_t> ragged{1, 31, 0, 33, 64, 2, 0, 65, 127, 0};

std::vector<Case> contract_cases() {
  return {
      gated_delta("plain", "contract", {{70, 70}, 2, 1, 128, 128}, "h0"),
      gated_delta("plain_fp16", "contract", {{77}, 2, 2, 64, 64}, "h0", {}, fp16),
      gated_delta("plain_fp32", "contract", {{77}, 2, 1, 64, 64}, "h0", {}, fp32),
      gated_delta("fp32_long", "contract", {{600}, 2, 1, 64, 64}, "h0 gate=bench", {}, fp32),
      gated_delta("no_state", "contract: starts from zero", {{70}, 2, 1, 128, 128}),
      gated_delta("one_head_one_token", "contract", {{1}, 1, 1, 8, 8}, "h0"),
      gated_delta("no_batch", "contract: empty batch", {{}, 2, 1, 64, 64}),
      gated_delta("no_sequences_packed", "contract: empty batch", {{}, 2, 1, 64, 64}, "packed tail=3"),
      gated_delta("dims_8_8", "contract: smallest", {{100}, 3, 1, 8, 8}, "h0"),
      gated_delta("dims_256_256", "contract: largest", {{70}, 1, 1, 256, 256}, "h0"),
      gated_delta("dims_24_136", "contract: unequal", {{70}, 2, 1, 24, 136}, "h0"),
      gated_delta("dims_256_8", "contract: unequal", {{70}, 2, 1, 256, 8}, "h0", value_major),
      gated_delta("packed_tail", "contract: rows past the last sequence", {ragged, 2, 1, 64, 64}, "packed tail=11 h0"),
      gated_delta("packed_int64", "contract: 64-bit offsets", {ragged, 2, 1, 64, 64}, "packed int64"),
      gated_delta("value_major", "contract: [N,HV,V,K]", {{70, 70}, 2, 1, 64, 128}, "h0", value_major),
      gated_delta("state_bf16", "contract: state dtype", {{100}, 2, 1, 64, 64}, "h0_16"),
      gated_delta("state_bf16_value_major", "contract: state dtype", {{100}, 2, 1, 64, 128}, "h0_16", value_major),
      gated_delta("chunk_32", "contract: chunk", {{200}, 2, 1, 64, 64}, "h0", chunk_32),
      gated_delta("chunk_64", "contract: chunk", {{200}, 2, 1, 64, 64}, "h0", chunk_64),
      gated_delta("scale_1", "contract: scale", {{70}, 2, 1, 64, 64}, "h0", scale_1),
      gated_delta("raw_gate", "contract: A_log, a, dt_bias", {{150}, 3, 1, 64, 64}, "h0 raw_gate"),
      gated_delta("raw_beta", "contract: b", {{150}, 3, 1, 64, 64}, "h0 raw_beta"),
      gated_delta("raw_beta_2", "contract: beta_scale 2", {{150}, 3, 1, 64, 64}, "h0 raw_beta", beta_2),
      gated_delta("raw_all_16", "contract: raw gate and beta in the input's dtype", {{70}, 3, 1, 64, 64},
                  "h0 raw_gate raw_beta scalars_16"),
      gated_delta("gate_16", "contract: g and beta in the input's dtype", {{70}, 2, 1, 64, 64}, "h0 scalars_16"),
      gated_delta("beta_zero", "contract: nothing is written", {{70}, 2, 1, 64, 64}, "h0 beta=zero"),
      gated_delta("pool", "contract: one pool in and out", {{33, 0, 70, 5}, 2, 1, 64, 64}, "packed h0 pool"),
      gated_delta("pool_two", "contract: slots in, slots out", {{33, 0, 70, 5}, 2, 1, 64, 64},
                  "packed h0 pool final_pool int64"),
      gated_delta("pool_skip", "contract: negative index", {{33, 20, 70, 5, 9}, 2, 1, 64, 64},
                  "packed h0 pool final_pool skip"),
      gated_delta("checkpoints", "contract: every 64 tokens", {{63, 64, 65, 200, 0, 128}, 2, 1, 64, 64}, "packed h0",
                  every_64),
      gated_delta("checkpoints_dense_vk", "contract: every 128 tokens", {{300, 300}, 2, 1, 64, 32}, "h0_16",
                  every_128_vk),
      gated_delta("checkpoints_skip", "contract: a skipped sequence's rows are left alone",
                  {{64, 130, 70, 5, 65}, 2, 1, 64, 64}, "packed h0 pool skip", every_64),
      gated_delta("whole_prefill", "contract: all options at once", {{64, 130, 0, 70, 200}, 6, 2, 128, 128},
                  "packed tail=5 keys=raw raw_gate raw_beta h0_16 pool final_pool skip", whole_prefill),
      gated_delta("token_states", "contract: token_state_indices", {{3, 3, 3}, 2, 1, 64, 64}, "h0 tokens"),
      gated_delta("token_states_packed", "contract: token_state_indices", {{3, 1, 0, 5}, 2, 1, 64, 64},
                  "packed tokens int64"),
      gated_delta("token_states_accepted", "contract: num_accepted_tokens", {{4, 4, 4, 4, 4}, 4, 2, 64, 64},
                  "h0_16 tokens accepted", value_major),
      gated_delta("serial", "contract: context_parallel off", {{1000}, 1, 1, 64, 64}, "h0 gate=bench", serial),
      gated_delta("exact_segments", "contract: context_parallel exact", {{3000}, 1, 1, 64, 64}, "h0 gate=bench"),
      gated_delta("exact_no_decay", "contract: a state that must live through all segments", {{3000}, 1, 1, 64, 64},
                  "h0 gate=zero"),
      gated_delta("exact_old_state_is_all", "contract: the decayed state is all of the answer", {{1500}, 1, 1, 64, 64},
                  "h0 gate=-0.02 beta=zero_end"),
      gated_delta("decay_start", "contract: context_parallel decay_start", {{3000}, 2, 1, 64, 64}, "h0 gate=strong",
                  decay_start),
  };
}

// The shapes of the public vectors under tests/vectors, so that other backends meet them as cases too.
std::vector<Case> vector_cases() {
  const std::string source = "public vectors";
  return {
      gated_delta("vector_ratio_3", source, {{65}, 3, 1, 128, 128}, "h0"),
      gated_delta("vector_one_token", source, {{1}, 1, 1, 128, 128}, "h0"),
      gated_delta("vector_empty_middle", source, {{40, 0, 60}, 1, 1, 128, 128}, "packed h0"),
      gated_delta("vector_ragged", source, {{1, 31, 33, 2}, 2, 1, 128, 128}, "packed"),
      gated_delta("vector_zero_gate", source, {{100}, 1, 1, 128, 128}, "h0 gate=zero"),
      gated_delta("vector_strong_gate", source, {{64}, 2, 1, 128, 128}, "h0 gate=strong"),
      gated_delta("vector_mixed_gate", source, {{96}, 2, 1, 128, 128}, "h0 gate=mixed"),
      gated_delta("vector_repeated_keys", source, {{48}, 1, 1, 128, 128}, "h0 gate=zero beta=one keys=repeat"),
      gated_delta("vector_correlated_keys", source, {{128}, 1, 1, 128, 128}, "h0 gate=bench beta=one keys=correlated"),
      gated_delta("vector_beta_2", source, {{64}, 1, 1, 128, 128}, "h0 beta=two"),
      gated_delta("vector_l2norm", source, {{50}, 1, 1, 128, 128}, "h0 keys=raw", l2norm),
      gated_delta("vector_head_64_fp16", source, {{77}, 2, 2, 64, 64}, "h0", {}, fp16),
      gated_delta("vector_scale_1", source, {{33}, 1, 1, 128, 128}, "h0", scale_1),
      gated_delta("vector_reset", source, {{70}, 2, 1, 128, 128}, "h0 gate=reset"),
      gated_delta("vector_long_keys", source, {{64}, 1, 1, 128, 128}, "gate=strong keys=long"),
  };
}

std::vector<Case> issue_cases() {
  std::vector<Case> list{
      gated_delta("gate_is_a_logarithm", "FlashInfer #2490", {{130}, 4, 2, 128, 128}, "h0 gate=-30"),
      gated_delta("l2norm_raw_keys", "FlashInfer #5255", {{130}, 2, 1, 128, 128}, "h0 keys=raw", l2norm),
      gated_delta("empty_first_and_last", "FlashInfer #3536: final = initial", {{0, 5, 0, 0, 70, 0}, 2, 1, 64, 64},
                  "packed h0"),
      gated_delta("seven_long_sequences", "FlashInfer #3565, #3698 (head size 16 for 128)",
                  {{1238, 1199, 1240, 1216, 1187, 1203, 519}, 48, 16, 16, 16}, "packed h0"),
      gated_delta("decode_fp16", "FlashInfer #4219", {{1, 1, 1}, 4, 2, 128, 128}, "h0 raw_gate raw_beta scalars_16",
                  l2norm, fp16),
      gated_delta("identical_keys", "FlashKDA #10, #34", {{64}, 2, 1, 128, 128}, "gate=zero beta=one keys=repeat"),
      gated_delta("identical_keys_long", "FlashKDA #10, #34", {{256}, 1, 1, 64, 64},
                  "h0 gate=-0.001 beta=one keys=repeat"),
      gated_delta("correlated_keys_long", "cudnn-frontend #1051 (2048 for 8192 tokens)", {{2048}, 1, 1, 128, 128},
                  "gate=narrow beta=one keys=correlated"),
      gated_delta("damped_long_keys", "FLA #99: finite", {{200}, 2, 1, 128, 128}, "h0 gate=strong keys=long beta=two"),
      gated_delta("no_gate_as_exact", "FLA #104: g = 0", {{500}, 1, 1, 128, 128}, "gate=zero"),
      gated_delta("2050_sequences_of_32_heads", "FLA #1077, #1096, #1239 (head size 8)",
                  {std::vector<int64_t>(2050, 1), 32, 16, 8, 8}, "packed h0"),
      gated_delta("1030_blocks", "FLA #638 (forward, head size 8)", {{64 * 1030}, 1, 1, 8, 8}, "gate=bench"),
      gated_delta("strong_decay", "FlashQLA #28 (forward)", {{200}, 2, 1, 128, 128}, "gate=strong"),
      gated_delta("initial_state_honoured", "FlashQLA #25", {{40}, 2, 1, 128, 128}, "h0 gate=-0.01"),
      gated_delta("beta_in_fp32", "SGLang #38975", {{300}, 2, 1, 128, 128}, "raw_beta scalars_16 gate=-0.005"),
      gated_delta("readout_over_65504", "vLLM #54308: no fp16 inside", {{200}, 1, 1, 128, 128},
                  "v_gain=30000 gate=-0.001 beta=one keys=correlated", scale_1),
      gated_delta("bf16_state_long", "mlx-serve #415 (4096 for 140000 tokens)", {{4096}, 1, 1, 64, 64},
                  "h0_16 gate=bench"),
      gated_delta("tiny_keys_l2norm", "llama.cpp #28068: rsqrt(sum + 1e-6)", {{100}, 2, 1, 128, 128}, "h0 keys=tiny",
                  l2norm),
      gated_delta("padding_index", "vLLM #39064: a negative index touches no slot", {{1, 1, 1, 1, 1}, 4, 2, 64, 64},
                  "h0 pool skip"),
      gated_delta("accepted_zero", "vLLM #50021: the number is clamped", {{3, 3, 3}, 2, 1, 64, 64},
                  "h0 tokens accepted skip"),
      gated_delta("checkpoint_is_truncated_rerun", "SGLang #39342, #35086", {{64, 128, 320}, 2, 1, 128, 128}, "packed",
                  every_64),
      gated_delta("checkpoints_fp32", "SGLang #36532: one dtype for states", {{200}, 2, 1, 64, 64}, "h0", every_64),
      gated_delta("checkpoints_bf16", "SGLang #36532: one dtype for states", {{200}, 2, 1, 64, 64}, "h0_16", every_64),
      gated_delta("packed_samples_apart", "transformers #46859", {{50, 50, 50}, 2, 1, 128, 128}, "packed gate=-0.01"),
      gated_delta("empty_in_the_middle", "FlashQLA: offsets 0, 40, 40, 100", {{40, 0, 60}, 2, 1, 64, 64}, "packed"),
      gated_delta("no_tokens", "FlashQLA: T = 0", {{0, 0}, 2, 1, 64, 64}, "h0"),
      gated_delta("no_tokens_packed", "FlashQLA: T = 0", {{0, 0}, 2, 1, 64, 64}, "packed h0"),
      gated_delta("one_long_beside_short", "FlashInfer: 28672 + 4096 tokens (1/8 of them, 2/1 heads for 32/16)",
                  {{3584, 512}, 2, 1, 128, 128}, "packed h0 gate=bench"),
      gated_delta("long_keys_in_the_window", "context parallelism of FlashQLA: |k| = 2, beta = 0.9, g = -0.2",
                  {{600}, 1, 1, 64, 64}, "h0 gate=-0.2 beta=0.9 keys=long", {}, fp32),
      gated_delta("state_vanishes", "context parallelism of FlashQLA: beta = 0 in the window", {{600}, 1, 1, 64, 64},
                  "h0 gate=-0.2 beta=zero_end", {}, fp32),
  };
  for (Case& one : list) {
    if (one.name == "gdn_identical_keys") one.gpu_factor = 3;
    if (one.name == "gdn_correlated_keys_long") one.gpu_factor = 1.5;
  }
  for (int64_t tail : {57, 59, 61, 63}) {
    list.push_back(gated_delta(fmt::format("tail_{}", tail), "FlashInfer #4311: the last valid decay",
                               {{tail}, 2, 1, 128, 128}, "h0"));
  }
  for (int64_t tokens : {63, 500, 1000}) {
    list.push_back(gated_delta(fmt::format("padded_gate_{}", tokens), "cuLA #38, sparkinfer #604",
                               {{tokens}, 2, 1, 64, 64}, "h0 gate=strong"));
  }
  return list;
}

std::vector<Case> timed_cases() {
  return {
      timed(gated_delta("bench_16_16", "Qwen3.5 0.8B, 1 x 2048", {{2048}, 16, 16, 128, 128}, "gate=bench")),
      timed(gated_delta("bench_2_8", "FlashQLA 2/8 heads, 1 x 4096 (for 32768)", {{4096}, 8, 2, 128, 128},
                        "h0 gate=bench")),
      timed(gated_delta("bench_4_12", "Qwen3.5 27B on 4 GPUs, 1024 x 4", {{1024, 1024, 1024, 1024}, 12, 4, 128, 128},
                        "packed h0 gate=bench")),
      timed(gated_delta("bench_prefill", "raw gate, l2norm, checkpoints, 16/32 heads, 1 x 1024",
                        {{1024}, 32, 16, 128, 128}, "keys=raw raw_gate raw_beta h0_16 scalars_16",
                        with([](CallOptions& o) {
                          o.l2norm = true;
                          o.checkpoint_every = 512;
                        }))),
      timed(gated_delta("bench_fp32", "fp32, 1 x 2048", {{2048}, 4, 4, 128, 128}, "h0 gate=bench", {}, fp32)),
  };
}

}  // namespace

std::vector<Case> gated_delta_cases() {
  std::vector<Case> all;
  for (const auto& list : {contract_cases(), vector_cases(), issue_cases(), timed_cases()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

std::vector<Case> long_gated_delta_cases() {
  return {
      gated_delta("seven_long_sequences_full", "FlashInfer #3565, #3698",
                  {{1238, 1199, 1240, 1216, 1187, 1203, 519}, 48, 16, 128, 128}, "packed h0"),
      gated_delta("correlated_keys_8192", "cudnn-frontend #1051", {{8192}, 2, 1, 128, 128},
                  "gate=narrow beta=one keys=correlated"),
      gated_delta("2050_sequences_of_32_heads_32", "FLA #1077, #1096, #1239 (head size 32)",
                  {std::vector<int64_t>(2050, 3), 32, 16, 32, 32}, "packed h0"),
      gated_delta("2050_chunks_of_32_heads", "FLA #1077, #1096, #1239: chunked (head size 32)",
                  {std::vector<int64_t>(2050, 17), 32, 16, 32, 32}, "packed"),
      gated_delta("1030_blocks_full", "FLA #638 (forward)", {{64 * 1030}, 1, 1, 128, 128}, "gate=bench"),
      gated_delta("bf16_state_140000", "mlx-serve #415", {{140000}, 2, 1, 64, 64}, "h0_16 gate=bench"),
      gated_delta("28672_beside_4096", "FlashInfer: one long sequence beside a short one",
                  {{28672, 4096}, 32, 16, 128, 128}, "packed h0 gate=bench"),
      gated_delta("2_8_heads_32768", "FlashQLA 2/8 heads, 1 x 32768", {{32768}, 8, 2, 128, 128}, "h0 gate=bench"),
  };
}

}  // namespace flashdelta
