// CUDA kernels of parts that only some families have: the bits of the CPU's.
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using testing::bit_difference;

class CudaParts : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaParts);

/// Routes on both sides and compares.
void compare_routes(Router a, const Floats& logits, const Floats* correction, const char* (*route_here)(const Router*, void*)) {
  std::vector<std::int32_t> choices(static_cast<std::size_t>(a.rows * a.chosen), -1);
  Floats weights(choices.size());
  const On<float> dev_logits(logits), dev_weights(weights), dev_correction(correction == nullptr ? Floats{} : *correction);
  const On<std::int32_t> dev_choices(choices);
  a.logits = logits.data(), a.choices = choices.data(), a.weights = weights.data();
  a.correction = correction == nullptr ? nullptr : correction->data();
  route(a);
  a.logits = dev_logits.get(), a.choices = dev_choices.get(), a.weights = dev_weights.get();
  a.correction = correction == nullptr ? nullptr : dev_correction.get();
  const char* refused = route_here(&a, testing::target().stream);
  ASSERT_EQ(refused, nullptr) << refused;
  EXPECT_EQ(dev_choices.read(), choices);
  EXPECT_EQ(bit_difference(dev_weights.read(), weights), "");
}

TEST_P(CudaParts, RouterChoosesAsTheCpuDoes) {
  Floats logits = testing::filled(9 * 48, 1, 3);
  for (std::size_t i = 48; i < 96; ++i) logits[i] = std::round(logits[i]);  // ties
  logits[100] = std::nanf("");
  const Floats correction = testing::filled(48, 2);
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSqrtSoftplus, RouterScore::kSoftmaxOfChosen})
    for (const std::int64_t groups : {1, 8})
      for (const bool corrected : {false, true})
        for (const bool normalise : {false, true}) {
          SCOPED_TRACE("score " + std::to_string(static_cast<int>(score)) + ", groups " + std::to_string(groups));
          Router a;
          a.rows = 9, a.experts = 48, a.chosen = 6, a.score = score, a.groups = groups, a.groups_kept = groups == 1 ? 1 : 3;
          a.normalise = normalise, a.guard = 1e-20F, a.scale = 2.5F;
          compare_routes(a, logits, corrected ? &correction : nullptr, testing::target().library->route);
        }
}

TEST_P(CudaParts, RouterOfOneExpertAndOfGivenOnes) {
  const Floats logits = testing::filled(5 * 3, 3);
  Router one;
  one.rows = 5, one.experts = 3, one.chosen = 1;
  compare_routes(one, logits, nullptr, testing::target().library->route);
  const std::vector<std::int32_t> given = {2, 0, 1, 1, 0, 2, 2, 1, 0, 1};
  const On<float> dev_logits(logits), dev_weights(Floats(10));
  const On<std::int32_t> dev_given(given), dev_choices(std::vector<std::int32_t>(10));
  Router a = one;
  a.chosen = 2, a.logits = dev_logits.get(), a.fixed = dev_given.get(), a.choices = dev_choices.get(), a.weights = dev_weights.get();
  run(&CudaLibrary::route, a);
  EXPECT_EQ(dev_choices.read(), given);
}

TEST_P(CudaParts, ConvolutionSeesItsHistory) {
  for (const std::int64_t taps : {1, 4}) {
    constexpr std::int64_t kRows = 20, kChannels = 37;
    const Floats x = testing::filled(kRows * kChannels, 4, 3), history = testing::filled((taps - 1) * kChannels, 5),
                 w = testing::filled(kChannels * taps, 6);
    Floats y(x.size());
    const On<float> dev_x(x), dev_history(history), dev_w(w), dev_y(y);
    for (const bool before : {false, true}) {
      causal_conv({x.data(), before ? history.data() : nullptr, w.data(), y.data(), kRows, kChannels, taps});
      run(&CudaLibrary::causal_conv, CausalConv{dev_x.get(), before ? dev_history.get() : nullptr, dev_w.get(), dev_y.get(), kRows, kChannels, taps});
      EXPECT_EQ(bit_difference(dev_y.read(), y), "");
    }
  }
}

TEST_P(CudaParts, DeltaRuleGoesOnFromItsState) {
  struct Sizes {
    std::int64_t key_heads, value_heads, dk, dv;
  };
  for (const Sizes& s : {Sizes{2, 4, 12, 9}, Sizes{1, 2, 64, 70}, Sizes{1, 1, 1, 1}}) {
    constexpr std::int64_t kRows = 23;
    const std::int64_t width = 2 * s.key_heads * s.dk + s.value_heads * s.dv;
    const Floats qkv = testing::filled(kRows * width, 7), beta = testing::filled(kRows * s.value_heads, 8);
    Floats decay = testing::filled(kRows * s.value_heads, 9), state = testing::filled(s.value_heads * s.dk * s.dv, 10);
    for (float& g : decay) g = -std::abs(g);
    Floats out(static_cast<std::size_t>(kRows * s.value_heads * s.dv));
    const On<float> dev_qkv(qkv), dev_decay(decay), dev_beta(beta), dev_out(out), dev_state(state);
    delta_rule({qkv.data(), decay.data(), beta.data(), out.data(), state.data(), kRows, s.key_heads, s.value_heads, s.dk, s.dv});
    for (std::int64_t row = 0; row < kRows; row += 10) {  // in chunks
      const std::int64_t rows = std::min<std::int64_t>(10, kRows - row);
      run(&CudaLibrary::delta_rule,
          DeltaRule{dev_qkv.get() + row * width, dev_decay.get() + row * s.value_heads, dev_beta.get() + row * s.value_heads,
                    dev_out.get() + row * s.value_heads * s.dv, dev_state.get(), rows, s.key_heads, s.value_heads, s.dk, s.dv});
    }
    EXPECT_EQ(bit_difference(dev_out.read(), out), "");
    EXPECT_EQ(bit_difference(dev_state.read(), state), "");
  }
}

TEST_P(CudaParts, DeltaRulesGradientIsTheCpusWithinRounding) {
  struct Sizes {
    std::int64_t rows, key_heads, value_heads, dk, dv;
    bool states;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, false}, Sizes{70, 2, 4, 12, 9, true}, Sizes{130, 1, 2, 16, 20, false}}) {
    SCOPED_TRACE(s.rows);
    const std::int64_t width = 2 * s.key_heads * s.dk + s.value_heads * s.dv, numbers = s.value_heads * s.dk * s.dv;
    const Floats qkv = testing::filled(s.rows * width, 14), beta = testing::filled(s.rows * s.value_heads, 15), dout = testing::filled(s.rows * s.value_heads * s.dv, 16),
                 state = testing::filled(numbers, 17), after = testing::filled(numbers, 18);
    Floats decay = testing::filled(s.rows * s.value_heads, 19);
    for (float& g : decay) g = -std::abs(g);
    Floats dqkv(qkv.size(), -7), ddecay(decay.size(), -7), dbeta(beta.size(), -7), dstate(state.size(), -7);
    const On<float> dev_qkv(qkv), dev_decay(decay), dev_beta(beta), dev_dout(dout), dev_state(state), dev_after(after), dev_dqkv(dqkv), dev_ddecay(ddecay), dev_dbeta(dbeta),
        dev_dstate(dstate);
    DeltaRuleGrad g{qkv.data(), decay.data(), beta.data(), dout.data(), s.states ? state.data() : nullptr, s.states ? after.data() : nullptr, dqkv.data(), ddecay.data(), dbeta.data(),
                    dstate.data(), s.rows, s.key_heads, s.value_heads, s.dk, s.dv};
    delta_rule_backward(&g, 1);
    g = {dev_qkv.get(), dev_decay.get(), dev_beta.get(), dev_dout.get(), s.states ? dev_state.get() : nullptr, s.states ? dev_after.get() : nullptr, dev_dqkv.get(), dev_ddecay.get(),
         dev_dbeta.get(), dev_dstate.get(), s.rows, s.key_heads, s.value_heads, s.dk, s.dv};
    const On<float> workspace(Floats(static_cast<std::size_t>(cuda_delta_bytes(g) / 4), std::nanf("")));
    run(&CudaLibrary::delta_rule_backward, CudaDeltaGrad{g, workspace.get()});
    EXPECT_LT(testing::errors_of(dev_dqkv.read(), testing::widened(dqkv)).relative, 5e-6);
    EXPECT_LT(testing::errors_of(dev_ddecay.read(), testing::widened(ddecay)).relative, 5e-6);
    EXPECT_LT(testing::errors_of(dev_dbeta.read(), testing::widened(dbeta)).relative, 5e-6);
    EXPECT_LT(testing::errors_of(dev_dstate.read(), testing::widened(dstate)).relative, 5e-6);
  }
}

/// A sequence of 70 rows with entries; more than a warp or two see at once.
struct Listed {
  static constexpr std::int64_t kRows = 70, kRow = 2 * 24 + 2 * 150, kEntries = 5, kMost = 3;
  Floats q = testing::filled(kRows * 96, 11), kv = testing::filled(kRows * kRow, 12), entries = testing::filled(kEntries * kRow, 13);
  Floats sinks = {0.5F, -1, 2, 0};
  std::vector<std::int32_t> chosen;
  Listed() {
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t i = 0; i < kMost; ++i) chosen.push_back(i < row % 4 ? static_cast<std::int32_t>(i + row % 2) : -1);
  }
};

TEST_P(CudaParts, ListedAttentionWithWindowsSinksAndEntries) {
  const Listed l;
  const On<float> q(l.q), kv(l.kv), entries(l.entries), sinks(l.sinks);
  const On<std::int32_t> chosen(l.chosen);
  for (const std::int64_t window : {0, 1, 7, 100})
    for (const bool sink : {false, true})
      for (const std::int64_t before : {0, 11, 69}) {
        const std::int64_t rows = Listed::kRows - before;
        Floats out(static_cast<std::size_t>(rows * 600), -7);
        const On<float> dev_out(out);
        ListedShape shape{4, 2, 24, 150, 48, 0.3F, window, sink ? l.sinks.data() : nullptr};
        const std::vector<RowSpan> spans = {{l.kv.data(), Listed::kRow, 8}, {l.kv.data() + 8 * Listed::kRow, Listed::kRow, Listed::kRows - 8}};
        const RowSpan entry_span{l.entries.data(), Listed::kRow, Listed::kEntries};
        ListedSegment s{l.q.data() + before * 96, out.data(), rows, 96, 600, before, spans.data(), 2, &entry_span, 1,
                        l.chosen.data() + before * Listed::kMost, Listed::kMost};
        listed_attention(shape, &s, 1);
        const On<RowSpan> dev_spans({{kv.get(), Listed::kRow, 8}, {kv.get() + 8 * Listed::kRow, Listed::kRow, Listed::kRows - 8}});
        const On<RowSpan> dev_entries({{entries.get(), Listed::kRow, Listed::kEntries}});
        shape.sinks = sink ? sinks.get() : nullptr;
        s.q = q.get() + before * 96, s.out = dev_out.get(), s.tokens = dev_spans.get(), s.entries = dev_entries.get();
        s.chosen = chosen.get() + before * Listed::kMost;
        const On<ListedSegment> segments({s});
        run(&CudaLibrary::listed_attention, CudaListedAttention{shape, segments.get(), 1, rows, Listed::kRows + Listed::kMost});
        EXPECT_EQ(bit_difference(dev_out.read(), out), "") << "window " << window << ", before " << before;
      }
}

}  // namespace
}  // namespace troupe::kernels
