// Softmax attention: a row a case, {name, where it comes from, {lengths_q, lengths_k, HQ, HK, D, DV}, options,
// variant}. The words of a variant are in attention_inputs.cpp.
#include "cases/inputs.hpp"

namespace flashdelta {
namespace {

struct Shape {
  std::vector<int64_t> lengths_q, lengths_k;
  int64_t heads_q, heads_k, head_dim, head_dim_v;
};

Case attention(std::string name, std::string source, Shape shape, CallOptions options = {}, std::string variant = "",
               flashdelta_dtype dtype = FLASHDELTA_BF16) {
  Case one;
  one.name = std::move(name);
  one.source = std::move(source);
  one.options = options;
  one.inputs = attention_inputs;
  one.dtype = dtype;
  one.lengths_q = std::move(shape.lengths_q);
  one.lengths_k = std::move(shape.lengths_k);
  one.heads_q = shape.heads_q;
  one.heads_k = shape.heads_k;
  one.head_dim = shape.head_dim;
  one.head_dim_v = shape.head_dim_v;
  one.variant = std::move(variant);
  return one;
}

Case timed(Case one) {
  one.bench = true;
  return one;
}

CallOptions window(int64_t left, int64_t right) {
  CallOptions options;
  options.window_left = left;
  options.window_right = right;
  return options;
}

CallOptions causal(int64_t window_left = -1) {
  CallOptions options = window(window_left, -1);
  options.causal = true;
  return options;
}

CallOptions softcap(double cap, CallOptions options = {}) {
  options.softcap = cap;
  return options;
}

CallOptions scale(double factor, CallOptions options = {}) {
  options.scale = factor;
  return options;
}

constexpr flashdelta_dtype fp16 = FLASHDELTA_FP16, fp32 = FLASHDELTA_FP32;

const std::vector<int64_t> twelve_q{1, 0, 17, 64, 65, 3, 0, 128, 2, 31, 1, 0};
const std::vector<int64_t> twelve_k{9, 0, 63, 64, 127, 0, 5, 129, 192, 31, 1, 0};

std::vector<Case> contract_cases() {
  return {
      attention("plain", "contract", {{65, 65}, {65, 65}, 2, 2, 128, 128}),
      attention("plain_fp16", "contract", {{65}, {129}, 2, 2, 64, 64}, {}, "", fp16),
      attention("plain_fp32", "contract", {{65}, {129}, 2, 1, 64, 64}, {}, "", fp32),
      attention("causal_fp32", "contract", {{130}, {130}, 2, 2, 80, 48}, causal(), "", fp32),
      attention("causal_group_4", "contract", {{129}, {129}, 4, 1, 128, 128}, causal()),
      attention("scale_given", "contract: scale", {{33}, {70}, 2, 2, 64, 64}, scale(0.3)),
      attention("scale_zero", "contract: scale 0 is a mean", {{33}, {70}, 2, 2, 64, 64}, scale(0)),
      attention("scale_negative", "contract: scale", {{33}, {70}, 2, 2, 64, 64}, scale(-0.125)),
      attention("no_batch", "contract: empty batch", {{}, {}, 2, 1, 64, 64}),
      attention("no_sequences_packed", "contract: empty batch", {{}, {}, 2, 1, 64, 64}, {}, "packed tail=3"),
      attention("no_queries", "contract: TQ = 0", {{0, 0}, {7, 7}, 2, 1, 64, 64}),
      attention("no_tokens_packed", "contract: nothing in any sequence", {{0, 0}, {0, 0}, 2, 1, 64, 64}, {}, "packed"),
      attention("no_keys_sink", "contract: lse = sink", {{4}, {0}, 3, 1, 64, 64}, {}, "sink"),
      attention("masked_rows_sink", "contract: rows without a key, lse = sink", {{40}, {9}, 2, 1, 64, 64}, causal(),
                "sink"),
      attention("dims_8_8", "contract: smallest head size", {{33}, {65}, 2, 2, 8, 8}, causal()),
      attention("dims_8_512", "contract: unequal head sizes", {{17}, {65}, 2, 1, 8, 512}, causal()),
      attention("dims_512_8", "contract: unequal head sizes", {{17}, {65}, 2, 1, 512, 8}),
      attention("window_left_zero", "contract: itself alone", {{70}, {70}, 2, 2, 64, 64}, causal(0)),
      attention("window_right_one", "contract: left unbounded", {{70}, {90}, 2, 2, 64, 64}, window(-1, 1)),
      attention("window_zero_zero", "contract: the diagonal", {{70}, {90}, 2, 2, 64, 64}, window(0, 0)),
      attention("window_as_long_as_keys", "contract: a window that masks nothing", {{64}, {64}, 2, 2, 64, 64},
                window(64, 1000000)),
      attention("window_queries_longer", "contract: rows left of every key", {{90}, {30}, 2, 2, 64, 64}, window(5, 3)),
      attention("window_queries_shorter", "contract: bottom-right", {{30}, {300}, 2, 2, 64, 64}, window(40, 9)),
      attention("softcap_small", "contract: cap before mask", {{80}, {80}, 2, 2, 64, 64}, softcap(2, causal()),
                "gain=3 sink"),
      attention("sink_16", "contract: sink in q's dtype", {{60}, {60}, 4, 2, 64, 64}, causal(), "sink_16"),
      attention("sink_large", "contract: sink over every logit", {{20}, {60}, 4, 2, 64, 64}, {}, "sink=30"),
      attention("sink_over_range", "contract: o too small for fp32 is 0", {{20}, {60}, 4, 2, 64, 64}, {}, "sink=200"),
      attention("sink_tiny", "contract: sink that adds nothing", {{20}, {60}, 4, 2, 64, 64}, {}, "sink=-1e30"),
      attention("packed", "contract", {twelve_q, twelve_k, 4, 2, 64, 64}, causal(), "packed tail=9"),
      attention("packed_int64", "contract: 64-bit offsets", {twelve_q, twelve_k, 2, 1, 72, 40}, {}, "packed int64"),
      attention("packed_window_sink", "contract", {twelve_q, twelve_k, 2, 1, 64, 64}, causal(20), "packed sink tail=1"),
      attention("packed_queries_dense_keys", "contract: mixed forms", {{3, 0, 40}, {50, 50, 50}, 2, 1, 64, 64},
                causal(), "packed_q tail=2"),
      attention("dense_queries_packed_keys", "contract: mixed forms", {{8, 8, 8}, {0, 50, 3}, 2, 1, 64, 64}, causal(),
                "packed_k tail=2"),
      attention("seqused_dense", "contract: seqused_k", {{8, 8, 8}, {0, 50, 33}, 2, 1, 64, 64}, causal(), "seqused"),
      attention("seqused_packed", "contract: seqused_k", {twelve_q, twelve_k, 2, 1, 64, 64}, causal(),
                "packed seqused int64 tail=4"),
      attention("cache_rows", "contract: cache_batch_idx", {{2, 2, 2}, {70, 9, 128}, 4, 2, 64, 64}, causal(),
                "seqused cache"),
      attention("cache_rows_full", "contract: cache_batch_idx alone", {{5, 5}, {70, 70}, 4, 2, 64, 64}, {},
                "cache int64"),
      attention("pages_of_1", "contract: page_table", {{3, 3}, {11, 20}, 2, 1, 64, 64}, causal(), "page=1"),
      attention("pages_of_3", "contract: page_table", {{3, 3}, {11, 200}, 2, 1, 64, 64}, causal(), "page=3"),
      attention("pages_of_16_packed", "contract: page_table", {{1, 33, 0, 70}, {90, 33, 16, 200}, 8, 2, 128, 128},
                causal(), "page=16 packed_q sink"),
      attention("pages_of_256", "contract: page_table", {{2, 2, 2}, {255, 256, 300}, 4, 1, 64, 64}, causal(100),
                "page=256 int64"),
      attention("pages_unused_sequence", "contract: page_table", {{2, 2}, {0, 40}, 4, 1, 64, 64}, {}, "page=16"),
      attention("split_keys", "contract: few rows, many keys", {{1}, {9000}, 8, 1, 128, 128}, causal()),
      attention("causal_1000", "contract: many blocks", {{1000}, {1000}, 2, 1, 64, 64}, causal()),
      attention("window_1500", "contract: many blocks, few visible", {{1500}, {1500}, 2, 1, 64, 64}, causal(100)),
  };
}

// The shapes of the public vectors under tests/vectors, so that other backends meet them as cases too.
std::vector<Case> vector_cases() {
  const std::string source = "public vectors";
  return {
      attention("vector_q_shorter", source, {{9}, {100}, 2, 1, 64, 64}, causal()),
      attention("vector_q_longer", source, {{100}, {9}, 2, 2, 64, 64}, causal()),
      attention("vector_d256_group_6", source, {{70}, {70}, 6, 1, 256, 256}, causal()),
      attention("vector_d72", source, {{67}, {131}, 2, 1, 72, 72}),
      attention("vector_d192_128", source, {{64}, {127}, 2, 2, 192, 128}, causal()),
      attention("vector_window_left", source, {{150}, {150}, 1, 1, 64, 64}, causal(31)),
      attention("vector_window_both", source, {{90}, {120}, 2, 2, 64, 64}, window(16, 7)),
      attention("vector_softcap", source, {{80}, {80}, 2, 2, 64, 64}, softcap(15, causal()), "gain=3"),
      attention("vector_sink", source, {{60}, {60}, 3, 1, 64, 64}, causal(), "sink"),
      attention("vector_varlen", source, {{0, 5, 64, 17, 0}, {3, 0, 64, 90, 0}, 2, 1, 64, 64}, causal(), "packed"),
      attention("vector_negative_logits", source, {{40}, {40}, 1, 1, 64, 64}, {}, "gain=2 offset=82"),
      attention("vector_d96_fp16", source, {{101}, {101}, 2, 2, 96, 96}, {}, "", fp16),
      attention("vector_single", source, {{1}, {1}, 1, 1, 16, 16}),
  };
}

std::vector<Case> issue_cases() {
  return {
      attention("d256_causal_256", "FlashAttention #2750", {{256}, {256}, 2, 2, 256, 256}, causal()),
      attention("causal_two_diagonal_blocks", "FlashAttention PR #2329", {{384}, {384}, 2, 2, 128, 128}, causal()),
      attention("varlen_surplus_tiles", "FlashAttention PR #2333 (forward)",
                {{300, 1, 2, 3, 4, 1, 0, 1}, {300, 1, 2, 3, 4, 1, 0, 1}, 2, 2, 64, 64}, causal(), "packed"),
      attention("many_batches_of_70", "FlashAttention PR #2337 (forward)",
                {std::vector<int64_t>(40, 70), std::vector<int64_t>(40, 70), 1, 1, 64, 64}, causal(), "packed"),
      attention("batch_8300", "FlashAttention PR #2260, #1500 (forward; head size 32 for 128)",
                {std::vector<int64_t>(8300, 1), std::vector<int64_t>(8300, 1), 16, 16, 32, 32}),
      attention("empty_queries_first_and_last", "FlashAttention #2562 (forward)",
                {{0, 1208, 840, 0}, {2538, 1742, 840, 3072}, 1, 1, 256, 256}, {}, "packed"),
      attention("no_keys", "FlashAttention PR #2470: o = 0, lse = -inf", {{33, 33}, {0, 0}, 2, 1, 64, 64}, causal()),
      attention("one_query_or_none", "FlashAttention #1537", {{1, 0, 1, 1, 0, 1}, {30, 12, 0, 64, 0, 1}, 9, 3, 64, 64},
                causal(), "packed"),
      attention("keys_fewer_than_queries_fp16", "FlashAttention #443 (forward)",
                {{76, 34, 146}, {1, 1, 1}, 1, 1, 32, 32}, causal(), "packed gain=3", fp16),
      attention("one_of_each_fp16", "FlashAttention #334 (forward)", {{1}, {1}, 1, 1, 16, 16}, {}, "", fp16),
      attention("d72", "FlashAttention PR #2698, #2492 (forward)", {{100}, {100}, 2, 2, 72, 72}, causal()),
      attention("d104", "FlashAttention PR #2698, #2896 (forward)", {{100}, {100}, 2, 2, 104, 104}, causal()),
      attention("d40", "FlashInfer #4299: no multiple of 16", {{63}, {192}, 2, 2, 40, 40}),
      attention("d24", "FlashInfer #4299: no multiple of 16", {{63}, {192}, 2, 2, 24, 24}, causal()),
      attention("logits_under_5e4", "FlashInfer #4267, #4450, #4451", {{64}, {192}, 2, 1, 64, 64}, {}, "offset=82"),
      attention("logits_near_6e4", "FlashInfer #4267: logits at -6e4", {{65}, {127}, 2, 1, 64, 64}, causal(),
                "offset=86.6"),
      attention("causal_queries_longer", "FlashInfer #4452: masked rows o = 0, lse = -inf", {{192}, {65}, 2, 1, 64, 64},
                causal()),
      attention("d192_128_99_tokens", "FlashInfer #4976 (bf16 for FP8)", {{99}, {99}, 16, 16, 192, 128}, causal()),
      attention("decode_group_8_lse", "vllm-flash-attn PR #87: lse is [B,HQ,TQ]",
                {{1, 1, 1}, {700, 700, 700}, 16, 2, 128, 128}, causal()),
      attention("decode_24_4_d256", "vLLM #49010", {{1, 1}, {500, 77}, 24, 4, 256, 256}, causal(), "page=16"),
      attention("prefill_16_tokens_paged", "vLLM #54225 (bf16 for FP8)", {{16}, {16}, 8, 2, 128, 128}, causal(),
                "page=16"),
      attention("q1001_k503", "SageAttention PR #377: unfilled tails", {{1001}, {503}, 2, 2, 64, 64}),
      attention("nine_tokens", "SageAttention PR #377", {{9}, {9}, 2, 2, 128, 128}),
      attention("causal_queries_shorter", "SageAttention #131, PR #372: bottom-right", {{127}, {503}, 2, 2, 64, 64},
                causal()),
      attention("sink_zero_logits", "Modular #6198: o = 64 / (64 + exp(5)) = 0.3013", {{3}, {64}, 2, 1, 64, 64}, {},
                "sink=5 logits=zero v=one"),
      attention("d256_dense", "PyTorch #198224, #181379", {{129}, {129}, 2, 2, 256, 256}),
      attention("d256_129_keys", "llama.cpp #24398", {{9}, {129}, 4, 2, 256, 256}),
      attention("d512_group_8_fp16", "xFormers #1392", {{129}, {129}, 16, 2, 512, 512}, {}, "", fp16),
      attention("keys_170000", "SageAttention #388, ComfyUI #15263 (16 queries of one head)",
                {{16}, {170000}, 1, 1, 64, 64}, {}, "", fp16),
      attention("d512_causal", "FlashAttention #2427, vLLM #40677", {{65}, {129}, 2, 1, 512, 512}, causal()),
      attention("sink_window_paged", "vLLM #40153, FlashInfer #4070", {{9, 9}, {192, 503}, 8, 1, 64, 64}, causal(127),
                "sink page=16"),
      attention("group_3_d160", "group 3", {{63}, {129}, 3, 1, 160, 160}, causal()),
      attention("group_5_d224", "group 5", {{65}, {65}, 5, 1, 224, 224}, causal()),
      attention("group_7_d96", "group 7", {{127}, {192}, 14, 2, 96, 96}, causal()),
      attention("inputs_times_3_fp16", "FlashAttention #443: inputs times 3", {{127}, {127}, 2, 2, 64, 64}, causal(),
                "gain=3", fp16),
      attention("sink_zero", "sinks with zero logits", {{65}, {65}, 2, 2, 64, 64}, causal(), "sink=0 logits=zero"),
      attention("cu_seqlens_repeated", "entries repeated first, middle and last",
                {{0, 0, 9, 0, 65, 0, 0}, {0, 0, 9, 0, 65, 0, 0}, 2, 2, 64, 64}, causal(), "packed"),
  };
}

std::vector<Case> timed_cases() {
  return {
      timed(attention("bench_dense_d128", "gau-nernst/learn-cuda 07_attention (q 1024, kv 2048 for 4096, 8192)",
                      {{1024}, {2048}, 8, 8, 128, 128})),
      timed(attention("bench_causal_d128", "cudnn-frontend llama3.1 shape (1 of 2 x 64/8 heads, 2048)",
                      {{2048}, {2048}, 8, 1, 128, 128}, causal())),
      timed(attention("bench_causal_d256", "cudnn-frontend D256 shape (8/2 heads, 1024)",
                      {{1024}, {1024}, 8, 2, 256, 256}, causal())),
      timed(attention("bench_causal_d64_fp32", "SmolLM2 shape, 9/3 heads, fp32", {{1024}, {1024}, 9, 3, 64, 64},
                      causal(), "", fp32)),
      timed(attention("bench_decode", "Qwen3.5 27B decode, 24/4 heads, paged",
                      {{1, 1, 1, 1}, {4096, 4096, 4096, 4096}, 24, 4, 256, 256}, causal(), "page=16")),
  };
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> all;
  for (const auto& list : {contract_cases(), vector_cases(), issue_cases(), timed_cases()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

}  // namespace flashdelta
