#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "kernels/logprob.h"

namespace troupe::generate {
namespace {

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// Every id that some uniform number gives, with the log-prob reported for it.
std::map<std::int32_t, float> outcomes(std::span<const float> logits, const SamplingParams& params) {
  Sampler sampler;
  std::map<std::int32_t, float> seen;
  for (int i = 0; i < 2000; ++i) {
    const Sampled s = sampler.sample(logits, params, i / 2000.0);
    EXPECT_EQ(seen.emplace(s.id, s.logprob).first->second, s.logprob);
    EXPECT_GE(s.kept, static_cast<int>(seen.size()));
  }
  return seen;
}

// reported_faults.md V08: the temperature divides the logits before the softmax.
TEST(Sampler, TemperatureDividesTheLogits) {
  const auto seen = outcomes(std::vector<float>{2, 0, -1}, {.temperature = 0.5});
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_NEAR(seen.at(0), -0.020581, 1e-6);
  EXPECT_NEAR(seen.at(1), -4.020581, 1e-6);
  EXPECT_NEAR(seen.at(2), -6.020581, 1e-6);
}

TEST(Sampler, LogProbsSumToOneAtEveryTemperature) {
  Rng rng(1, RngStream::kTest);
  std::vector<float> logits(50);
  for (float& x : logits) x = static_cast<float>(2 * rng.normal());
  for (const double temperature : {0.3, 0.7, 1.0, 2.5})
    for (const SamplingParams& p :
         {SamplingParams{.temperature = temperature}, SamplingParams{.temperature = temperature, .top_k = 7},
          SamplingParams{.temperature = temperature, .top_p = 0.9},
          SamplingParams{.temperature = temperature, .min_p = 0.1}}) {
      Sampler sampler;
      std::map<std::int32_t, double> mass;
      for (int i = 0; i < 20000; ++i) {
        const Sampled s = sampler.sample(logits, p, i / 20000.0);
        mass[s.id] = std::exp(static_cast<double>(s.logprob));
      }
      double sum = 0;
      for (const auto& [id, m] : mass) sum += m;
      EXPECT_NEAR(sum, 1, 2e-3) << temperature;  // ids rarer than the grid are missed
    }
}

// V09: the log-prob is the one of the distribution sampled from.
TEST(Sampler, TruncationIsRenormalised) {
  const auto logits = logs({0.5, 0.3, 0.15, 0.05});
  const auto nucleus = outcomes(logits, {.top_p = 0.8});
  ASSERT_EQ(nucleus.size(), 2u);
  EXPECT_NEAR(nucleus.at(0), -0.470004, 1e-6);
  EXPECT_NEAR(nucleus.at(1), std::log(0.3 / 0.8), 1e-6);
  const auto top3 = outcomes(logits, {.top_k = 3});
  ASSERT_EQ(top3.size(), 3u);
  EXPECT_NEAR(top3.at(2), -1.845827, 1e-6);
}

TEST(Sampler, TheCrossingTokenStays) {
  const auto logits = logs({0.5, 0.3, 0.15, 0.05});
  EXPECT_EQ(outcomes(logits, {.top_p = 0.9}).size(), 3u);
  EXPECT_EQ(outcomes(logits, {.top_p = 0.79}).size(), 2u);
  EXPECT_EQ(outcomes(logits, {.top_p = 1e-9}).size(), 1u);
}

TEST(Sampler, FiltersCombineInOrder) {
  const auto logits = logs({0.05, 0.5, 0.15, 0.3});
  EXPECT_EQ(outcomes(logits, {.top_p = 0.6, .top_k = 2}).size(), 1u);  // .5 of .8 is 0.625
  EXPECT_EQ(outcomes(logits, {.min_p = 0.3}).size(), 3u);              // .15 / .5 is just 0.3
  EXPECT_EQ(outcomes(logits, {.min_p = 0.31}).size(), 2u);
  EXPECT_EQ(outcomes(logits, {.min_p = 1}).size(), 1u);
  EXPECT_EQ(outcomes(logits, {.top_p = 0.9, .min_p = 0.31}).size(), 2u);
}

// Against a plain version of the same rules.
TEST(Sampler, AgreesWithBruteForce) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed, RngStream::kTest);
    std::vector<float> logits(2 + rng.below(40));
    for (float& x : logits)
      x = static_cast<float>(static_cast<double>(rng.below(8)) - 4 + 1e-3 * static_cast<double>(rng.below(3)));
    const SamplingParams p{.temperature = 0.5 + rng.uniform(),
                           .top_p = rng.below(2) == 0 ? 1.0 : 0.05 + 0.9 * rng.uniform(),
                           .min_p = rng.below(2) == 0 ? 0.0 : 0.5 * rng.uniform(),
                           .top_k = static_cast<int>(rng.below(10))};
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    if (p.top_k > 0 && static_cast<std::size_t>(p.top_k) < order.size())
      order.resize(static_cast<std::size_t>(p.top_k));
    const auto weight = [&](int i) {
      return std::exp((static_cast<double>(logits[static_cast<std::size_t>(i)]) -
                       static_cast<double>(logits[static_cast<std::size_t>(order[0])])) /
                      p.temperature);
    };
    double mass = 0;
    for (const int i : order) mass += weight(i);
    std::size_t keep = 0;
    for (double sum = 0;
         keep < order.size() && (keep == 0 || (sum < (p.top_p - 1e-6) * mass && weight(order[keep]) >= p.min_p));
         ++keep)
      sum += weight(order[keep]);
    order.resize(keep);
    std::sort(order.begin(), order.end());
    double kept = 0;
    for (const int i : order) kept += weight(i);
    const double u = rng.uniform();
    double sum = 0;
    int expected = order.back();
    for (const int i : order)
      if ((sum += weight(i)) > u * kept) {
        expected = i;
        break;
      }
    Sampler sampler;
    const Sampled s = sampler.sample(logits, p, u);
    EXPECT_EQ(s.id, expected) << seed;
    EXPECT_EQ(s.kept, static_cast<int>(keep)) << seed;
    EXPECT_NEAR(s.logprob, std::log(weight(expected) / kept), 2e-6) << seed;
  }
}

TEST(Sampler, AFilterThatRemovesNothingChangesNothing) {
  Rng rng(3, RngStream::kTest);
  std::vector<float> logits(200);
  for (float& x : logits) x = static_cast<float>(rng.normal());
  Sampler sampler;
  for (int i = 0; i < 500; ++i) {
    const double u = rng.uniform();
    const Sampled plain = sampler.sample(logits, {}, u);
    const Sampled filtered = sampler.sample(logits, {.min_p = 1e-12, .top_k = 1000}, u);
    EXPECT_EQ(plain.id, filtered.id);
    EXPECT_EQ(plain.logprob, filtered.logprob);
    float scored = 0;
    kernels::LogprobForward args;
    args.logits = logits.data();
    args.targets = &plain.id;
    args.logprob = &scored;
    args.rows = 1;
    args.vocab = 200;
    kernels::logprob_forward(args);
    EXPECT_EQ(plain.logprob, scored);  // invariant 3 at its root
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualsAndIgnoresFilters) {
  Sampler sampler;
  const std::vector<float> logits{0, 3, 3, -1};
  for (const double u : {0.0, 0.5, 0.999999}) {
    const Sampled s = sampler.sample(logits, {.temperature = 0, .top_p = 0.1, .top_k = 1}, u);
    EXPECT_EQ(s.id, 1);
    EXPECT_NEAR(s.logprob, std::log(1 / (2 + std::exp(-3.0) + std::exp(-4.0))), 1e-6);
  }
}

TEST(Sampler, ImpossibleTokensAreNeverDrawn) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{kNever, 0, kNever, 0, kNever};
  for (const SamplingParams& p : {SamplingParams{}, SamplingParams{.top_p = 0.999}, SamplingParams{.top_k = 4}}) {
    Sampler sampler;
    EXPECT_EQ(sampler.sample(logits, p, 0).id, 1);
    EXPECT_EQ(sampler.sample(logits, p, std::nextafter(1.0, 0.0)).id, 3);
  }
}

TEST(Sampler, LogitsThatAreNotFiniteGiveNoToken) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Sampler sampler;
  for (const std::vector<float>& logits :
       {std::vector<float>{0, NAN, 1}, {kInf, 0, 0}, {-kInf, -kInf, -kInf}, {NAN, NAN, NAN}})
    for (const double temperature : {0.0, 1.0})
      EXPECT_EQ(sampler.sample(logits, {.temperature = temperature}, 0.5).id, -1);
}

TEST(Sampler, SamplesWithTheRightFrequencies) {
  const auto logits = logs({0.1, 0.6, 0.3});
  Sampler sampler;
  const Rng rng(5, RngStream::kSampling, 1, 2);
  std::vector<int> count(3);
  for (std::uint64_t i = 0; i < 20000; ++i)
    ++count[static_cast<std::size_t>(sampler.sample(logits, {}, rng.uniform_at(i)).id)];
  EXPECT_NEAR(count[0], 2000, 200);
  EXPECT_NEAR(count[1], 12000, 350);
  EXPECT_NEAR(count[2], 6000, 330);
}

TEST(Sampler, RefusesValuesOutOfRangeByName) {
  EXPECT_TRUE(check(SamplingParams{}).has_value());
  EXPECT_TRUE(check(SamplingParams{.temperature = 0}).has_value());
  const auto message = [](const SamplingParams& p) { return check(p).has_value() ? "" : check(p).error().message; };
  EXPECT_EQ(message({.temperature = -1}), "sampling: temperature is -1, must be 0 (greedy) or at least 0.001");
  EXPECT_NE(message({.temperature = NAN}), "");
  EXPECT_NE(message({.temperature = 1e-5}), "");
  EXPECT_NE(message({.top_p = 0}), "");
  EXPECT_NE(message({.top_p = 1.1}), "");
  EXPECT_NE(message({.min_p = -0.1}), "");
  EXPECT_NE(message({.top_k = -1}), "");
  EXPECT_NE(message({.max_new_tokens = 0}), "");
  EXPECT_NE(message({.stop_strings = {"a", ""}}), "");
}

}  // namespace
}  // namespace troupe::generate
