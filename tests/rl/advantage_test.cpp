#include "rl/advantage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace troupe::rl {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

AdvantageOptions with(StdConvention std, double eps = 0, Baseline baseline = Baseline::kGroupMean) {
  AdvantageOptions o;
  o.std = std, o.eps = eps, o.baseline = baseline;
  return o;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance = 1e-6) {
  EXPECT_THAT(got, Pointwise(DoubleNear(tolerance), want));
}

// V01: the residue of the mean, divided by eps, was an advantage of up to 0.15.
TEST(Advantage, EqualRewardsGiveExactlyZero) {
  for (float v : {0.1f, 0.2f, 0.3f, 0.35f, 0.7f, 0.9f, 1e-30f, -3.3e20f})
    for (std::size_t n = 1; n <= 64; ++n)
      for (Baseline baseline : {Baseline::kGroupMean, Baseline::kLeaveOneOut})
        for (StdConvention std : {StdConvention::kNone, StdConvention::kSample, StdConvention::kPopulation})
          for (double eps : {0.0, 1e-6}) {
            const std::vector<double> rewards(n, v);
            for (double a : group_advantages(rewards, with(std, eps, baseline))) ASSERT_EQ(a, 0.0) << v << " x " << n;
            ASSERT_TRUE(zero_signal(rewards, std::vector<std::uint8_t>(n, 1)));
          }
}

// V02: groups of 4, 2, 3 and 1, under each convention; every mean is 0.
TEST(Advantage, UnequalGroupsAreEachNormalisedAlone) {
  const std::vector<double> rewards = {1, 2, 3, 4, 10, 12, 5, 6, 7, 3};
  const std::vector<std::uint64_t> group = {7, 7, 7, 7, 1, 1, 9, 9, 9, 4};
  expect_near(advantages_by_group(rewards, group, with(StdConvention::kNone)), {-1.5, -.5, .5, 1.5, -1, 1, -1, 0, 1, 0});
  expect_near(advantages_by_group(rewards, group, with(StdConvention::kSample)),
              {-1.161895, -.387298, .387298, 1.161895, -.707107, .707107, -1, 0, 1, 0});
  expect_near(advantages_by_group(rewards, group, with(StdConvention::kPopulation)),
              {-1.341641, -.447214, .447214, 1.341641, -1, 1, -1.224745, 0, 1.224745, 0});
}

TEST(Advantage, ASingleSampleHasNothingToBeComparedWith) {
  for (StdConvention std : {StdConvention::kNone, StdConvention::kSample, StdConvention::kPopulation})
    for (Baseline baseline : {Baseline::kGroupMean, Baseline::kLeaveOneOut})
      expect_near(group_advantages(std::vector<double>{3}, with(std, 0, baseline)), {0}, 0);
  EXPECT_TRUE(group_advantages({}, with(StdConvention::kSample)).empty());
}

// Section 5 of research/rl_peers.md: the four conventions on [0, 0, 0, 1].
TEST(Advantage, ConventionsDiffer) {
  const std::vector<double> r = {0, 0, 0, 1};
  EXPECT_NEAR(group_advantages(r, with(StdConvention::kSample)).back(), 1.5, 1e-12);
  EXPECT_NEAR(group_advantages(r, with(StdConvention::kPopulation)).back(), std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(group_advantages(r, with(StdConvention::kNone)).back(), 0.75, 1e-12);
  EXPECT_NEAR(group_advantages(r, with(StdConvention::kNone, 0, Baseline::kLeaveOneOut)).back(), 1.0, 1e-12);
  EXPECT_NEAR(group_advantages(r, with(StdConvention::kSample, 0.5)).back(), 0.75, 1e-12);
}

TEST(Advantage, LeaveOneOutIsTheMeanOfTheOthers) {
  const std::vector<double> r = {0.3, -2, 5, 1.25};
  const auto a = group_advantages(r, with(StdConvention::kNone, 0, Baseline::kLeaveOneOut));
  const double sum = std::accumulate(r.begin(), r.end(), 0.0);
  for (std::size_t i = 0; i < r.size(); ++i) EXPECT_NEAR(a[i], r[i] - (sum - r[i]) / 3, 1e-12);
}

// V03: two groups of the same prompt text are two groups.
TEST(Advantage, TheKeyIsTheGroupNotThePrompt) {
  const std::vector<double> rewards = {1, 0, 1, 0, 1, 0, 1, 0};
  const std::vector<std::uint64_t> group = {1, 2, 1, 2, 1, 2, 1, 2};
  for (StdConvention std : {StdConvention::kNone, StdConvention::kSample})
    expect_near(advantages_by_group(rewards, group, with(std)), std::vector<double>(8, 0.0), 0);
}

// S19: the only different reward belongs to a sample that takes no part in the loss.
TEST(ZeroSignal, SeesTheMask) {
  const std::vector<double> rewards = {1, 1, 1, 0};
  EXPECT_TRUE(zero_signal(rewards, std::vector<std::uint8_t>{1, 1, 1, 0}));
  EXPECT_FALSE(zero_signal(rewards, std::vector<std::uint8_t>{1, 1, 1, 1}));
  EXPECT_FALSE(zero_signal(rewards, std::vector<std::uint8_t>{0, 0, 1, 1}));
  EXPECT_TRUE(zero_signal(rewards, std::vector<std::uint8_t>{0, 0, 0, 0}));
  EXPECT_TRUE(zero_signal(rewards, std::vector<std::uint8_t>{1, 0, 0, 0}));
  EXPECT_TRUE(zero_signal(std::vector<double>{.5, .5, .5, .5}, std::vector<std::uint8_t>{1, 1, 1, 1}));
}

// S08.
TEST(Overlong, PenaltyStartsWhereTheBufferStarts) {
  const std::int64_t lengths[] = {1, 15, 16, 17, 18, 20, 21};
  const double want[] = {0, 0, 0, -.25, -.5, -1, -1};
  for (int i = 0; i < 7; ++i) EXPECT_DOUBLE_EQ(overlong_penalty(lengths[i], 20, 4), want[i]) << lengths[i];
  EXPECT_EQ(overlong_penalty(30, 20, 0), 0);
}

} // namespace
} // namespace troupe::rl
