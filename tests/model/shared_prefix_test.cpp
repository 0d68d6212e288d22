// A prompt computed once for its group, against every sample computed alone.
#include <ATen/ops/tensor.h>

#include "support.h"

namespace troupe::model::test {
namespace {

/// Loss weights of a sample's completion tokens, any numbers.
std::vector<float> loss_weights(std::uint64_t seed, std::size_t count) {
  Rng rng(seed, RngStream::kTest);
  std::vector<float> weights(count);
  for (auto& w : weights) w = static_cast<float>(rng.normal());
  return weights;
}

class SharedPrefix : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 4; ++i) completions_.push_back(random_ids(20 + i, 5 + 7 * i, 192));
    append_group(shared_, prompt_, completions_);
    append_group(shared_, other_, std::span(completions_).subspan(2, 1));
    std::vector<std::vector<std::int32_t>> documents;
    for (const auto& completion : completions_) documents.push_back(joined(prompt_, completion));
    documents.push_back(joined(other_, completions_[2]));
    separate_ = pack_documents(documents);
  }

  static std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  /// Rows that predict completion tokens, with their targets, in the same order for both layouts.
  static NextTokens completion_rows(const Batch& batch) {
    NextTokens next;
    for (const Segment& segment : batch.segments) {
      const std::int32_t prompt = segment.prefix_end - segment.prefix_begin;
      if (prompt == 0) continue;
      next.rows.push_back(segment.prefix_end - 1);
      for (std::int32_t row = segment.begin; row + 1 < segment.end; ++row) next.rows.push_back(row);
      for (std::int32_t row = segment.begin; row < segment.end; ++row)
        next.targets.push_back(batch.ids[static_cast<std::size_t>(row)]);
    }
    return next;
  }
  NextTokens completion_rows_separate() const {
    NextTokens next;
    for (std::size_t i = 0; i < separate_.segments.size(); ++i) {
      const Segment& segment = separate_.segments[i];
      const auto prompt = static_cast<std::int32_t>(i + 1 < separate_.segments.size() ? prompt_.size() : other_.size());
      for (std::int32_t row = segment.begin + prompt; row < segment.end; ++row) {
        next.rows.push_back(row - 1);
        next.targets.push_back(separate_.ids[static_cast<std::size_t>(row)]);
      }
    }
    return next;
  }

  std::vector<float> scores_and_gradients(Model& model, const Batch& batch, const NextTokens& next,
                                          std::vector<std::vector<float>>& gradients) {
    model.set_trainable(true);
    model.clear_gradients();
    const at::Tensor hidden = model.forward(batch).index_select(0, at::tensor(next.rows));
    const TokenScores scores = model.score(hidden, next.targets, 0.9);
    const std::size_t count = next.targets.size();
    tensor::backward(std::array{scores.logprob, scores.entropy},
                     std::array{at::tensor(loss_weights(31, count)), at::tensor(loss_weights(32, count))});
    for (const Parameter& parameter : model.parameters())
      if (parameter.value.grad().defined()) gradients.push_back(values(parameter.value.grad()));
    auto result = values(scores.logprob);
    const auto entropy = values(scores.entropy);
    result.insert(result.end(), entropy.begin(), entropy.end());
    return result;
  }

  const std::vector<std::int32_t> prompt_ = random_ids(10, 29, 192);
  const std::vector<std::int32_t> other_ = random_ids(11, 18, 192);
  std::vector<std::vector<std::int32_t>> completions_;
  Batch shared_, separate_;
};

TEST_P(SharedPrefix, ForwardBitsAreThoseOfSeparateDocuments) {
  Model model = golden_model(GetParam());
  const auto width = static_cast<std::size_t>(model.spec().vocab_size);
  const auto shared = logits_of(model, shared_);
  const auto separate = logits_of(model, separate_);
  std::size_t document = 0;
  for (const Segment& segment : shared_.segments) {
    const auto prompt = static_cast<std::size_t>(segment.prefix_end - segment.prefix_begin);
    if (prompt == 0) continue;
    const auto begin = static_cast<std::size_t>(separate_.segments[document++].begin);
    EXPECT_TRUE(same_rows(shared, static_cast<std::size_t>(segment.prefix_begin), separate, begin, prompt, width));
    EXPECT_TRUE(same_rows(shared, static_cast<std::size_t>(segment.begin), separate, begin + prompt,
                          static_cast<std::size_t>(segment.end - segment.begin), width));
  }
  EXPECT_EQ(document, separate_.segments.size());
}

TEST_P(SharedPrefix, GradientsAreThoseOfSeparateDocuments) {
  Model model = golden_model(GetParam());
  std::vector<std::vector<float>> shared, separate, again;
  const auto scores = scores_and_gradients(model, shared_, completion_rows(shared_), shared);
  EXPECT_EQ(scores, scores_and_gradients(model, separate_, completion_rows_separate(), separate));
  for (std::size_t i = 0; i < shared.size(); ++i)
    EXPECT_LT(relative_difference(shared[i], separate[i]), 2e-5) << model.parameters()[i].name;
  (void)scores_and_gradients(model, shared_, completion_rows(shared_), again);
  EXPECT_EQ(shared, again);  // a second run has the same bits
}

TEST_P(SharedPrefix, TheOrderOfSegmentsOnlyHasToBeLegal) {  // completions of two prompts, interleaved
  Model model = golden_model(GetParam());
  Batch mixed;
  const auto append = [&](const std::vector<std::int32_t>& ids, std::int32_t prefix_begin, std::int32_t prefix_end) {
    const auto begin = static_cast<std::int32_t>(mixed.ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      mixed.ids.push_back(ids[i]);
      mixed.positions.push_back(prefix_end - prefix_begin + static_cast<std::int32_t>(i));
    }
    mixed.segments.push_back({begin, static_cast<std::int32_t>(mixed.ids.size()), prefix_begin, prefix_end});
  };
  append(other_, 0, 0);
  append(prompt_, 0, 0);
  append(completions_[0], 18, 47);
  append(completions_[2], 0, 18);
  append(completions_[1], 18, 47);
  append(completions_[2], 18, 47);
  append(completions_[3], 18, 47);
  NextTokens next = completion_rows(mixed);
  std::vector<std::vector<float>> ordered, interleaved;
  const NextTokens grouped = completion_rows(shared_);  // the sample of the other prompt comes last there
  const auto first = static_cast<std::ptrdiff_t>(completions_[0].size());
  const auto moved = static_cast<std::ptrdiff_t>(completions_[2].size());
  std::rotate(next.rows.begin() + first, next.rows.begin() + first + moved, next.rows.end());
  std::rotate(next.targets.begin() + first, next.targets.begin() + first + moved, next.targets.end());
  EXPECT_EQ(next.targets, grouped.targets);
  EXPECT_EQ(scores_and_gradients(model, mixed, next, interleaved),
            scores_and_gradients(model, shared_, grouped, ordered));
  for (std::size_t i = 0; i < ordered.size(); ++i)
    EXPECT_LT(relative_difference(interleaved[i], ordered[i]), 2e-5) << model.parameters()[i].name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SharedPrefix, ::testing::ValuesIn(kFixtures));

}  // namespace
}  // namespace troupe::model::test
