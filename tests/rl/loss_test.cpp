#include "rl/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/rng.h"

namespace troupe::rl {
namespace {

/// Owns the arrays of a TokenBatch.
struct Tokens {
  std::vector<float> logprob, behaviour, proximal, reference, advantage;
  std::vector<std::uint8_t> mask;
  std::vector<SequenceRange> sequences;

  void add(const std::vector<float>& log_ratios, float a, std::vector<std::uint8_t> m = {}) {
    const auto begin = static_cast<std::int32_t>(mask.size());
    for (std::size_t i = 0; i < log_ratios.size(); ++i) {
      behaviour.push_back(-1);
      logprob.push_back(-1 + log_ratios[i]);
      advantage.push_back(a);
      mask.push_back(m.empty() ? 1 : m[i]);
    }
    sequences.push_back({begin, static_cast<std::int32_t>(mask.size())});
  }
  [[nodiscard]] TokenBatch view() const {
    TokenBatch b;
    b.logprob = logprob, b.behaviour_logprob = behaviour, b.proximal_logprob = proximal, b.reference_logprob = reference;
    b.advantage = advantage, b.mask = mask, b.sequences = sequences;
    return b;
  }
};

Denominator counted(const Tokens& t, Aggregation aggregation, double constant = 0) {
  Denominator d = make_denominator(aggregation, constant);
  count(d, t.mask, t.sequences);
  return d;
}

double value(const Tokens& t, const LossOptions& o) {
  LossTotals totals;
  return policy_loss(t.view(), o, counted(t, o.aggregation, o.constant_tokens), totals)->loss;
}

/// Sequences a (10 tokens of loss 1) and b (2 tokens of loss 4) as cross-entropy, in the given order and copies.
Tokens v04(std::initializer_list<char> order) {
  Tokens t;
  for (char c : order) {
    const auto begin = static_cast<std::int32_t>(t.mask.size());
    const int n = c == 'a' ? 10 : c == 'b' ? 2 : 5;
    for (int i = 0; i < n; ++i) {
      t.logprob.push_back(c == 'a' ? -1.0f : -4.0f);
      t.mask.push_back(c == 'm' ? 0 : 1);
    }
    t.sequences.push_back({begin, begin + n});
  }
  return t;
}

struct Mode {
  Aggregation aggregation;
  double want;
};
const Mode kModes[] = {{Aggregation::kTokenMean, 1.5},
                       {Aggregation::kSeqMeanTokenMean, 2.5},
                       {Aggregation::kSeqMeanTokenSum, 9},
                       {Aggregation::kConstant, 0.5625}};

// V04: whole, in two micro-batches, on two ranks, swapped.
TEST(Denominator, LossDoesNotDependOnTheCut) {
  for (const Mode& mode : kModes) {
    for (auto order : {v04({'a', 'b'}), v04({'b', 'a'}), v04({'a', 'b', 'a', 'b'})}) {
      const Denominator d = counted(order, mode.aggregation, 16);
      LossTotals totals;
      EXPECT_NEAR(cross_entropy_loss(order.view(), d, totals)->loss, mode.want, 1e-12);
      EXPECT_NEAR(totals.loss, mode.want, 1e-12);
    }
    // Two parts, as micro-batches (one denominator) and as ranks (denominators added), 1 + 3 sequences of 4.
    const Tokens left = v04({'a'}), right = v04({'b', 'a', 'b'});
    Denominator d = counted(left, mode.aggregation, 16);
    d.add(counted(right, mode.aggregation, 16));
    LossTotals one, two;
    const auto l = cross_entropy_loss(left.view(), d, one), r = cross_entropy_loss(right.view(), d, two);
    EXPECT_NEAR(l->loss + r->loss, mode.want, 1e-12);
    one.add(two);
    EXPECT_NEAR(one.loss, mode.want, 1e-12);
    EXPECT_EQ(one.tokens, 24);
    // Gradients of the parts are those of the whole, bit for bit.
    const Tokens all = v04({'a', 'b', 'a', 'b'});
    LossTotals ignored;
    std::vector<float> joined = l->dloss_dlogprob;
    joined.insert(joined.end(), r->dloss_dlogprob.begin(), r->dloss_dlogprob.end());
    EXPECT_EQ(cross_entropy_loss(all.view(), d, ignored)->dloss_dlogprob, joined);
  }
}

// V04: a fully masked sequence changes nothing, except that it counts in Dr.GRPO's N.
TEST(Denominator, FullyMaskedSequences) {
  for (const Mode& mode : kModes) {
    const Tokens t = v04({'a', 'm', 'b'});
    LossTotals totals;
    const double want = mode.aggregation == Aggregation::kConstant ? 18.0 / (3 * 16) : mode.want;
    EXPECT_NEAR(cross_entropy_loss(t.view(), counted(t, mode.aggregation, 16), totals)->loss, want, 1e-12);
  }
}

// V05: everything truncated and left out: no loss, no gradient, no NaN.
TEST(Denominator, NothingTrained) {
  for (const Mode& mode : kModes) {
    Tokens t;
    t.add({0.1f, 0.2f}, 1, {0, 0});
    LossOptions o;
    o.aggregation = mode.aggregation, o.constant_tokens = 16;
    LossTotals totals;
    const auto result = policy_loss(t.view(), o, counted(t, mode.aggregation, 16), totals);
    EXPECT_EQ(result->loss, 0);
    EXPECT_EQ(result->dloss_dlogprob, (std::vector<float>{0, 0}));
    EXPECT_EQ(metrics(totals).clip_fraction, 0);
  }
}

// V05: 30 tokens of loss 1, 5 of them of a truncated sample.
TEST(Denominator, TruncatedTokensAreNotInTheDivisor) {
  Tokens t;
  t.logprob.assign(30, -1);
  t.mask.assign(30, 1);
  for (int i = 25; i < 30; ++i) t.mask[static_cast<std::size_t>(i)] = 0;
  t.sequences = {{0, 12}, {12, 25}, {25, 30}};
  LossTotals totals;
  EXPECT_DOUBLE_EQ(cross_entropy_loss(t.view(), counted(t, Aggregation::kTokenMean), totals)->loss, 1.0);
}

// V06.
TEST(Gspo, OneRatioPerSequenceWhateverItsLength) {
  LossOptions o;
  o.policy = PolicyLoss::kGspo;
  Tokens t;
  t.add({0.2f, 0.0f}, 1);
  t.add(std::vector<float>(6, -0.05f), -1);
  EXPECT_NEAR(value(t, o), -0.076971, 1e-6);
  Tokens masked;
  masked.add({0.2f, 5.0f, 0.0f}, 1, {1, 0, 1});
  masked.add(std::vector<float>(6, -0.05f), -1);
  EXPECT_NEAR(value(masked, o), -0.076971, 1e-6);
  masked.logprob[1] = std::numeric_limits<float>::quiet_NaN(); // a masked value is never read
  EXPECT_NEAR(value(masked, o), -0.076971, 1e-6);
}

struct TwoActions {
  double pi[2] = {0.7, 0.3}, ref[2] = {0.5, 0.5}, slope[2] = {0.3, -0.7}; // d log pi(a) / d theta, pi = sigmoid(theta)
  /// Exact expectation under `mu` of f(action).
  template <class F>
  double expect(const double (&mu)[2], F f) const {
    return mu[0] * f(0) + mu[1] * f(1);
  }
};

// V07.
TEST(Kl, ValuesAndGradientsOfTwoActions) {
  const TwoActions t;
  const auto gradient = [&](const double (&mu)[2], KlEstimator e, KlWeight w) {
    return t.expect(mu, [&](int a) { return kl_term(std::log(t.pi[a] / t.ref[a]), t.pi[a] / mu[a], e, w).derivative * t.slope[a]; });
  };
  const auto mean = [&](KlEstimator e) {
    return t.expect(t.pi, [&](int a) { return kl_term(std::log(t.pi[a] / t.ref[a]), 1, e, KlWeight::kNone).value; });
  };
  EXPECT_NEAR(mean(KlEstimator::kK1), 0.0822829, 1e-7);
  EXPECT_NEAR(mean(KlEstimator::kK2), 0.0787662, 1e-7);
  EXPECT_NEAR(mean(KlEstimator::kK3), 0.0822829, 1e-7);
  EXPECT_NEAR(kl_term(std::log(1.4), 1, KlEstimator::kK3, KlWeight::kNone).value, 0.050758, 1e-6);
  EXPECT_NEAR(kl_term(std::log(0.6), 1, KlEstimator::kK3, KlWeight::kNone).value, 0.155841, 1e-6);

  EXPECT_NEAR(gradient(t.pi, KlEstimator::kK1, KlWeight::kNone), 0, 1e-9);
  EXPECT_NEAR(gradient(t.pi, KlEstimator::kK3, KlWeight::kNone), 0.2, 1e-7);
  const double mu[2] = {0.4, 0.6};
  EXPECT_NEAR(gradient(t.pi, KlEstimator::kK2, KlWeight::kNone), 0.1779326, 1e-7);
  EXPECT_NEAR(gradient(mu, KlEstimator::kK2, KlWeight::kNone), 0.2549234, 1e-7); // why it is refused off-policy
  for (KlEstimator e : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3}) {
    EXPECT_NEAR(gradient(t.pi, e, KlWeight::kRatio), 0.1779326, 1e-7);
    EXPECT_NEAR(gradient(mu, e, KlWeight::kRatio), 0.1779326, 1e-7);
  }
}

// V07: whatever the importance correction of the policy term, the KL keeps its per-token ratio.
TEST(Kl, KeepsTheTokenRatioUnderSequenceImportance) {
  Tokens t;
  t.add({0.3f, -0.1f}, 0);
  t.reference = {-1.2f, -0.9f};
  LossOptions o;
  o.anchor = RatioAnchor::kProximal, o.importance = Importance::kSequence;
  o.kl.coefficient = 0.5;
  o.aggregation = Aggregation::kTokenMean;
  LossTotals totals;
  const auto result = policy_loss(t.view(), o, counted(t, o.aggregation), totals);
  for (std::size_t i = 0; i < 2; ++i) {
    const double l = t.logprob[i] - t.reference[i], r = std::exp(t.logprob[i] - t.behaviour[i]);
    EXPECT_NEAR(result->dloss_dlogprob[i], 0.5 * r * l / 2, 1e-7);
  }
}

// V11: prompt of 2, targets t2..t4 with losses .2 .4 .8; the mask is aligned with the targets.
TEST(CrossEntropy, NeitherFirstNorLastTargetIsLost) {
  Tokens t;
  t.logprob = {-.1f, -.2f, -.4f, -.8f};
  t.mask = {0, 1, 1, 1};
  t.sequences = {{0, 4}};
  LossTotals totals;
  const auto result = cross_entropy_loss(t.view(), counted(t, Aggregation::kTokenMean), totals);
  EXPECT_NEAR(result->loss, 0.466667, 1e-6);
  EXPECT_EQ(result->dloss_dlogprob, (std::vector<float>{0, -1.0f / 3, -1.0f / 3, -1.0f / 3}));
}

TEST(Clip, EachSideAndTheDualBound) {
  const auto one = [](double ratio, float advantage, double dual, LossTotals& totals) {
    Tokens t;
    t.add({static_cast<float>(std::log(ratio))}, advantage);
    LossOptions o;
    o.clip_high = 0.28, o.dual_clip = dual;
    return policy_loss(t.view(), o, counted(t, o.aggregation), totals).value();
  };
  struct Case {
    double ratio;
    float advantage;
    double dual, loss, slope;
  };
  const Case cases[] = {
      {1.1, 2, 0, -2.2, -2.2}, {1.5, 2, 0, -2.56, 0}, {0.5, 2, 0, -1.0, -1.0}, {1.5, -2, 0, 3.0, 3.0},
      {0.5, -2, 0, 1.6, 0},    {5, -2, 3, 6, 0},      {2.5, -2, 3, 5, 5},      {5, 2, 3, -2.56, 0},
  };
  for (const Case& c : cases) {
    LossTotals totals;
    const LossResult r = one(c.ratio, c.advantage, c.dual, totals);
    EXPECT_NEAR(r.loss, c.loss, 1e-5) << c.ratio << " " << c.advantage;
    EXPECT_NEAR(r.dloss_dlogprob[0], c.slope, 1e-5) << c.ratio << " " << c.advantage;
    EXPECT_EQ(metrics(totals).clip_fraction, c.slope == 0 ? 1 : 0);
  }
  LossTotals totals;
  one(1.5, 2, 0, totals), one(0.5, -2, 0, totals), one(5, -2, 3, totals), one(1.0, 2, 0, totals);
  const LossMetrics m = metrics(totals);
  EXPECT_EQ(m.clip_fraction_high, .25);
  EXPECT_EQ(m.clip_fraction_low, .25);
  EXPECT_EQ(m.clip_fraction_dual, .25);
  EXPECT_NEAR(m.ppo_kl, -(std::log(1.5) + std::log(.5) + std::log(5)) / 4, 1e-6);
}

TEST(Cispo, ClippedTokensKeepAGradient) {
  Tokens t;
  t.add({static_cast<float>(std::log(3.0))}, 2);
  LossOptions o;
  o.policy = PolicyLoss::kCispo, o.clip_low = 1, o.clip_high = 0.5;
  LossTotals totals;
  const auto r = policy_loss(t.view(), o, counted(t, o.aggregation), totals);
  EXPECT_NEAR(r->dloss_dlogprob[0], -1.5 * 2, 1e-6);
  EXPECT_NEAR(r->loss, -1.5 * 2 * t.logprob[0], 1e-6);
}

TEST(Importance, IsTruncatedDetachedAndCounted) {
  Tokens t;
  t.add({0.0f, 0.0f, 0.0f}, 1);
  t.behaviour = {-2.0f, -1.0f, 0.0f}; // train / sampler: e, 1, 1/e
  LossOptions o;
  o.anchor = RatioAnchor::kProximal;
  o.aggregation = Aggregation::kTokenMean;
  const auto slopes = [&](Importance kind, double low, double high) {
    o.importance = kind, o.importance_low = low, o.importance_high = high;
    LossTotals totals;
    auto g = policy_loss(t.view(), o, counted(t, o.aggregation), totals)->dloss_dlogprob;
    for (float& x : g) x *= -3;
    return g;
  };
  const float e = std::exp(1.0f);
  EXPECT_EQ(slopes(Importance::kNone, 0, 2), (std::vector<float>{1, 1, 1}));
  const auto token = slopes(Importance::kToken, 0.5, 2);
  EXPECT_NEAR(token[0], 2, 1e-6);
  EXPECT_NEAR(token[1], 1, 1e-6);
  EXPECT_NEAR(token[2], .5, 1e-6);
  const auto loose = slopes(Importance::kToken, 0, 10);
  EXPECT_NEAR(loose[0], e, 1e-6);
  EXPECT_NEAR(loose[2], 1 / e, 1e-6);
  const auto masked = slopes(Importance::kMask, 0.5, 2);
  EXPECT_EQ(masked[0], 0);
  EXPECT_NEAR(masked[1], 1, 1e-6);
  EXPECT_EQ(masked[2], 0);
  t.behaviour = {-2.0f, -1.0f, -1.0f}; // whole sequence: e
  EXPECT_NEAR(slopes(Importance::kSequence, 0, 10)[2], e, 1e-6);
  EXPECT_NEAR(slopes(Importance::kSequence, 0, 2)[2], 2, 1e-6);
}

// The ratio to the sampler stays finite on broken samples, and then carries no gradient.
TEST(Clip, HugeRatiosAreBounded) {
  Tokens t;
  t.add({90.0f}, -1);
  LossOptions o;
  LossTotals totals;
  const auto r = policy_loss(t.view(), o, counted(t, o.aggregation), totals);
  EXPECT_NEAR(r->loss, std::exp(20.0), 1);
  EXPECT_EQ(r->dloss_dlogprob[0], 0);
}

TEST(PolicyLoss, BrokenNumbersOfTrainedTokensAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::function<void(Tokens&)>> breaks = {
      [&](Tokens& t) { t.logprob[3] = nan; },
      [&](Tokens& t) { t.behaviour[3] = -std::numeric_limits<float>::infinity(); },
      [&](Tokens& t) { t.advantage[3] = nan; },
      [&](Tokens& t) { t.reference[3] = nan; },
      [&](Tokens& t) { t.proximal[3] = nan; },
  };
  for (const auto& break_it : breaks) {
    Tokens t;
    t.add({0, 0}, 1), t.add({0, 0}, 1);
    t.reference.assign(4, -1), t.proximal.assign(4, -1);
    break_it(t);
    LossOptions o;
    o.kl.coefficient = 0.1;
    LossTotals totals;
    const auto r = policy_loss(t.view(), o, counted(t, o.aggregation), totals);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(r.error().message.find("token 1 of sequence 1"), std::string::npos) << r.error().message;
    EXPECT_EQ(totals.tokens, 0);
  }
}

TEST(PolicyLoss, UnequalArraysAreRefused) {
  Tokens t;
  t.add({0, 0}, 1);
  LossOptions o;
  LossTotals totals;
  const Denominator d = counted(t, o.aggregation);
  o.kl.coefficient = 1; // no reference given
  EXPECT_EQ(policy_loss(t.view(), o, d, totals).error().code, ErrorCode::kInvalidArgument);
  o.kl.coefficient = 0;
  t.sequences = {{0, 1}};
  EXPECT_EQ(policy_loss(t.view(), o, d, totals).error().code, ErrorCode::kInvalidArgument);
  t.sequences = {{0, 2}};
  t.behaviour.pop_back();
  EXPECT_EQ(policy_loss(t.view(), o, d, totals).error().code, ErrorCode::kInvalidArgument);
}

/// A random batch with three sequences and a mask.
Tokens random_tokens(std::uint64_t seed) {
  Rng rng(seed, RngStream::kTest);
  Tokens t;
  for (int n : {5, 1, 8}) {
    const auto begin = static_cast<std::int32_t>(t.mask.size());
    const auto advantage = static_cast<float>(rng.normal());
    for (int i = 0; i < n; ++i) {
      const double base = -1 - 2 * rng.uniform();
      t.behaviour.push_back(static_cast<float>(base));
      t.proximal.push_back(static_cast<float>(base + 0.15 * rng.normal()));
      t.logprob.push_back(static_cast<float>(base + 0.2 * rng.normal()));
      t.reference.push_back(static_cast<float>(base + 0.3 * rng.normal()));
      t.advantage.push_back(advantage);
      t.mask.push_back(i == 0 || rng.uniform() < 0.8 ? 1 : 0);
    }
    t.sequences.push_back({begin, begin + n});
  }
  return t;
}

/// Central difference of the loss by logprob[i]; steps of float inputs are measured, not assumed.
double slope(Tokens t, const LossOptions& o, std::size_t i) {
  const float at = t.logprob[i];
  const float up = at + 1e-3f, down = at - 1e-3f;
  t.logprob[i] = up;
  const double high = value(t, o);
  t.logprob[i] = down;
  return (high - value(t, o)) / (static_cast<double>(up) - static_cast<double>(down));
}

TEST(Gradient, EqualsFiniteDifferences) {
  int compared = 0;
  for (PolicyLoss policy : {PolicyLoss::kClip, PolicyLoss::kGspo})
    for (RatioAnchor anchor : {RatioAnchor::kBehaviour, RatioAnchor::kProximal})
      for (Importance importance : {Importance::kNone, Importance::kToken, Importance::kSequence})
        for (Aggregation aggregation : {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean, Aggregation::kConstant})
          for (double kl : {0.0, 0.3}) {
            if (policy == PolicyLoss::kGspo && aggregation != Aggregation::kSeqMeanTokenMean) continue;
            LossOptions o;
            o.policy = policy, o.anchor = anchor, o.aggregation = aggregation, o.constant_tokens = 10;
            o.importance = anchor == RatioAnchor::kProximal ? importance : Importance::kNone;
            o.dual_clip = policy == PolicyLoss::kClip ? 3 : 0;
            // k2's ratio is a constant by design, so the other two are compared: their gradient goes through it.
            o.kl = {kl, importance == Importance::kToken ? KlEstimator::kK1 : KlEstimator::kK3, KlWeight::kRatio};
            for (std::uint64_t seed = 0; seed < 3; ++seed) {
              const Tokens t = random_tokens(seed);
              LossTotals totals;
              const auto r = policy_loss(t.view(), o, counted(t, aggregation, 10), totals);
              ASSERT_TRUE(r);
              for (std::size_t i = 0; i < t.mask.size(); ++i) {
                if (t.mask[i] == 0) {
                  ASSERT_EQ(r->dloss_dlogprob[i], 0);
                }
                // Away from the kinks of the clip, which a difference would straddle.
                const double d = t.logprob[i] - (anchor == RatioAnchor::kBehaviour ? t.behaviour[i] : t.proximal[i]);
                if (std::abs(std::exp(d) - 1.2) < 5e-3 || std::abs(std::exp(d) - 0.8) < 5e-3) continue;
                ASSERT_NEAR(r->dloss_dlogprob[i], slope(t, o, i), 2e-6) << "token " << i << " seed " << seed;
                ++compared;
              }
            }
          }
  EXPECT_GT(compared, 1000);
}

// With the proximal log-probs left out they are the trainer's own: ratio 1, and a gradient of -A w.
TEST(Gradient, OneUpdatePerBatchHasRatioOne) {
  Tokens t = random_tokens(5);
  LossOptions o;
  o.anchor = RatioAnchor::kProximal, o.importance = Importance::kToken;
  LossTotals with_copy, without;
  t.proximal = t.logprob;
  const auto a = policy_loss(t.view(), o, counted(t, o.aggregation), with_copy);
  t.proximal.clear();
  const auto b = policy_loss(t.view(), o, counted(t, o.aggregation), without);
  EXPECT_EQ(a->dloss_dlogprob, b->dloss_dlogprob);
  EXPECT_EQ(metrics(without).ratio_mean, 1);
  EXPECT_EQ(metrics(without).clip_fraction, 0);
}

// The same bits for every cut of the same order, totals included.
TEST(PolicyLoss, CutsGiveTheSameBits) {
  const Tokens t = random_tokens(11);
  for (PolicyLoss policy : {PolicyLoss::kClip, PolicyLoss::kGspo, PolicyLoss::kCispo}) {
    LossOptions o;
    o.policy = policy;
    o.kl.coefficient = 0.1;
    const Denominator d = counted(t, o.aggregation);
    LossTotals whole, parts;
    const auto all = policy_loss(t.view(), o, d, whole);
    std::vector<float> joined;
    for (const SequenceRange& s : t.sequences) {
      const auto from = static_cast<std::size_t>(s.begin), n = static_cast<std::size_t>(s.end - s.begin);
      const TokenBatch view = t.view();
      const SequenceRange own[] = {{0, s.end - s.begin}};
      TokenBatch part;
      part.logprob = view.logprob.subspan(from, n), part.behaviour_logprob = view.behaviour_logprob.subspan(from, n);
      part.reference_logprob = view.reference_logprob.subspan(from, n), part.advantage = view.advantage.subspan(from, n);
      part.mask = view.mask.subspan(from, n), part.sequences = own;
      const auto r = policy_loss(part, o, d, parts);
      joined.insert(joined.end(), r->dloss_dlogprob.begin(), r->dloss_dlogprob.end());
    }
    EXPECT_EQ(joined, all->dloss_dlogprob);
    EXPECT_EQ(whole.loss, parts.loss);
    EXPECT_EQ(whole.kl_loss, parts.kl_loss);
    EXPECT_EQ(whole.ratio, parts.ratio);
  }
}

} // namespace
} // namespace troupe::rl
