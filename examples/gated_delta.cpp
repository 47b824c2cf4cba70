// The gated delta rule over a prompt, then one more token from the state that it left, in C++.
//   c++ -std=c++20 gated_delta.cpp -lflashdelta
#include <cstdio>
#include <flashdelta/flashdelta.hpp>
#include <random>
#include <vector>

namespace {

constexpr int64_t kHeadsK = 2, kHeadsV = 4, kDim = 64;

struct Tokens {
  explicit Tokens(int64_t count, unsigned seed) : length(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k}) {
      x->resize(static_cast<size_t>(length * kHeadsK * kDim));
      for (float& e : *x) e = normal(random);
    }
    v.resize(static_cast<size_t>(length * kHeadsV * kDim));
    for (float& e : v) e = normal(random);
    g.assign(static_cast<size_t>(length * kHeadsV), -0.05f);
    beta.assign(g.size(), 0.5f);
    o.resize(v.size());
  }
  int64_t length;
  std::vector<float> q, k, v, g, beta, o;
};

// Runs `tokens` from `state` and leaves the new state there: final_state may be initial_state.
void run(Tokens& tokens, std::vector<float>& state) {
  using flashdelta::tensor;
  const int64_t t = tokens.length;
  flashdelta::GatedDeltaForward call;
  call.q = tensor(tokens.q.data(), FLASHDELTA_FP32, {1, t, kHeadsK, kDim});
  call.k = tensor(tokens.k.data(), FLASHDELTA_FP32, {1, t, kHeadsK, kDim});
  call.v = tensor(tokens.v.data(), FLASHDELTA_FP32, {1, t, kHeadsV, kDim});
  call.g = tensor(tokens.g.data(), FLASHDELTA_FP32, {1, t, kHeadsV});
  call.beta = tensor(tokens.beta.data(), FLASHDELTA_FP32, {1, t, kHeadsV});
  call.o = tensor(tokens.o.data(), FLASHDELTA_FP32, {1, t, kHeadsV, kDim});
  call.initial_state = tensor(state.data(), FLASHDELTA_FP32, {1, kHeadsV, kDim, kDim});
  call.final_state = call.initial_state;
  call.qk_l2norm = 1;
  flashdelta::HostWorkspace workspace;
  flashdelta::run(call, flashdelta::Execution(FLASHDELTA_BACKEND_CPU), workspace);
}

}  // namespace

int main() {
  try {
    std::vector<float> state(static_cast<size_t>(kHeadsV * kDim * kDim), 0.0f);
    Tokens prompt(500, 1), next(1, 2);
    run(prompt, state);
    run(next, state);
    std::printf("flashdelta %s: after 501 tokens o[0] = %.6f, state[0] = %.6f\n", flashdelta_version(), next.o[0],
                state[0]);
    return 0;
  } catch (const flashdelta::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
