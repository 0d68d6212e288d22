#include "kernels/logprob.h"

#include "kernels/cpu/reference.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

struct Rows {
  Floats logprob, entropy, lse;
  std::vector<std::int32_t> argmax;
};

Rows score(const Floats& logits, const std::vector<std::int32_t>& targets, std::int64_t vocab, std::int64_t ldl,
           float t) {
  const std::size_t n = targets.size();
  Rows r{Floats(n), Floats(n), Floats(n), std::vector<std::int32_t>(n)};
  LogprobForward a;
  a.logits = logits.data();
  a.targets = targets.data();
  a.logprob = r.logprob.data();
  a.entropy = r.entropy.data();
  a.lse = r.lse.data();
  a.argmax = r.argmax.data();
  a.rows = static_cast<std::int64_t>(n);
  a.vocab = vocab;
  a.ldl = ldl;
  a.temperature = t;
  logprob_forward(a);
  return r;
}

std::vector<std::int32_t> some_targets(std::int64_t rows, std::int64_t vocab) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<std::int32_t>(i * 7919 % vocab));
  return targets;
}

void expect_same(const Rows& a, const Rows& b) {
  EXPECT_EQ(testing::bit_difference(a.logprob, b.logprob), "");
  EXPECT_EQ(testing::bit_difference(a.entropy, b.entropy), "");
  EXPECT_EQ(testing::bit_difference(a.lse, b.lse), "");
  EXPECT_EQ(a.argmax, b.argmax);
}

// V08 of cases/reported_faults.md: temperature divides the logits, not the log-probabilities.
TEST(Logprob, TemperatureDividesTheLogits) {
  const Floats logits = {2, 0, -1};
  const float right[] = {-0.020581f, -4.020581f, -6.020581f};
  testing::for_variants([&] {
    double mass = 0;
    for (std::int32_t token = 0; token < 3; ++token) {
      const Rows r = score(logits, {token}, 3, 3, 0.5f);
      EXPECT_NEAR(r.logprob[0], right[token], 1e-6);
      mass += std::exp(static_cast<double>(r.logprob[0]));
    }
    EXPECT_NEAR(mass, 1, 1e-6);
  });
}

// V08: rows that only pad the vocabulary take no probability.
TEST(Logprob, PaddingRowsTakeNoProbability) {
  testing::for_variants([&] { EXPECT_NEAR(score({2, 1, 0, 0}, {0}, 3, 4, 1).logprob[0], -0.407606f, 1e-6); });
}

TEST(Logprob, BitsDoNotDependOnTheAmountOfPaddingNorOnWhatItHolds) {
  for (std::int64_t vocab : {1, 3, 16, 63, 64, 65, 1000, 4097}) {
    SCOPED_TRACE(vocab);
    const Floats row = testing::filled(vocab, 1, 8);
    const Rows want = score(row, {static_cast<std::int32_t>(vocab - 1)}, vocab, vocab, 0.7f);
    testing::for_variants([&] {
      for (std::int64_t padding : {1, 15, 16, 17, 64, 127}) {
        for (float filler : {0.0f, 1e30f, std::nanf("")}) {
          Floats padded = row;
          padded.resize(static_cast<std::size_t>(vocab + padding), filler);
          expect_same(score(padded, {static_cast<std::int32_t>(vocab - 1)}, vocab, vocab + padding, 0.7f), want);
        }
      }
    });
  }
}

TEST(Logprob, ProbabilitiesSumToOneAtEveryTemperature) {
  const std::int64_t vocab = 300;
  const Floats row = testing::filled(vocab, 2, 5);
  for (float t : {0.1f, 0.5f, 0.7f, 1.0f, 1.3f, 3.0f, 100.0f}) {
    Floats rows;
    std::vector<std::int32_t> targets;
    for (std::int32_t i = 0; i < vocab; ++i) {
      rows.insert(rows.end(), row.begin(), row.end());
      targets.push_back(i);
    }
    const Rows r = score(rows, targets, vocab, vocab, t);
    double mass = 0;
    double entropy = 0;
    for (float lp : r.logprob) {
      mass += std::exp(static_cast<double>(lp));
      entropy -= std::exp(static_cast<double>(lp)) * static_cast<double>(lp);
    }
    EXPECT_NEAR(mass, 1, 2e-6) << t;
    EXPECT_NEAR(r.entropy[0], entropy, 1e-5) << t;
  }
}

TEST(Logprob, ErrorAndBitsOverVocabulariesRowsVariantsAndThreads) {
  for (std::int64_t vocab : {2, 17, 64, 100, 257, 4096, 50257}) {
    for (float t : {1.0f, 0.7f}) {
      SCOPED_TRACE(std::to_string(vocab) + " at " + std::to_string(t));
      const std::int64_t rows = vocab > 5000 ? 5 : 64;
      const Floats logits = testing::filled(rows * vocab, 3, 12);
      const auto targets = some_targets(rows, vocab);
      Rows want = score(logits, targets, vocab, vocab, t);
      testing::for_variants([&] {
        expect_same(score(logits, targets, vocab, vocab, t), want);
        const Floats last(logits.end() - vocab, logits.end());
        const Rows alone = score(last, {targets.back()}, vocab, vocab, t);
        EXPECT_EQ(alone.logprob[0], want.logprob.back());
        EXPECT_EQ(alone.entropy[0], want.entropy.back());
      });
      for (std::int64_t i = 0; i < rows; ++i) {
        const Doubles row(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
        const auto at = static_cast<std::size_t>(i);
        const auto right = reference::logprob(row, targets[at], static_cast<double>(t));
        EXPECT_NEAR(want.logprob[at], right.logprob, 4e-6);
        EXPECT_NEAR(want.entropy[at], right.entropy, 4e-6);
        EXPECT_NEAR(want.lse[at], right.lse, 4e-6);
        EXPECT_EQ(want.argmax[at], std::max_element(row.begin(), row.end()) - row.begin());
      }
    }
  }
}

TEST(Logprob, TheFirstOfEqualLogitsIsTheArgmax) {
  for (std::int32_t where : {0, 3, 15, 16, 40, 65}) {
    Floats row(70, -1);
    for (std::size_t i = static_cast<std::size_t>(where); i < 70; i += 2) row[i] = 4;
    testing::for_variants([&] { EXPECT_EQ(score(row, {0}, 70, 70, 1).argmax[0], where); });
  }
}

TEST(Logprob, ForbiddenTokensHaveNoProbabilityAndDoNotSpoilTheEntropy) {
  const float inf = std::numeric_limits<float>::infinity();
  testing::for_variants([&] {
    const Rows r = score({1, -inf, 1, -inf}, {0}, 4, 4, 1);
    EXPECT_NEAR(r.logprob[0], std::log(0.5), 1e-6);
    EXPECT_NEAR(r.entropy[0], std::log(2.0), 1e-6);
    EXPECT_EQ(score({1, -inf, 1, -inf}, {1}, 4, 4, 1).logprob[0], -inf);
    const Rows nan = score({1, std::nanf(""), 1, 2}, {0}, 4, 4, 1);
    EXPECT_TRUE(std::isnan(nan.logprob[0]) && std::isnan(nan.entropy[0]) && std::isnan(nan.lse[0]));
  });
}

TEST(LogprobBackward, ErrorBitsPaddingAndInPlace) {
  for (std::int64_t vocab : {3, 64, 257, 2000}) {
    SCOPED_TRACE(vocab);
    const std::int64_t rows = 20, ld = vocab + 5;
    const float t = 0.8f;
    const Floats logits = testing::filled(rows * ld, 4, 6);
    const auto targets = some_targets(rows, vocab);
    const Rows f = score(logits, targets, vocab, ld, t);
    const Floats dlogprob = testing::filled(rows, 5);
    const Floats dentropy = testing::filled(rows, 6);
    Floats want;
    testing::for_variants([&] {
      Floats grad = logits;
      LogprobBackward b;
      b.logits = grad.data();
      b.targets = targets.data();
      b.lse = f.lse.data();
      b.entropy = f.entropy.data();
      b.dlogprob = dlogprob.data();
      b.dentropy = dentropy.data();
      b.dlogits = grad.data();
      b.rows = rows;
      b.vocab = vocab;
      b.ldl = ld;
      b.temperature = t;
      logprob_backward(b);
      if (want.empty()) want = grad;
      EXPECT_EQ(testing::bit_difference(grad, want), "");
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      const Doubles row(logits.begin() + i * ld, logits.begin() + i * ld + vocab);
      const auto at = static_cast<std::size_t>(i);
      const Doubles right =
          reference::logprob_backward(row, targets[at], static_cast<double>(t), dlogprob[at], dentropy[at]);
      const Floats got(want.begin() + i * ld, want.begin() + i * ld + vocab);
      EXPECT_LT(testing::errors_of(got, right).largest, 3e-6);
      for (std::int64_t c = vocab; c < ld; ++c) EXPECT_EQ(want[static_cast<std::size_t>(i * ld + c)], 0.0f);
    }
  }
}

TEST(LogprobBackward, ReferenceAgreesWithFiniteDifferences) {
  const Doubles row = testing::widened(testing::filled(12, 7, 3));
  const Doubles grad = reference::logprob_backward(row, 5, 0.6, 1.3, -0.4);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto f = [&](double shift) {
      Doubles at = row;
      at[i] += shift;
      const auto r = reference::logprob(at, 5, 0.6);
      return 1.3 * r.logprob - 0.4 * r.entropy;
    };
    EXPECT_NEAR(grad[i], (f(1e-5) - f(-1e-5)) / 2e-5, 1e-8);
  }
}

TEST(LogprobDeath, RefusesATargetOutsideTheRealVocabulary) {
  EXPECT_DEATH(score({1, 2, 3, 4}, {3}, 3, 4, 1), "not in the vocabulary");
  EXPECT_DEATH(score({1, 2, 3, 4}, {0}, 4, 4, 0), "temperature");
}

}  // namespace
}  // namespace troupe::kernels
