// What fixtures hold beside logits and gradients: hidden states, routers, further tokens, recurrent states, balancing.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include "model/balance.h"
#include "support.h"

namespace troupe::model::test {
namespace {

class FamilyTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = std::make_unique<Golden>(GetParam());
    json_ = golden_json(GetParam());
    model_ = std::make_unique<Model>(golden_model(GetParam()));
    batch_ = one_document(golden_->ids("input_ids"));
  }

  /// The forward pass over the fixture's tokens.
  Trace traced() {
    Trace trace;
    trace.keep_hidden = true;
    (void)forward_like_golden(*model_, batch_, trace);
    return trace;
  }

  std::unique_ptr<Golden> golden_;
  nlohmann::json json_;
  std::unique_ptr<Model> model_;
  Batch batch_;
};

TEST_P(FamilyTest, HiddenStatesOfEveryLayer) {
  const tensor::NoGrad no_grad;
  const Trace trace = traced();
  EXPECT_TRUE(golden_->has("hidden.0"));
  for (std::size_t i = 0; i < trace.hidden.size(); ++i)
    if (const std::string name = "hidden." + std::to_string(i); golden_->has(name))
      EXPECT_LT(max_difference(values(trace.hidden[i]), golden_->floats(name)), 2e-4) << name;
  EXPECT_LT(max_difference(values(trace.normed), golden_->floats("hidden.final_norm")), 2e-4);
}

TEST_P(FamilyTest, RoutersChooseAndWeighTheSameExperts) {
  const tensor::NoGrad no_grad;
  const Trace trace = traced();
  std::size_t mixtures = 0;
  for (const LayerSpec& layer : model_->spec().layers) mixtures += layer.ffn.kind == FfnKind::kExperts;
  EXPECT_EQ(trace.routed.size(), mixtures);
  for (const Trace::Routed& routed : trace.routed) {
    const std::string name = "router." + std::to_string(routed.place);
    SCOPED_TRACE(name);
    EXPECT_LT(max_difference(values(routed.logits), golden_->floats(name + ".logits")), 2e-4);
    const auto chosen = static_cast<std::size_t>(routed.weights.size(1));
    const auto weights = values(routed.weights);
    const auto wanted_ids = golden_->ids(name + ".indices");
    const auto wanted_weights = golden_->floats(name + ".weights");
    ASSERT_EQ(routed.choices.size(), wanted_ids.size());
    for (std::size_t row = 0; row < weights.size() / chosen; ++row) {  // unordered within a token
      std::map<std::int32_t, float> got, wanted;
      for (std::size_t j = row * chosen; j < (row + 1) * chosen; ++j) {
        got[routed.choices[j]] = weights[j];
        wanted[wanted_ids[j]] = wanted_weights[j];
      }
      ASSERT_EQ(got.size(), wanted.size());
      for (const auto& [expert, weight] : wanted) {
        ASSERT_TRUE(got.contains(expert)) << "row " << row;
        EXPECT_NEAR(got[expert], weight, 2e-4);
      }
    }
  }
}

TEST_P(FamilyTest, FurtherTokens) {
  EXPECT_EQ(golden_->has("mtp.logits"), !model_->spec().mtp.empty());
  if (model_->spec().mtp.empty()) return;
  model_->set_trainable(true);
  Trace trace;
  (void)forward_like_golden(*model_, batch_, trace);
  const at::Tensor hidden = model_->predict_further(batch_, 0, trace);
  auto logits = values(model_->logits(hidden));
  const auto wanted = golden_->floats("mtp.logits");
  logits.resize(wanted.size());  // the last row knows no next token
  EXPECT_LT(max_difference(logits, wanted), 2e-4);
  std::vector<std::int32_t> targets(batch_.ids.begin() + 2, batch_.ids.end());
  const TokenScores scores =
      model_->score(hidden.narrow(0, 0, static_cast<std::int64_t>(targets.size())), targets);
  const auto logprobs = values(scores.logprob);
  const auto count = static_cast<double>(logprobs.size());
  EXPECT_NEAR(-std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / count, json_["mtp"]["loss"].get<double>(), 1e-5);
  tensor::backward(std::array{scores.logprob}, std::array{at::full({static_cast<std::int64_t>(count)}, -1.0 / count)});
  for (const Parameter& parameter : model_->parameters())  // the block's own parameters have gradients now
    if (parameter.trains && (parameter.name.starts_with("mtp.") || parameter.name.find("enorm") != std::string::npos)) {
      EXPECT_TRUE(parameter.value.grad().defined() && norm(values(parameter.value.grad())) > 0) << parameter.name;
    }
}

// Guessing over a cache, in chunks: the bits of the pass that trains.
TEST_P(FamilyTest, FurtherTokensOverACacheHaveTheSameBits) {
  if (!can_guess(model_->spec())) return;
  const tensor::NoGrad no_grad;
  Trace trace;
  (void)model_->forward(batch_, &trace);
  const auto expected = values(model_->predict_further(batch_, 0, trace));
  const auto rows = static_cast<std::int32_t>(batch_.ids.size()) - 1;  // the last one knows no next token
  const auto width = static_cast<std::size_t>(model_->spec().width);
  for (const std::int32_t chunk : {1, 5, rows}) {
    const int pages = static_cast<int>(batch_.ids.size() / 16 + 1);
    KvCache cache(model_->spec(), pages, 16, 1, true);
    for (std::int32_t begin = 0; begin < rows; begin += chunk) {
      const std::int32_t end = std::min(rows, begin + chunk);
      CachedBatch part;
      part.ids.assign(batch_.ids.begin() + begin, batch_.ids.begin() + end);
      part.positions.assign(batch_.positions.begin() + begin, batch_.positions.begin() + end);
      part.segments.push_back({0, end - begin, begin, page_list(0, pages), 0});
      Trace passed;
      (void)model_->forward(part, cache, &passed);
      const auto got = values(model_->predict_further(part, std::span(batch_.ids).subspan(static_cast<std::size_t>(begin) + 1, static_cast<std::size_t>(end - begin)), 0, passed, cache));
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], expected[static_cast<std::size_t>(begin) * width + i]) << "row " << begin + static_cast<std::int32_t>(i / width);
    }
  }
}

TEST_P(FamilyTest, RecurrentStatesAfterTheWholeText) {
  const ModelSpec& spec = model_->spec();
  const int pages = static_cast<int>(batch_.ids.size() / 16 + 1);
  KvCache cache(spec, pages, 16);
  (void)CachedSequence(*model_, cache, page_list(0, pages)).feed_in_chunks(batch_.ids, 7);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].attention.kind != AttentionKind::kDeltaNet) continue;
    const std::string name = "state." + std::to_string(i);
    const DeltaSpec& d = spec.layers[i].attention.delta;
    const auto wanted = golden_->floats(name + ".recurrent");
    const auto conv = golden_->floats(name + ".conv");  // [channels, taps]
    const std::size_t channels = conv.size() / static_cast<std::size_t>(d.taps);
    const float* state = cache.state(static_cast<int>(i), 0);
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t tap = 1; tap < static_cast<std::size_t>(d.taps); ++tap)
        ASSERT_NEAR(state[(tap - 1) * channels + c], conv[c * static_cast<std::size_t>(d.taps) + tap], 2e-4);
    const float* recurrent = state + static_cast<std::size_t>(d.taps - 1) * channels;
    EXPECT_LT(max_difference({recurrent, recurrent + wanted.size()}, wanted), 2e-4) << name;
  }
}

TEST_P(FamilyTest, AuxiliaryLossAndItsGradients) {
  if (!json_.contains("aux")) return;
  const auto& golden = json_["aux"];
  model_->set_trainable(true);
  Trace trace;
  const at::Tensor hidden = model_->forward(batch_, &trace);
  const at::Tensor aux = load_balance_loss(trace);
  EXPECT_NEAR(values(aux)[0], golden["aux_loss"].get<double>(), 1e-5);
  EXPECT_EQ(model_->spec().layers[0].ffn.experts.aux_coefficient, golden["coef"].get<double>());
  const std::vector<std::int32_t> targets(batch_.ids.begin() + 1, batch_.ids.end());
  const auto count = static_cast<std::int64_t>(targets.size());
  const TokenScores scores = model_->score(hidden.narrow(0, 0, count), targets);
  tensor::backward(std::array{scores.logprob, aux},
                   std::array{at::full({count}, -1.0 / static_cast<double>(count)),
                              at::full({}, golden["coef"].get<double>())});
  if (!golden.contains("router_grad_norms_with_aux")) return;
  for (const auto& [name, wanted] : golden["router_grad_norms_with_aux"].items())
    EXPECT_NEAR(norm(values(model_->find(name)->grad())) / wanted.get<double>(), 1, 1e-3) << name;
}

TEST_P(FamilyTest, BalancingOfTheCorrection) {
  if (!json_.contains("balance")) return;
  const auto& golden = json_["balance"];
  const tensor::NoGrad no_grad;
  const Trace trace = traced();
  const auto routed = std::find_if(trace.routed.begin(), trace.routed.end(),
                                   [&](const auto& one) { return one.place == golden["layer"].get<int>(); });
  ASSERT_NE(routed, trace.routed.end());
  const std::vector<double> counts = expert_counts(*routed);
  EXPECT_EQ(counts, golden["tokens_per_expert"].get<std::vector<double>>());
  EXPECT_NEAR(values(sequence_balance_loss(*routed, batch_))[0], golden["seq_aux_unscaled"].get<double>(), 1e-5);
  const at::Tensor correction =
      *model_->find("model.layers." + std::to_string(routed->place) + ".mlp.gate.e_score_correction_bias");
  EXPECT_EQ(values(correction), golden["bias_before"].get<std::vector<float>>());
  update_correction(correction, counts, golden["update_speed"].get<double>());
  EXPECT_LT(max_difference(values(correction), golden["bias_after_sign_rule"].get<std::vector<float>>()), 1e-7);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FamilyTest, ::testing::ValuesIn(kFixtures));

TEST(DeepseekV4, TheIndexerChoosesTheEntriesOfTheFixture) {
  Model model = golden_model("deepseek_v4/base");
  const Golden golden("deepseek_v4/base");
  const tensor::NoGrad no_grad;
  Trace trace;
  (void)forward_like_golden(model, one_document(golden.ids("input_ids")), trace);
  const Trace::Listed& listed = trace.listed.front();
  ASSERT_EQ(listed.place, 2);
  auto wanted = golden.ids("csa.layer2.topk");
  ASSERT_EQ(wanted.size(), listed.lists.size());
  const auto most = static_cast<std::size_t>(listed.most);
  for (std::size_t row = 0; row < wanted.size() / most; ++row) {
    const auto first = wanted.begin() + static_cast<std::ptrdiff_t>(row * most);
    std::sort(first, first + static_cast<std::ptrdiff_t>(most));
    const auto visible = std::partition(first, first + static_cast<std::ptrdiff_t>(most), [](auto id) { return id >= 0; });
    std::sort(first, visible);
    EXPECT_TRUE(std::equal(first, first + static_cast<std::ptrdiff_t>(most),
                           listed.lists.begin() + static_cast<std::ptrdiff_t>(row * most)))
        << "row " << row;
  }
}

TEST(DeepseekV4, ASharedExpertWithoutTheCutIsTheOtherReading) {  // research/models.md 17.1
  Model model = golden_model("deepseek_v4/clamp");
  ModelSpec spec = model.spec();
  for (LayerSpec& layer : spec.layers) layer.ffn.experts.shared_unit.limit = 0;
  Model other = Model::zeros(spec);
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    other.parameters()[i].value.copy_(model.parameters()[i].value);
  const Golden golden("deepseek_v4/clamp");
  EXPECT_LT(max_difference(golden_logits_of(other, one_document(golden.ids("input_ids"))),
                           golden.floats("logits_shared_expert_unclamped")),
            2e-4);
}

TEST(DeepseekV3, ATokenTakesTheRankAndTheSharedKey) {  // 576 numbers in the released model
  const ModelSpec spec = golden_model("deepseek_v3/base").spec();
  EXPECT_EQ(cache_of(spec.layers[0].attention).row_floats, 24 + 16);
  EXPECT_EQ(KvCache::bytes_per_page(spec, 16), 3 * 16 * (24 + 16) * 4);
}

}  // namespace
}  // namespace troupe::model::test
