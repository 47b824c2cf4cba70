// The forecast against an H200's measurements (bench/results/h200/attention-forward.md): residency held to SM120's,
// driver 580.159, bf16, medians, 2026-11-30.
#include <gtest/gtest.h>

#include <span>

#include "device/forecast.hpp"

namespace flashdelta {
namespace {

struct Measured {
  int64_t batch, heads_q, heads_k, seqlen, head_dim;
  bool causal;
  double tflops;
};

// The shapes that the cost of a wait was fitted to, as they run alone, at the card's full clock.
constexpr Measured kFitted[] = {
    {4, 8, 8, 8192, 128, false, 428},   {4, 16, 16, 4096, 128, false, 418}, {4, 16, 16, 4096, 128, true, 383},
    {1, 16, 16, 16384, 128, true, 425}, {4, 32, 32, 4096, 64, false, 365},  {4, 32, 32, 4096, 64, true, 339},
};

// The same, and all others but one, between other kernels that draw as much power. 16/4 heads over 2048 tokens, 0.1 ms,
// are 16% slower than foretold.
constexpr Measured kForetold[] = {
    {4, 8, 8, 8192, 128, false, 400},   {4, 16, 16, 4096, 128, false, 399}, {4, 16, 16, 4096, 128, true, 382},
    {1, 16, 16, 16384, 128, true, 406}, {4, 32, 32, 4096, 64, false, 369},  {4, 32, 32, 4096, 64, true, 343},
    {2, 16, 16, 4096, 256, false, 371}, {2, 16, 16, 4096, 256, true, 357},  {4, 16, 2, 4096, 256, true, 341},
    {1, 8, 2, 2048, 256, true, 172},    {1, 8, 2, 8192, 256, true, 374},    {1, 8, 2, 32768, 256, true, 360},
    {1, 16, 4, 8192, 256, true, 376},   {1, 16, 4, 32768, 256, true, 355},  {1, 24, 4, 2048, 256, true, 286},
    {1, 24, 4, 8192, 256, true, 357},   {1, 24, 4, 32768, 256, true, 353},  {1, 32, 2, 2048, 256, true, 318},
    {1, 32, 2, 8192, 256, true, 357},   {1, 32, 2, 32768, 256, true, 364},
};

const char* kernel_of(const Measured& m) {
  if (m.head_dim == 64) return "attention_forward_bf16_d64_q128";
  return m.head_dim == 128 ? "attention_forward_bf16_d128_q256" : "attention_forward_bf16_d256_q128";
}

Forecast forecast(const char* device, const Measured& m) {
  const ForecastRequest request{.arch = parse_arch("sm120"),
                                .dtype = FLASHDELTA_BF16,
                                .head_dim = m.head_dim,
                                .head_dim_v = m.head_dim,
                                .batch = m.batch,
                                .heads_q = m.heads_q,
                                .heads_k = m.heads_k,
                                .seqlen = m.seqlen,
                                .causal = m.causal};
  Forecast result;
  const Status status = forecast_attention(*find_device(device), request, &result);
  EXPECT_TRUE(status.ok()) << status.message;
  return result;
}

void expect_within(std::span<const Measured> all, double share) {
  for (const Measured& m : all) {
    const Forecast f = forecast("h200", m);
    EXPECT_EQ(f.kernel, kernel_of(m));
    EXPECT_NEAR(f.flops / f.seconds * 1e-12 / m.tflops, 1, share)
        << m.batch << " " << m.heads_q << "/" << m.heads_k << " " << m.seqlen << " " << m.head_dim << " " << m.causal;
  }
}

TEST(Forecast, HoldsWhereItWasFitted) { expect_within(kFitted, 0.10); }
TEST(Forecast, ForetellsTheRest) { expect_within(kForetold, 0.15); }

void gated_delta_on_an_h200(int64_t heads_k, int64_t heads_v, int64_t batch, int64_t seqlen, Forecast* forecast) {
  const GatedDeltaForecastRequest request{.arch = parse_arch("sm120"),
                                          .dim_k = 128,
                                          .dim_v = 128,
                                          .batch = batch,
                                          .heads_k = heads_k,
                                          .heads_v = heads_v,
                                          .seqlen = seqlen};
  const Status status = forecast_gated_delta(*find_device("h200"), request, forecast);
  ASSERT_TRUE(status.ok()) << status.message;
}

// Preparation and sequential kernel, without context parallelism, ms (bench/results/h200/gated-delta-forward.md, the
// latest of each shape). Two constants were fitted on kernels before these, on the first row's preparation alone and on
// the second row.
TEST(Forecast, GatedDeltaOnAnH200) {
  const struct {
    int64_t heads_k, heads_v, batch, seqlen;
    double ms;
    bool wide = false, composed = false;  // by exact
  } measured[] = {{16, 48, 1, 32768, 0.874},      {2, 8, 1, 32768, 0.837, false, true},   {16, 48, 1, 8192, 0.234},
                  {16, 48, 4, 8192, 0.684, true}, {16, 32, 1, 32768, 0.874, false, true}, {16, 64, 1, 32768, 1.018},
                  {16, 48, 8, 1024, 0.200, true}};
  for (const auto& m : measured) {
    Forecast f;
    ASSERT_NO_FATAL_FAILURE(gated_delta_on_an_h200(m.heads_k, m.heads_v, m.batch, m.seqlen, &f));
    EXPECT_EQ(f.kernel, m.wide ? "gated_delta_wide_bf16_k128" : "gated_delta_forward_bf16_k128_v64");
    EXPECT_EQ(f.composed_chunks > 0, m.composed) << m.heads_v;
    if (m.composed) {
      EXPECT_LT(f.composed_seconds, f.seconds) << m.heads_v << " heads";
    }
    EXPECT_EQ(f.parts_exact > 1, m.composed) << m.heads_v;
    EXPECT_NEAR(f.seconds * 1e3 / m.ms, 1, 0.15) << m.heads_v << " heads, " << m.batch << " x " << m.seqlen;
    for (const Forecast::Limit& limit : f.limits) EXPECT_LE(limit.share, 1) << limit.name;
  }
}

// The same under decay_start, all gates decaying (docs/gated-delta-gpu.md).
TEST(Forecast, RangesOnAnH200) {
  const struct {
    int64_t heads_k, heads_v, batch, seqlen, ranges;
    double ms;
  } measured[] = {{16, 48, 1, 32768, 44, 0.633}, {16, 48, 1, 8192, 44, 0.187},  {16, 48, 4, 8192, 44, 0.640},
                  {16, 32, 1, 32768, 66, 0.464}, {16, 64, 1, 32768, 33, 0.814}, {16, 48, 1, 128, 0, 0}};
  for (const auto& m : measured) {
    Forecast f;
    ASSERT_NO_FATAL_FAILURE(gated_delta_on_an_h200(m.heads_k, m.heads_v, m.batch, m.seqlen, &f));
    EXPECT_EQ(f.ranges, m.ranges);
    if (m.ranges == 0) continue;
    EXPECT_NEAR(f.range_seconds * 1e3 / m.ms, 1, 0.2) << m.heads_v << " heads, " << m.batch << " x " << m.seqlen;
  }
}

// The recurrent kernel, [K, V], ms (bench/results/h200/gated-delta-decode.md): the last two as it is, the others in
// blocks of 8 warps, on which and on [V, K] one constant was fitted.
TEST(Forecast, FewTokensOfTheGatedDeltaRuleOnAnH200) {
  const struct {
    int64_t batch, seqlen;
    double ms;
  } measured[] = {{64, 1, 0.1055},  {64, 4, 0.1708},  {64, 16, 0.4661},
                  {256, 1, 0.4038}, {256, 4, 0.5896}, {256, 16, 1.5107}};
  for (const auto& m : measured) {
    Forecast f;
    const Status status = forecast_gated_delta(*find_device("h200"),
                                               {.arch = parse_arch("sm120"),
                                                .dim_k = 128,
                                                .dim_v = 128,
                                                .batch = m.batch,
                                                .heads_k = 16,
                                                .heads_v = 48,
                                                .seqlen = m.seqlen},
                                               &f);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(f.kernel, "gated_delta_recurrent_bf16_k128");
    EXPECT_NEAR(f.seconds * 1e3 / m.ms, 1, 0.15) << m.batch << " x " << m.seqlen;
  }
}

// 33 heads start as two groups of about as many: the long tiles of one head left over would leave most SMs idle.
TEST(Forecast, NoGroupOfHeadsIsLeftOver) {
  const Forecast f = forecast("rtx-5090", {1, 33, 33, 2048, 128, true, 0});
  ASSERT_FALSE(f.limits.empty());
  EXPECT_GT(f.limits[0].share, 0.75);
}

// Shapes of 1,024 equal blocks: six whole waves of 170 SMs and four blocks more.
TEST(Forecast, LastTilesThatAreSharedLeaveNoIdleWave) {
  for (const Measured& m : {kFitted[0], kFitted[1]}) {
    const Forecast f = forecast("rtx-5090", m);
    EXPECT_GT(f.tail_parts, 1);
    EXPECT_STREQ(f.limits.at(0).name, "tensor");
    EXPECT_GT(f.limits.at(0).share, 0.94);
    EXPECT_GT(forecast("rtx-pro-6000", m).limits.at(0).share, 0.88);
  }
}

// Blocks of many lengths: the short ones of all heads, last, even out where the SMs end.
TEST(Forecast, CausalShapesEndEvenly) {
  for (const Measured& m : {kFitted[2], kFitted[3]}) {
    EXPECT_GT(forecast("rtx-5090", m).limits.at(0).share, 0.94);
    EXPECT_GT(forecast("rtx-pro-6000", m).limits.at(0).share, 0.88);
  }
}

// What a call that shares its last tiles gains, by the model, is never a loss.
TEST(Forecast, SharedTilesAreNeverSlower) {
  int shared = 0;
  for (const char* device : {"rtx-5090", "rtx-pro-6000", "h200"}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const int64_t heads : {1, 11, 23, 43}) {
        for (const int64_t seqlen : {1024, 4096}) {
          ForecastRequest request{.arch = parse_arch("sm120"),
                                  .head_dim = head_dim,
                                  .head_dim_v = head_dim,
                                  .batch = 2,
                                  .heads_q = heads,
                                  .heads_k = heads,
                                  .seqlen = seqlen};
          Forecast together, apart;
          ASSERT_TRUE(forecast_attention(*find_device(device), request, &together).ok());
          request.share_tail = false;
          ASSERT_TRUE(forecast_attention(*find_device(device), request, &apart).ok());
          shared += together.tail_parts > 1;
          EXPECT_LE(together.seconds, apart.seconds) << device << " " << head_dim << " " << heads << " " << seqlen;
        }
      }
    }
  }
  EXPECT_GT(shared, 5);
}

TEST(Forecast, NoLimitIsOverTheTimeAndTheLargestBinds) {
  for (const char* device : {"rtx-5090", "rtx-pro-6000", "h200"}) {
    for (const Measured& m : kFitted) {
      const Forecast f = forecast(device, m);
      double most = 0;
      for (const Forecast::Limit& limit : f.limits) {
        EXPECT_GT(limit.share, 0) << limit.name;
        EXPECT_LE(limit.share, 1 + 1e-9) << limit.name;
        if (limit.share > most) most = limit.share;
      }
      for (const Forecast::Limit& limit : f.limits) {
        if (std::string_view(limit.name) == f.binding) {
          EXPECT_EQ(limit.share, most);
        }
      }
      EXPECT_LE(f.flops / f.seconds * 1e-12, *find_device(device)->mma_sync_bf16_tflops);
    }
  }
}

TEST(Forecast, TensorTimeOfADenseBlockIsItsMma) {
  // No toll on SM120: the tensor share is the mma's alone, 2 head_dim + 2 head_dim_v FLOP a score.
  const Forecast f = forecast("rtx-5090", kFitted[0]);
  EXPECT_NEAR(f.limits[0].share, f.flops / f.seconds / 209.5e12, 1e-6);
  EXPECT_STREQ(f.limits[0].name, "tensor");
}

TEST(Forecast, AnUnknownRateOrAMissingKernelIsRefusedByName) {
  Forecast result;
  ForecastRequest request{.arch = parse_arch("sm120"), .head_dim = 128, .head_dim_v = 128, .seqlen = 128};
  Status status = forecast_attention(*find_device("b200"), request, &result);
  EXPECT_EQ(status.code, FLASHDELTA_NOT_SUPPORTED);
  EXPECT_NE(status.message.find("b200"), std::string::npos);
  request.dtype = FLASHDELTA_FP32;
  status = forecast_attention(*find_device("h200"), request, &result);
  EXPECT_EQ(status.code, FLASHDELTA_NOT_SUPPORTED);
  EXPECT_NE(status.message.find("fp32"), std::string::npos);
}

TEST(Forecast, OddShapesGrowWithTheirWork) {
  // Tails of keys, groups that do not divide a block, head sizes that are padded, sequences shorter than a tile.
  for (const bool causal : {false, true}) {
    for (const int64_t group : {1, 3, 8, 300}) {
      double before = 0;
      for (const int64_t seqlen : {1, 40, 1000, 4100, 20000}) {
        const ForecastRequest request{.arch = parse_arch("sm120"),
                                      .dtype = FLASHDELTA_FP16,
                                      .head_dim = 72,
                                      .head_dim_v = 40,
                                      .batch = 1,
                                      .heads_q = 2 * group,
                                      .heads_k = 2,
                                      .seqlen = seqlen,
                                      .causal = causal};
        Forecast result;
        const Status status = forecast_attention(*find_device("rtx-pro-6000"), request, &result);
        ASSERT_TRUE(status.ok()) << status.message;
        EXPECT_GE(result.seconds, before) << causal << " " << group << " " << seqlen;
        before = result.seconds;
      }
      EXPECT_GT(before, 0);
    }
  }
}

}  // namespace
}  // namespace flashdelta
