#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace troupe {
namespace {

// Known answers of Philox4x32-10 published with the generator (Random123 kat_vectors).
TEST(Rng, PhiloxMatchesPublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, ANumberDependsOnItsNameOnly) {
  Rng a(7, RngStream::kSampling, 3, 1);
  const auto direct = a.bits_at(10);
  for (int i = 0; i < 10; ++i) a.next();
  EXPECT_EQ(a.next(), direct);
}

TEST(Rng, StreamsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed : {1, 2})
    for (std::uint64_t a : {0, 1})
      for (std::uint32_t b : {0, 1})
        for (std::uint64_t i = 0; i < 100; ++i) seen.insert(Rng(seed, RngStream::kSampling, a, b).bits_at(i));
  EXPECT_EQ(seen.size(), 800u);
}

TEST(Rng, BelowIsUniformEnough) {
  Rng rng(1, RngStream::kTest);
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i) ++counts[rng.below(7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);
}

TEST(Rng, NormalHasUnitVariance) {
  Rng rng(2, RngStream::kTest);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = rng.normal();
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1, 0.02);
}

} // namespace
} // namespace troupe
