#include "optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace troupe::optim {
namespace {

using ::testing::HasSubstr;

const std::vector<ParameterInfo> kNames = {{"model.embed_tokens.weight", 40}, {"model.layers.0.input_layernorm.weight", 7},
                                           {"model.layers.0.mlp.up_proj.weight", 33}};

std::vector<float> random_values(std::uint64_t seed, std::int64_t n) {
  Rng rng(seed, RngStream::kTest);
  std::vector<float> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(rng.normal()));
  return values;
}

/// The same algorithm in double, one parameter at a time.
struct Reference {
  std::vector<double> w, m, v;
  explicit Reference(const std::vector<float>& start) : w(start.begin(), start.end()), m(w.size()), v(w.size()) {}
  void step(const std::vector<float>& g, int t, double lr, double wd, const AdamWOptions& o, double scale) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double gi = scale * g[i];
      w[i] *= 1 - lr * wd;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gi;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gi * gi;
      const double mean = m[i] / (1 - std::pow(o.beta1, t)), square = v[i] / (1 - std::pow(o.beta2, t));
      w[i] -= lr * mean / (std::sqrt(square) + o.eps);
    }
  }
};

/// Weights with their gradients of step t.
struct Model {
  std::vector<std::vector<float>> weights, gradients;
  Model() {
    for (std::size_t i = 0; i < kNames.size(); ++i) weights.push_back(random_values(100 + i, kNames[i].count));
    gradients.resize(kNames.size());
  }
  std::vector<ParameterStep> at(int t) {
    std::vector<ParameterStep> step;
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      gradients[i] = random_values(1000 * static_cast<std::uint64_t>(t) + i, kNames[i].count);
      step.push_back({weights[i], gradients[i]});
    }
    return step;
  }
};

AdamWOptions grouped() {
  AdamWOptions o;
  o.lr = 0.01, o.weight_decay = 0.1, o.eps = 1e-3; // large enough that its place in the formula shows
  o.groups = {{"*norm*", 1, 0.0}, {"*.embed_tokens.*", 0.5, {}}};
  return o;
}

TEST(AdamW, EqualsADoubleReferenceOver100Steps) {
  const AdamWOptions o = grouped();
  auto adamw = AdamW::create(o, kNames).value();
  Model model;
  std::vector<Reference> references;
  for (const auto& w : model.weights) references.emplace_back(w);
  const double lr[] = {0.005, 0.01, 0.01}, decay[] = {0.1, 0, 0.1};
  for (int t = 1; t <= 100; ++t) {
    const double factor = t < 10 ? 0.1 * t : 1, scale = t % 3 == 0 ? 0.25 : 1;
    ASSERT_TRUE(adamw.step(model.at(t), factor, scale));
    for (std::size_t i = 0; i < references.size(); ++i)
      references[i].step(model.gradients[i], t, lr[i] * factor, decay[i], o, scale);
  }
  EXPECT_EQ(adamw.steps(), 100);
  for (std::size_t i = 0; i < references.size(); ++i)
    for (std::size_t k = 0; k < references[i].w.size(); ++k) {
      // 100 steps, each rounding the weight twice and the decay factor once to float: 100 * 1e-7 of the weight.
      const double want = references[i].w[k];
      ASSERT_NEAR(model.weights[i][k], want, 1e-5 * std::max(1.0, std::abs(want))) << kNames[i].name << " " << k;
    }
}

TEST(AdamW, GroupsByPatternFirstRuleWins) {
  auto adamw = AdamW::create(grouped(), kNames).value();
  EXPECT_EQ(adamw.group_of(0).lr, 0.005);
  EXPECT_EQ(adamw.group_of(0).weight_decay, 0.1);
  EXPECT_EQ(adamw.group_of(1).weight_decay, 0);
  EXPECT_EQ(adamw.group_of(2).lr, 0.01);
  AdamWOptions o = grouped();
  o.groups.push_back({"*", 0, {}});
  EXPECT_EQ(AdamW::create(o, kNames)->group_of(2).lr, 0);
  EXPECT_EQ(AdamW::create(o, kNames)->group_of(0).lr, 0.005);
}

TEST(AdamW, AScaleOfZeroFreezes) {
  AdamWOptions o;
  o.weight_decay = 0.1;
  o.groups = {{"*", 0, {}}};
  auto adamw = AdamW::create(o, kNames).value();
  Model model;
  const auto before = model.weights;
  ASSERT_TRUE(adamw.step(model.at(1), 1));
  EXPECT_EQ(model.weights, before);
}

// A run saved after 5 steps and restored into a new optimizer goes on with the same bits.
TEST(AdamW, StateByNameContinuesBitForBit) {
  auto straight = AdamW::create(grouped(), kNames).value();
  Model model;
  for (int t = 1; t <= 5; ++t) ASSERT_TRUE(straight.step(model.at(t), 1));
  auto resumed = AdamW::create(grouped(), kNames).value();
  Model copy = model;
  for (const StateTensor& tensor : straight.state()) ASSERT_TRUE(resumed.load_state(tensor.name, tensor.values));
  resumed.set_steps(straight.steps());
  for (int t = 6; t <= 10; ++t) {
    ASSERT_TRUE(straight.step(model.at(t), 0.7));
    ASSERT_TRUE(resumed.step(copy.at(t), 0.7));
  }
  EXPECT_EQ(model.weights, copy.weights);
  std::vector<std::string> names;
  for (const StateTensor& tensor : straight.state()) names.push_back(tensor.name);
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(names[0], "exp_avg.model.embed_tokens.weight");
  EXPECT_EQ(names[1], "exp_avg_sq.model.embed_tokens.weight");
  EXPECT_EQ(resumed.load_state("exp_avg.nothing", {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(resumed.load_state(names[0], std::vector<float>(3)).error().code, ErrorCode::kInvalidArgument);
}

TEST(AdamW, AParameterWithoutGradientIsNotTouched) {
  auto adamw = AdamW::create(grouped(), kNames).value();
  Model model;
  const auto before = model.weights[2];
  auto step = model.at(1);
  step[2].gradient = {};
  ASSERT_TRUE(adamw.step(step, 1));
  EXPECT_EQ(model.weights[2], before);
}

TEST(AdamW, WrongLengthsChangeNothing) {
  auto adamw = AdamW::create(grouped(), kNames).value();
  Model model;
  const auto before = model.weights;
  auto step = model.at(1);
  step[2].gradient = step[2].gradient.subspan(1);
  const Status status = adamw.step(step, 1);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("up_proj"));
  step.pop_back();
  EXPECT_FALSE(adamw.step(step, 1));
  EXPECT_EQ(model.weights, before);
  EXPECT_EQ(adamw.steps(), 0);
}

TEST(AdamW, BadOptionsAreNamed) {
  const auto message = [](AdamWOptions o) {
    const auto r = AdamW::create(o, kNames);
    return r ? std::string("accepted") : r.error().message;
  };
  AdamWOptions o;
  o.beta2 = 1;
  EXPECT_THAT(message(o), HasSubstr("optim.beta2 = 1.0"));
  o = {};
  o.eps = 0;
  EXPECT_THAT(message(o), HasSubstr("eps"));
  o = {};
  o.lr = std::nan("");
  EXPECT_THAT(message(o), HasSubstr("lr"));
  o = {};
  o.groups = {{"*nrom*", 1, 0.0}};
  EXPECT_THAT(message(o), HasSubstr("no parameter is named like \"*nrom*\""));
  o.groups = {{"*norm*", -1, {}}};
  EXPECT_THAT(message(o), HasSubstr("lr_scale"));
  const std::vector<ParameterInfo> twice = {{"a", 1}, {"a", 1}};
  EXPECT_EQ(AdamW::create({}, twice).error().code, ErrorCode::kAlreadyExists);
}

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*c", "abbbc"));
  EXPECT_TRUE(glob_match("*.layers.?.*norm*", "model.layers.3.input_layernorm.weight"));
  EXPECT_FALSE(glob_match("*.layers.?.*norm*", "model.layers.13.input_layernorm.weight"));
  EXPECT_TRUE(glob_match("*ab*ab", "abab ab"));
  EXPECT_FALSE(glob_match("a", "ab"));
  EXPECT_FALSE(glob_match("ab", "a"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("**", "x"));
}

} // namespace
} // namespace troupe::optim
