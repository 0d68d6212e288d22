#include "optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/clip.h"

namespace troupe::optim {
namespace {

using ::testing::HasSubstr;

ScheduleOptions of(Decay decay, std::int64_t warmup, std::int64_t total, double min_ratio = 0) { return {decay, warmup, total, min_ratio}; }

TEST(Schedule, WarmUpReachesThePeak) {
  for (Decay decay : {Decay::kConstant, Decay::kLinear, Decay::kCosine}) {
    const auto o = of(decay, 4, 14, 0.1);
    const double want[] = {.25, .5, .75, 1};
    for (int t = 0; t < 4; ++t) EXPECT_DOUBLE_EQ(schedule_factor(o, t), want[t]);
  }
  EXPECT_EQ(schedule_factor(of(Decay::kConstant, 0, 0), 0), 1);
  EXPECT_EQ(schedule_factor(of(Decay::kConstant, 0, 0), 1'000'000), 1);
}

TEST(Schedule, DecaysToTheFloorAndStays) {
  const auto line = of(Decay::kLinear, 0, 10, 0.2), cosine = of(Decay::kCosine, 0, 10);
  EXPECT_DOUBLE_EQ(schedule_factor(line, 0), 0.2 + 0.8 * 0.9);
  EXPECT_DOUBLE_EQ(schedule_factor(line, 4), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(schedule_factor(cosine, 4), 0.5);
  EXPECT_NEAR(schedule_factor(cosine, 2), 0.5 * (1 + std::cos(M_PI * 0.3)), 1e-15);
  for (std::int64_t t : {9, 10, 100}) {
    EXPECT_NEAR(schedule_factor(line, t), 0.2, 1e-15);
    EXPECT_NEAR(schedule_factor(cosine, t), 0, 1e-15);
  }
}

// S17: a value depends on the step only, so a run resumed at 4 has the same rates for 5..10; a changed length is asked for.
TEST(Schedule, ResumeIsAskedAboutChanges) {
  const auto saved = of(Decay::kCosine, 2, 10);
  EXPECT_TRUE(check_resume(saved, saved, false));
  const auto longer = of(Decay::kCosine, 2, 20);
  const Status refused = check_resume(saved, longer, false);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("total_steps 10 -> 20"));
  EXPECT_TRUE(check_resume(saved, longer, true));
  EXPECT_FALSE(check_resume(saved, of(Decay::kLinear, 2, 10), false));
  EXPECT_FALSE(check_resume(saved, of(Decay::kCosine, 2, 10, 0.1), false));
}

TEST(Schedule, BadOptions) {
  EXPECT_TRUE(validate(of(Decay::kConstant, 5, 0)));
  EXPECT_THAT(validate(of(Decay::kCosine, 0, 0)).error().message, HasSubstr("total_steps"));
  EXPECT_THAT(validate(of(Decay::kLinear, 10, 10)).error().message, HasSubstr("no step for the decay"));
  EXPECT_FALSE(validate(of(Decay::kConstant, -1, 0)));
  EXPECT_FALSE(validate(of(Decay::kLinear, 0, 10, 1.5)));
  EXPECT_FALSE(validate(of(Decay::kLinear, 0, 10, std::nan(""))));
}

// V19 on one process: shards [3] and [4], a replicated [12] given once; norm 13, scale 0.5 for 6.5.
TEST(Clip, GlobalNorm) {
  const std::vector<float> a = {3}, b = {4}, c = {12};
  const NamedGradient whole[] = {{"a", a}, {"b", b}, {"c", c}};
  EXPECT_EQ(gradient_norm(whole).norm, 13);
  EXPECT_EQ(clip_scale(13, 6.5), 0.5);
  EXPECT_EQ(clip_scale(13, 13), 1);
  EXPECT_EQ(clip_scale(13, 0), 1);
  EXPECT_EQ(clip_scale(0, 1), 1);
  const GradientNorm parts[] = {gradient_norm(std::span(whole).subspan(0, 1)), gradient_norm(std::span(whole).subspan(1))};
  EXPECT_EQ(combine(parts).norm, 13);
}

TEST(Clip, BrokenGradientsAreSeenAndNamed) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> fine(10000, 1), broken(10000, 1);
    broken[9876] = bad;
    const NamedGradient gradients[] = {{"fine", fine}, {"layers.3.weight", broken}, {"later", broken}};
    const GradientNorm norm = gradient_norm(gradients);
    EXPECT_FALSE(norm.finite());
    EXPECT_EQ(norm.broken, "layers.3.weight");
    EXPECT_EQ(clip_scale(norm.norm, 1), 0);
    const GradientNorm parts[] = {gradient_norm(std::span(gradients).subspan(0, 1)), norm};
    EXPECT_FALSE(combine(parts).finite());
  }
  const std::vector<float> huge(1000, std::numeric_limits<float>::max());
  const NamedGradient gradients[] = {{"huge", huge}};
  EXPECT_TRUE(gradient_norm(gradients).finite());
}

} // namespace
} // namespace troupe::optim
