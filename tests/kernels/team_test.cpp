#include "kernels/team.h"

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "kernels/cpu/parallel.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

/// Restores the number of threads.
class Team : public ::testing::Test {
 protected:
  void SetUp() override { set_max_threads(3); }
  void TearDown() override { set_max_threads(before_); }
  const int before_ = max_threads();
};

TEST_F(Team, EveryPartOfEveryJobRunsOnce) {
  with_team([] {
    for (int job = 0; job < 3000; ++job) {
      const int parts = 1 + job % 7;
      std::vector<std::atomic<int>> ran(static_cast<std::size_t>(parts));
      run_parts(parts, [&](int part) { ++ran[static_cast<std::size_t>(part)]; });
      for (const auto& count : ran) ASSERT_EQ(count, 1) << "job " << job;
    }
  });
}

TEST_F(Team, OthersTakeParts) {
#ifdef _OPENMP
  std::set<std::thread::id> seen;
  with_team([&] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (seen.size() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::vector<std::thread::id> ids(3);
      run_parts(3, [&](int part) {
        ids[static_cast<std::size_t>(part)] = std::this_thread::get_id();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      });
      seen.insert(ids.begin(), ids.end());
    }
  });
  EXPECT_GE(seen.size(), 2u);
#else
  GTEST_SKIP() << "a build without OpenMP has one thread";
#endif
}

TEST_F(Team, SmallWorkIsSplitInsideAndNotOutside) {
  EXPECT_EQ(threads_for(1e5), 1);
  int inside = 0;
  int in_a_part = 0;
  with_team([&] {
    inside = threads_for(1e5);
    run_parts(2, [&](int part) {
      if (part == 0) in_a_part = threads_for(1e9);
    });
  });
  EXPECT_EQ(in_a_part, 1) << "a part is one thread's work";
  EXPECT_EQ(threads_for(1e5), 1) << "the team is closed";
#ifdef _OPENMP
  EXPECT_EQ(inside, 3);
#endif
}

TEST_F(Team, WhatIsThrownComesOutAndTheTeamIsClosed) {
  EXPECT_THROW(with_team([] { throw std::runtime_error("a bad batch"); }), std::runtime_error);
  EXPECT_EQ(team_threads(), 0);
  int ran = 0;
  with_team([&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

TEST_F(Team, InsideATeamOrWithOneThreadItIsACall) {
  int depth = 0;
  with_team([&] {
    const auto outer = std::this_thread::get_id();
    with_team([&] {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++depth;
    });
    ++depth;
  });
  EXPECT_EQ(depth, 2);
  set_max_threads(1);
  with_team([&] { EXPECT_EQ(team_threads(), 0); });
}

}  // namespace
}  // namespace troupe::kernels
