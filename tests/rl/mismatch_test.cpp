#include "rl/mismatch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "rl/pass_at_k.h"

namespace troupe::rl {
namespace {

TEST(Mismatch, NothingComparedIsAbsentNotZero) {
  MismatchTotals totals;
  add_mismatch(totals, std::vector<float>{-1}, std::vector<float>{-2}, std::vector<std::uint8_t>{0});
  EXPECT_FALSE(metrics(totals).has_value());
}

TEST(Mismatch, Figures) {
  MismatchTotals totals, more;
  add_mismatch(totals, std::vector<float>{-1, -1, -9}, std::vector<float>{-1, -1.5f, 0}, std::vector<std::uint8_t>{1, 1, 0});
  add_mismatch(more, std::vector<float>{-2}, std::vector<float>{-1.75f}, std::vector<std::uint8_t>{1});
  totals.add(more);
  const auto m = metrics(totals);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->tokens, 3);
  const double k1 = std::exp(.5) - 1.5, k2 = std::exp(-.25) - 0.75;
  EXPECT_NEAR(m->mismatch_kl_mean, (k1 + k2) / 3, 1e-12);
  EXPECT_NEAR(m->mismatch_kl_max, k1, 1e-12);
  EXPECT_NEAR(m->token_mult_prob_error, (1 + std::exp(.5) + std::exp(.25)) / 3, 1e-12);
  EXPECT_NEAR(m->sampling_importance_ratio, (1 + std::exp(.5) + std::exp(-.25)) / 3, 1e-12);
  EXPECT_NEAR(m->logprob_diff_mean, .25, 1e-12);
  EXPECT_EQ(m->logprob_diff_max, .5);
  EXPECT_NEAR(m->ratio_tokens_different, 2.0 / 3, 1e-12);
}

TEST(Mismatch, ANanShows) {
  MismatchTotals totals;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  add_mismatch(totals, std::vector<float>{nan}, std::vector<float>{-1}, std::vector<std::uint8_t>{1});
  EXPECT_TRUE(std::isnan(metrics(totals)->logprob_diff_max));
}

// S01.
TEST(PassAtK, UnbiasedEstimate) {
  EXPECT_EQ(pass_at_k(4, 1, 4), 1.0);
  EXPECT_NEAR(*pass_at_k(10, 3, 5), 0.916667, 1e-6);
  EXPECT_EQ(pass_at_k(10, 0, 5), 0.0);
  EXPECT_FALSE(pass_at_k(3, 3, 4).has_value());
  EXPECT_FALSE(pass_at_k(4, 5, 1).has_value());
  EXPECT_FALSE(pass_at_k(4, 1, 0).has_value());
  for (std::int64_t n = 1; n <= 12; ++n) // k = 1 is the share of right samples
    for (std::int64_t c = 0; c <= n; ++c) EXPECT_NEAR(*pass_at_k(n, c, 1), static_cast<double>(c) / static_cast<double>(n), 1e-12);
}

TEST(PassAtK, OneGreedySampleGivesOnlyPassAt1) {
  std::vector<ProblemCount> problems(164, {1, 0});
  for (std::size_t i = 0; i < 50; ++i) problems[i].correct = 1;
  EXPECT_NEAR(*mean_pass_at_k(problems, 1), 50.0 / 164, 1e-12);
  EXPECT_FALSE(mean_pass_at_k(problems, 10).has_value());
  EXPECT_FALSE(mean_pass_at_k({}, 1).has_value());
}

} // namespace
} // namespace troupe::rl
