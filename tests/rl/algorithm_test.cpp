#include "rl/algorithm.h"

#include <gtest/gtest.h>

#include <functional>

namespace troupe::rl {
namespace {

TEST(Algorithm, EveryRowIsValidOnceItsLengthIsKnown) {
  for (const AlgorithmRow& row : algorithms()) {
    AlgorithmOptions o = algorithm_defaults(row.name).value();
    if (o.loss.aggregation == Aggregation::kConstant) {
      EXPECT_FALSE(validate(o, false)) << row.name;
      o.loss.constant_tokens = 64;
    }
    EXPECT_TRUE(validate(o, false)) << row.name;
  }
}

TEST(Algorithm, UnknownNamesListTheKnownOnes) {
  const auto r = algorithm_defaults("grop");
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("\"grop\""), std::string::npos);
  EXPECT_NE(r.error().message.find("grpo, dr_grpo, dapo, rloo"), std::string::npos);
}

TEST(Algorithm, ConventionsOfTheNames) {
  EXPECT_EQ(algorithm_defaults("grpo")->advantage.std, StdConvention::kSample);
  EXPECT_EQ(algorithm_defaults("dr_grpo")->advantage.std, StdConvention::kNone);
  EXPECT_EQ(algorithm_defaults("dapo")->loss.aggregation, Aggregation::kTokenMean);
  EXPECT_EQ(algorithm_defaults("dapo")->loss.clip_high, 0.28);
  EXPECT_EQ(algorithm_defaults("rloo")->advantage.baseline, Baseline::kLeaveOneOut);
}

// Each refused combination says what to set instead.
TEST(Algorithm, WrongCombinationsAreRefusedWithAHint) {
  struct Case {
    std::function<void(AlgorithmOptions&)> set;
    bool on_policy;
    std::string hint;
  };
  const Case cases[] = {
      {[](auto& o) { o.loss.kl = {0.1, KlEstimator::kK1, KlWeight::kNone}; }, true, "weight = \"ratio\""},
      {[](auto& o) { o.loss.kl = {0.1, KlEstimator::kK3, KlWeight::kNone}; }, true, "forward KL"},
      {[](auto& o) { o.loss.kl = {0.1, KlEstimator::kK2, KlWeight::kNone}; }, false, "staleness = 0"},
      {[](auto& o) { o.loss.importance = Importance::kToken; }, false, "anchor = \"proximal\""},
      {[](auto& o) { o.loss.policy = PolicyLoss::kCispo, o.loss.dual_clip = 3; }, false, "dual_clip = 0"},
      {[](auto& o) { o.loss.policy = PolicyLoss::kGspo, o.loss.aggregation = Aggregation::kTokenMean; }, false, "seq_mean_token_mean"},
      {[](auto& o) { o.loss.dual_clip = 0.5; }, false, "above 1"},
      {[](auto& o) { o.loss.clip_low = -0.1; }, false, "clip_low"},
      {[](auto& o) { o.loss.clip_high = -0.1; }, false, "clip_high"},
      {[](auto& o) { o.loss.importance_low = 3; }, false, "importance_low"},
      {[](auto& o) { o.loss.kl.coefficient = -1; }, false, "kl.coefficient"},
      {[](auto& o) { o.overlong.penalty_buffer = -1; }, false, "penalty_buffer"},
  };
  for (const Case& c : cases) {
    AlgorithmOptions o;
    c.set(o);
    const Status status = validate(o, c.on_policy);
    ASSERT_FALSE(status) << c.hint;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
    EXPECT_NE(status.error().message.find(c.hint), std::string::npos) << status.error().message;
  }
  AlgorithmOptions fine;
  fine.loss.kl = {0.1, KlEstimator::kK2, KlWeight::kNone};
  EXPECT_TRUE(validate(fine, true));
}

// V09: without recorded kept sets, cut sampling is refused in training.
TEST(Algorithm, CutSamplingIsRefusedInTraining) {
  EXPECT_TRUE(check_training_sampling(1, 0, 0));
  for (const Status& status : {check_training_sampling(0.8, 0, 0), check_training_sampling(1, 3, 0), check_training_sampling(1, 0, 0.05)}) {
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("use the cut only in eval"), std::string::npos);
  }
}

} // namespace
} // namespace troupe::rl
