#include "kernels/sampling.h"

#include "kernels/cpu/reference.h"
#include "kernels/logprob.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<std::int64_t> kVocabularies = {1, 2, 15, 16, 17, 63, 64, 65, 300, 4099};

/// One row per uniform number, all over the same logits.
std::vector<SampleRow> drawn(const Floats& logits, float temperature, const std::vector<double>& uniforms) {
  std::vector<SampleRow> rows;
  for (double u : uniforms) rows.push_back({logits.data(), u, temperature});
  sample_rows(rows.data(), static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(logits.size()));
  return rows;
}

std::vector<double> grid(int n) {
  std::vector<double> uniforms;
  for (int i = 0; i < n; ++i) uniforms.push_back((i + 0.5) / n);
  uniforms.push_back(0);
  uniforms.push_back(std::nextafter(1.0, 0.0));
  return uniforms;
}

TEST(SampleRows, DrawsWhatFloat64DrawsButForTheEdgesOfAToken) {
  for (std::int64_t vocab : kVocabularies) {
    for (float temperature : {0.7f, 1.0f, 3.0f}) {
      SCOPED_TRACE(std::to_string(vocab) + " at " + std::to_string(temperature));
      const Floats logits = testing::filled(vocab, static_cast<std::uint64_t>(vocab), 4);
      const auto uniforms = grid(200);
      testing::for_variants([&] {
        const auto rows = drawn(logits, temperature, uniforms);
        for (const SampleRow& row : rows) {
          const auto want = reference::sample(testing::widened(logits), static_cast<double>(temperature), row.uniform);
          ASSERT_GE(row.id, 0);
          if (row.id == want.id) continue;
          const auto lower = static_cast<std::size_t>(std::min<std::int64_t>(row.id, want.id < 0 ? vocab : want.id));
          EXPECT_NEAR(want.cumulative[lower], row.uniform, 1e-5) << row.id << " instead of " << want.id;
        }
      });
    }
  }
}

TEST(SampleRows, TheSameTokensAndBitsInEveryVariantAndTheLogProbOfTheScorer) {
  for (std::int64_t vocab : kVocabularies) {
    for (float temperature : {0.0f, 0.7f, 1.0f}) {
      SCOPED_TRACE(std::to_string(vocab) + " at " + std::to_string(temperature));
      const Floats logits = testing::filled(vocab, 7, 5);
      const auto first = drawn(logits, temperature, grid(50));
      testing::for_variants([&] {
        const auto rows = drawn(logits, temperature, grid(50));
        for (std::size_t i = 0; i < rows.size(); ++i) {
          EXPECT_EQ(rows[i].id, first[i].id);
          float scored = 0;
          LogprobForward a;
          a.logits = logits.data();
          a.targets = &rows[i].id;
          a.logprob = &scored;
          a.rows = 1;
          a.vocab = vocab;
          a.temperature = temperature == 0 ? 1 : temperature;
          logprob_forward(a);
          EXPECT_EQ(testing::bit_difference(&rows[i].logprob, &scored, 1), "");
        }
      });
    }
  }
}

TEST(SampleRows, ARowDoesNotSeeItsNeighbours) {
  const std::int64_t vocab = 100;
  const Floats many = testing::filled(20 * vocab, 8, 3);
  std::vector<SampleRow> batch;
  for (std::int64_t i = 0; i < 20; ++i)
    batch.push_back(
        {&many[static_cast<std::size_t>(i * vocab)], 0.05 * static_cast<double>(i), i % 3 == 0 ? 0.0f : 0.5f});
  std::vector<SampleRow> alone = batch;
  for (SampleRow& row : alone) sample_rows(&row, 1, vocab);
  testing::for_variants([&] {
    sample_rows(batch.data(), 20, vocab);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(batch[i].id, alone[i].id);
      EXPECT_EQ(testing::bit_difference(&batch[i].logprob, &alone[i].logprob, 1), "");
    }
  });
}

TEST(SampleRows, ImpossibleTokensAreNeverDrawn) {
  for (std::int64_t vocab : {5, 40, 130}) {
    Floats logits(static_cast<std::size_t>(vocab), -kInf);
    logits[1] = 0;
    logits[3] = 0;
    testing::for_variants([&] {
      const auto rows = drawn(logits, 1, {0, 0.25, 0.49, 0.51, 0.75, std::nextafter(1.0, 0.0)});
      for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].id, i < 3 ? 1 : 3) << vocab;
    });
  }
  Floats last(64, -kInf);
  last[63] = -5;
  EXPECT_EQ(drawn(last, 1, {0}).front().id, 63);
  Floats far(64, 0);  // all but one underflow
  far[20] = 300;
  for (const SampleRow& row : drawn(far, 1, grid(20))) EXPECT_EQ(row.id, 20);
}

TEST(SampleRows, GreedyTakesTheLowestIdOfTheLargest) {
  Floats logits(50, 1);
  logits[17] = logits[33] = 4;
  testing::for_variants([&] {
    for (const SampleRow& row : drawn(logits, 0, {0, 0.9})) EXPECT_EQ(row.id, 17);
  });
}

TEST(SampleRows, LogitsThatAreNotFiniteGiveNoToken) {
  const float nan = std::nanf("");
  for (const Floats& logits : {Floats{0, nan, 1}, {kInf, 0, 0}, {-kInf, -kInf, -kInf}, {nan, nan, nan}}) {
    for (float temperature : {0.0f, 0.5f, 1.0f}) {
      testing::for_variants([&] {
        const auto rows = drawn(logits, temperature, {0.5});
        EXPECT_EQ(rows[0].id, -1);
        EXPECT_TRUE(std::isnan(rows[0].logprob));
      });
    }
    Floats weights(16);
    EXPECT_TRUE(std::isnan(softmax_weights(logits.data(), 3, 1, weights.data())));
  }
}

TEST(SoftmaxWeights, TheLargestIsOneAndTheSumIsTheirs) {
  for (std::int64_t vocab : kVocabularies) {
    const Floats logits = testing::filled(vocab, 9, 4);
    testing::for_variants([&] {
      Floats weights(static_cast<std::size_t>((vocab + 15) / 16 * 16), -7);
      const double total = softmax_weights(logits.data(), vocab, 0.8f, weights.data());
      const float largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const double right = std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / 0.8);
        EXPECT_NEAR(static_cast<double>(weights[i]), right, 2e-6);
        sum += static_cast<double>(weights[i]);
      }
      EXPECT_EQ(*std::max_element(weights.begin(), weights.begin() + vocab), 1.0f);
      EXPECT_NEAR(total, sum, 1e-6 * sum);
    });
  }
}

TEST(SampleRowsDeath, RefusesATemperatureBelowZero) {
  const Floats logits = {1, 2};
  SampleRow row{logits.data(), 0, -1};
  EXPECT_DEATH(sample_rows(&row, 1, 2), "temperature");
}

}  // namespace
}  // namespace troupe::kernels
