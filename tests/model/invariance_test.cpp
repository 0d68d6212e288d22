// Bits are a contract: what else is computed, in which pieces, on how many threads, never changes a row.
#include <ATen/ops/full.h>

#include <set>

#include "kernels/isa.h"
#include "support.h"

namespace troupe::model::test {
namespace {

class Invariance : public ::testing::TestWithParam<std::tuple<const char*, kernels::Precision>> {
 protected:
  void SetUp() override {
    model_ = std::make_unique<Model>(golden_model(std::get<0>(GetParam())));
    model_->set_precision(std::get<1>(GetParam()));
    width_ = static_cast<std::size_t>(model_->spec().vocab_size);
    first_ = random_ids(1, 37, 192);
    second_ = random_ids(2, 61, 192);
    alone_ = logits_of(*model_, one_document(second_));
  }
  std::unique_ptr<Model> model_;
  std::size_t width_ = 0;
  std::vector<std::int32_t> first_, second_;
  std::vector<float> alone_;
};

TEST_P(Invariance, PackedEqualsAlone) {
  const auto packed = logits_of(*model_, pack_documents(std::vector{first_, second_, first_}));
  EXPECT_TRUE(same_rows(packed, 37, alone_, 0, 61, width_));
}

TEST_P(Invariance, AnotherDocumentsTokensChangeNothing) {
  auto changed = first_;
  for (auto& id : changed) id = (id + 17) % 192;
  const auto before = logits_of(*model_, pack_documents(std::vector{first_, second_}));
  const auto after = logits_of(*model_, pack_documents(std::vector{changed, second_}));
  EXPECT_FALSE(same_rows(before, 0, after, 0, 37, width_));
  EXPECT_TRUE(same_rows(before, 37, after, 37, 61, width_));
}

TEST_P(Invariance, LaterTokensChangeNothing) {
  auto changed = second_;
  changed[40] = (changed[40] + 1) % 192;
  const auto after = logits_of(*model_, one_document(changed));
  EXPECT_TRUE(same_rows(alone_, 0, after, 0, 40, width_));
  EXPECT_FALSE(same_rows(alone_, 40, after, 40, 1, width_));
}

TEST_P(Invariance, PrefillInChunksAndDecodingEqualTheWhole) {
  for (const std::size_t chunk : {1, 3, 8, 16, 50, 61}) {
    KvCache cache(model_->spec(), 4, 16, 1, false, model_->precision());
    EXPECT_EQ(CachedSequence(*model_, cache, page_list(0, 4)).feed_in_chunks(second_, chunk), alone_) << chunk;
  }
}

TEST_P(Invariance, PageSizeAndPageOrderChangeNothing) {
  for (const int page_tokens : {16, 32, 64, 128}) {
    KvCache cache(model_->spec(), 8, page_tokens, 1, false, model_->precision());
    std::vector<std::int32_t> pages = {5, 2, 7, 0};
    EXPECT_EQ(CachedSequence(*model_, cache, pages).feed_in_chunks(second_, 7), alone_) << page_tokens;
  }
}

TEST_P(Invariance, CompanyInTheBatchChangesNothing) {
  KvCache cache(model_->spec(), 16, 16, 3, false, model_->precision());
  CachedSequence warm(*model_, cache, page_list(8, 4), 1);
  (void)warm.feed(first_);
  CachedBatch batch;  // 20 tokens of one sequence, one decode step of another, 61 of a third
  const auto append = [&](std::span<const std::int32_t> ids, std::int32_t cached, std::vector<std::int32_t> pages) {
    const auto begin = static_cast<std::int32_t>(batch.ids.size());
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
    for (std::size_t i = 0; i < ids.size(); ++i) batch.positions.push_back(cached + static_cast<std::int32_t>(i));
    batch.segments.push_back({begin, static_cast<std::int32_t>(batch.ids.size()), cached, std::move(pages),
                              static_cast<std::int32_t>(batch.segments.size())});
  };
  append(std::span(first_).first(20), 0, page_list(12, 2));
  append(std::span(first_).first(1), 37, page_list(8, 4));
  append(second_, 0, page_list(0, 4));
  const auto together = values(model_->logits(model_->forward(batch, cache)));
  EXPECT_TRUE(same_rows(together, 21, alone_, 0, 61, width_));
}

TEST_P(Invariance, ASharedPageAndItsCopyChangeNothing) {
  KvCache cache(model_->spec(), 16, 16, 2, false, model_->precision());
  CachedSequence owner(*model_, cache, page_list(0, 4));
  (void)owner.feed(std::span(second_).first(40));
  cache.copy_page(2, 9);  // the first two pages are shared, the third is copied on write
  if (cache.has_state()) cache.copy_state(0, 1, 40);
  CachedBatch batch;
  batch.ids.assign(second_.begin() + 40, second_.end());
  for (std::int32_t i = 40; i < 61; ++i) batch.positions.push_back(i);
  batch.segments = {{0, 21, 40, {0, 1, 9, 10}, 1}};
  const auto rest = values(model_->logits(model_->forward(batch, cache)));
  EXPECT_TRUE(same_rows(rest, 0, alone_, 40, 21, width_));
}

TEST_P(Invariance, ThreadsChangeNothing) {
  const int before = kernels::max_threads();
  for (const int threads : {1, 2}) {
    kernels::set_max_threads(threads);
    EXPECT_EQ(logits_of(*model_, one_document(second_)), alone_) << threads;
    KvCache cache(model_->spec(), 4, 16, 1, false, model_->precision());
    EXPECT_EQ(CachedSequence(*model_, cache, page_list(0, 4)).feed_in_chunks(second_, 5), alone_) << threads;
  }
  kernels::set_max_threads(before);
}

TEST_P(Invariance, RecordingGradientsChangesNothing) {
  model_->set_trainable(true);
  EXPECT_EQ(values(model_->logits(model_->forward(one_document(second_)))), alone_);
}

TEST_P(Invariance, ScoresDoNotDependOnTheRowsAroundThem) {
  const tensor::NoGrad no_grad;
  const at::Tensor hidden = model_->forward(one_document(second_));
  const auto targets = random_ids(3, 61, 192);
  const TokenScores all = model_->score(hidden, targets, 0.7);
  for (const std::int64_t chunk : {1, 3, 8})
    for (std::int64_t first = 0; first < 61; first += chunk) {
      const std::int64_t rows = std::min<std::int64_t>(chunk, 61 - first);
      const TokenScores part = model_->score(
          hidden.narrow(0, first, rows),
          std::span(targets).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)), 0.7);
      ASSERT_EQ(values(part.logprob), values(all.logprob.narrow(0, first, rows)));
      ASSERT_EQ(values(part.entropy), values(all.entropy.narrow(0, first, rows)));
    }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Invariance,
                         ::testing::Combine(::testing::ValuesIn(kFixtures),
                                            ::testing::Values(kernels::Precision::kFloat32,
                                                              kernels::Precision::kBfloat16)));

/// Log-probs of the next tokens and the gradient of their mean by every parameter.
std::vector<std::vector<float>> scores_and_gradients(Model& model, const Batch& batch) {
  model.set_trainable(true);
  const auto next = next_tokens(batch);
  const auto count = static_cast<std::int64_t>(next.targets.size());
  const TokenScores scores = model.score(model.forward(batch).narrow(0, 0, count), next.targets);
  std::vector<std::vector<float>> all = {values(scores.logprob)};
  tensor::backward(std::array{scores.logprob}, std::array{at::full({count}, 1.0 / static_cast<double>(count))});
  for (const Parameter& parameter : model.parameters())
    all.push_back(parameter.value.grad().defined() ? values(parameter.value.grad()) : std::vector<float>());
  model.clear_gradients();
  return all;
}

TEST(Precision, RoundsEveryProductAndChangesNothingElse) {
  for (const char* name : {"qwen3/base", "llama3/base"}) {
    Model model = golden_model(name);
    const Batch batch = one_document(random_ids(9, 48, 192));
    const auto exact = scores_and_gradients(model, batch);
    model.set_precision(kernels::Precision::kBfloat16);
    const auto rounded = scores_and_gradients(model, batch);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const std::string what = i == 0 ? "log-probs" : model.parameters()[i - 1].name;
      EXPECT_NE(rounded[i], exact[i]) << what;
      EXPECT_LT(relative_difference(rounded[i], exact[i]), i == 0 ? 0.01 : 0.1) << what;
    }
    EXPECT_EQ(scores_and_gradients(model, batch), rounded) << "run to run";
    Model copy = model.clone();
    EXPECT_EQ(copy.precision(), kernels::Precision::kBfloat16);
    EXPECT_EQ(logits_of(copy, batch), logits_of(model, batch));
    model.set_precision(kernels::Precision::kFloat32);
    EXPECT_EQ(scores_and_gradients(model, batch), exact) << "and back";
  }
}

TEST(Gradients, DoNotDependOnThreads) {
  const int before = kernels::max_threads();
  for (const char* name : {"qwen3/base", "qwen3_moe/base", "qwen3_5/base", "deepseek_v3/base"}) {
    for (const auto precision : {kernels::Precision::kFloat32, kernels::Precision::kBfloat16}) {
      Model model = golden_model(name);
      model.set_precision(precision);
      const Batch batch = one_document(random_ids(10, 64, 192));
      kernels::set_max_threads(1);
      const auto one = scores_and_gradients(model, batch);
      kernels::set_max_threads(2);
      EXPECT_EQ(scores_and_gradients(model, batch), one) << name;
    }
  }
  kernels::set_max_threads(before);
}

TEST(Registry, EveryFamilyHasAFixture) {  // so that what this file promises holds for every row
  std::set<std::string> tested;
  for (const char* name : kFixtures) tested.insert(value_or_die(load_spec(golden_folder(name))).family);
  for (const std::string_view family : family_names()) EXPECT_TRUE(tested.contains(std::string(family))) << family;
}

TEST_P(Invariance, AFailedPassCanBeRepeated) {  // states go on from where the last complete pass left them
  KvCache cache(model_->spec(), 4, 16, 1, false, model_->precision());
  CachedSequence sequence(*model_, cache, page_list(0, 4));
  (void)sequence.feed(std::span(second_).first(20));
  if (cache.has_state()) {
    const KvSegment next{0, 41, 20, page_list(0, 4)};
    cache.open_states({&next, 1});  // and never closed
    for (std::size_t i = 0; i < model_->spec().layers.size(); ++i)
      std::fill_n(cache.state(static_cast<int>(i), 0), cache.shape(static_cast<int>(i)).state_floats, NAN);
  }
  EXPECT_TRUE(same_rows(sequence.feed(std::span(second_).subspan(20)), 0, alone_, 20, 41, width_));
}

TEST(TiedHead, FollowsTheEmbedding) {  // S03: nothing keeps a stale copy of a tied head
  Model model = golden_model("qwen3/base");
  ASSERT_TRUE(model.spec().tied);
  EXPECT_EQ(model.find("lm_head.weight"), nullptr);
  Model updated = model.clone();
  const auto ids = random_ids(4, 20, 192);
  const auto before = logits_of(model, one_document(ids));
  for (float& w : tensor::floats(*model.find("model.embed_tokens.weight"))) w *= 1.25F;
  model.weights_changed();
  for (float& w : tensor::floats(*updated.find("model.embed_tokens.weight")))
    w *= 1.25F;  // packed here for the first time
  const auto after = logits_of(model, one_document(ids));
  EXPECT_NE(after, before);
  EXPECT_EQ(after, logits_of(updated, one_document(ids)));
}

TEST(Clone, SharesNothing) {
  Model model = golden_model("llama3/base");
  const auto ids = random_ids(5, 20, 192);
  const auto before = logits_of(model, one_document(ids));
  Model frozen = model.clone();
  for (Parameter& parameter : model.parameters())
    for (float& w : tensor::floats(parameter.value)) w = 0;
  model.weights_changed();
  EXPECT_EQ(logits_of(frozen, one_document(ids)), before);
  EXPECT_NE(logits_of(model, one_document(ids)), before);
}

TEST(PaddedVocabulary, TakesNoProbability) {  // V08: rows that only pad the matrix
  Model model = golden_model("llama3/base");
  ModelSpec spec = model.spec();
  spec.vocab_used = 192;
  spec.vocab_size = 256;
  Model padded = Model::zeros(spec);
  for (Parameter& parameter : padded.parameters()) {
    const auto from = tensor::floats(*model.find(parameter.name));
    std::fill(tensor::floats(parameter.value).begin(), tensor::floats(parameter.value).end(), 3.0F);
    std::copy(from.begin(), from.end(), tensor::floats(parameter.value).begin());
  }
  const auto ids = random_ids(6, 30, 192);
  const auto targets = random_ids(7, 30, 192);
  const tensor::NoGrad no_grad;
  const TokenScores right = model.score(model.forward(one_document(ids)), targets);
  const TokenScores same = padded.score(padded.forward(one_document(ids)), targets);
  EXPECT_EQ(values(same.logprob), values(right.logprob));
  EXPECT_EQ(values(same.entropy), values(right.entropy));
}

TEST(FreshWeights, ArePureFunctionsOfSpecAndSeed) {
  const DecoderSizes sizes{.vocab_size = 96, .width = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn_width = 96};
  const ModelSpec spec = value_or_die(spec_from_sizes("qwen3", sizes));
  const Model a = Model::create(spec, 3);
  const Model b = Model::create(spec, 3);
  const Model c = Model::create(spec, 4);
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const auto weights = values(a.parameters()[i].value);
    EXPECT_EQ(weights, values(b.parameters()[i].value));
    if (a.parameters()[i].value.dim() == 1) {
      EXPECT_EQ(weights, std::vector<float>(weights.size(), 1.0F)) << a.parameters()[i].name;
      continue;
    }
    EXPECT_NE(weights, values(c.parameters()[i].value));
    EXPECT_NEAR(norm(weights) / std::sqrt(static_cast<double>(weights.size())), 0.02, 0.001) << a.parameters()[i].name;
  }
}

}  // namespace
}  // namespace troupe::model::test
