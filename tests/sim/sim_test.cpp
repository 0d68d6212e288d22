// The protocol cores wired to simulated processes over bad links, by seed. A failing seed prints the shortest list of faults that makes it
// fail and the story of that run; it stays here as a regression test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "sim/simulate.h"

namespace troupe::sim {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Even seeds heal, odd ones do not.
Mode mode_of(std::uint64_t seed) { return seed % 2 == 0 ? Mode::kHeal : Mode::kSafety; }

constexpr std::uint64_t kShards = 4;

class Campaign : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Campaign, EverySeedKeepsTheInvariants) {
  const std::uint64_t count = from_environment("TROUPE_SIM_COUNT", TROUPE_SIM_SEEDS) / kShards;
  const std::uint64_t first = from_environment("TROUPE_SIM_FIRST", 1) + GetParam() * count;
  Trouble sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Mode mode = mode_of(seed);
    const Faults faults = faults_of(seed, mode);
    const Outcome outcome = simulate(seed, mode, faults);
    ASSERT_TRUE(outcome.violation.empty()) << explain(seed, mode, faults);
    sum += outcome.trouble;
  }
  if (count < 200) return;  // too few to reach every corner
  // The seeds must reach the corners, or the invariants above say little.
  for (const auto& [what, number] : std::vector<std::pair<const char*, std::uint64_t>>{{"events", sum.events},
                                                                                      {"duplicates", sum.duplicates},
                                                                                      {"late results", sum.late},
                                                                                      {"retries", sum.retries},
                                                                                      {"stale groups", sum.stale},
                                                                                      {"attempts used up", sum.attempts},
                                                                                      {"filtered", sum.filtered},
                                                                                      {"rolled back", sum.rolled_back},
                                                                                      {"fenced", sum.fenced},
                                                                                      {"stalls", sum.stalls},
                                                                                      {"evaluated", sum.evaluated},
                                                                                      {"epochs", sum.epochs},
                                                                                      {"heads", sum.heads},
                                                                                      {"adopted", sum.warm},
                                                                                      {"adopted a step ahead", sum.ahead},
                                                                                      {"cold", sum.cold},
                                                                                      {"records lost", sum.dropped_records},
                                                                                      {"commits", sum.commits},
                                                                                      {"runs done", sum.done}}) {
    std::printf("%s %llu, ", what, static_cast<unsigned long long>(number));
    EXPECT_GT(number, 0u) << what << " never happened";
  }
  for (std::size_t kind = static_cast<std::size_t>(FaultKind::kCrashWorker); kind < std::size(sum.faults); ++kind)
    EXPECT_GT(sum.faults[kind], 0u) << to_string(Fault{static_cast<FaultKind>(kind), {}, 0, 0, {}}) << " never happened";
  std::printf("in %llu seeds\n", static_cast<unsigned long long>(count));
}

INSTANTIATE_TEST_SUITE_P(Sim, Campaign, ::testing::Range(std::uint64_t{0}, kShards));

TEST(Sim, ASeedIsAWholeStory) {
  for (const std::uint64_t seed : {3, 18}) {
    const auto events = [&] { return simulate(seed, mode_of(seed), faults_of(seed, mode_of(seed))).trouble.events; };
    EXPECT_EQ(events(), events());
  }
}

TEST(Sim, WithoutFaultsARunJustEnds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = simulate(seed, Mode::kHeal, {});
    EXPECT_EQ(outcome.violation, "") << outcome.story;
    EXPECT_EQ(outcome.trouble.done, 1u);
    EXPECT_EQ(outcome.trouble.heads, 1u);
    EXPECT_EQ(outcome.trouble.rolled_back, 0u);
  }
}

TEST(Minimise, FindsTheFewThatAreNeeded) {
  Faults faults;
  for (std::uint64_t i = 0; i < 1000; ++i) faults.push_back({FaultKind::kLoseMessage, {}, i, 0, {}});
  const auto fails = [](const Faults& some) {
    const auto has = [&](std::uint64_t message) { return std::any_of(some.begin(), some.end(), [&](const Fault& f) { return f.message == message; }); };
    return has(7) && has(400) && has(999);
  };
  const Faults least = minimise(faults, fails, 1000);
  ASSERT_EQ(least.size(), 3u);
  EXPECT_EQ(least[0].message, 7u);
  EXPECT_EQ(least[1].message, 400u);
  EXPECT_EQ(least[2].message, 999u);
  int asked = 0;
  (void)minimise(faults, [&](const Faults& some) { return ++asked, fails(some); }, 50);
  EXPECT_LE(asked, 50);
}

// An "invariant" that no run keeps in which both the rank and the writer are killed: two faults explain it, whatever else happened.
TEST(Minimise, AFailingSeedIsToldInItsFewestFaults) {
  const auto broken = [](const Trouble& t) {
    const auto struck = [&](FaultKind kind) { return t.faults[static_cast<std::size_t>(kind)] > 0; };
    require(!struck(FaultKind::kCrashRank) || !struck(FaultKind::kCrashWriter), "rank and writer do not both die");
  };
  int told = 0;
  for (std::uint64_t seed = 1; seed <= 60 && told < 2; ++seed) {
    const Faults faults = faults_of(seed, mode_of(seed));
    if (simulate(seed, mode_of(seed), faults, broken).violation.empty()) continue;
    ++told;
    const std::string text = explain(seed, mode_of(seed), faults, broken);
    EXPECT_NE(text.find("seed " + std::to_string(seed)), std::string::npos) << text;
    EXPECT_NE(text.find("\n2 of " + std::to_string(faults.size()) + " faults are enough"), std::string::npos) << text;
    EXPECT_NE(text.find("kill -9 of a rank"), std::string::npos) << text;
    EXPECT_NE(text.find("kill -9 of the writer"), std::string::npos) << text;
    EXPECT_NE(text.find("start rank"), std::string::npos) << "the story: " << text;
  }
  EXPECT_EQ(told, 2);
}

} // namespace
} // namespace troupe::sim
