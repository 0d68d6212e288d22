// Collectives of two, three and four ranks: threads of this process where only the sums matter, processes where one of them dies.
#include "comm/collectives.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/file.h"
#include "comm/gloo/gloo_group.h"

namespace troupe::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

class MemoryStore final : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }
  Result<std::string> get(const std::string& key, Duration deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); })) return fail(ErrorCode::kTimeout, key + " is not there");
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// For processes: one file a key.
class FolderStore final : public Store {
 public:
  explicit FolderStore(fs::path folder) : folder_(std::move(folder)) {}
  Status set(const std::string& key, const std::string& value) override { return write_file_atomic(file(key), value); }
  Result<std::string> get(const std::string& key, Duration deadline) override {
    for (const auto until = Clock::now() + deadline;; std::this_thread::sleep_for(2ms)) {
      if (fs::exists(file(key))) return read_file(file(key));
      if (Clock::now() >= until) return fail(ErrorCode::kTimeout, key + " is not there");
    }
  }

 private:
  fs::path file(std::string key) const {
    for (char& c : key)
      if (c == '/') c = '_';
    return folder_ / key;
  }
  fs::path folder_;
};

/// Runs `body` as every rank of a group, each on a thread of its own. Groups are closed when all are done.
void as_ranks(std::uint32_t ranks, const std::function<void(Collectives&)>& body, Duration deadline = 20s) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Collectives>> groups(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      auto group = connect_gloo(store, {"mesh 7", r, ranks, "127.0.0.1", deadline});
      ASSERT_TRUE(group) << group.error().message;
      groups[r] = std::move(*group);
      body(*groups[r]);
    });
  for (auto& thread : threads) thread.join();
}

// Values whose sum depends on the order in which they are added.
std::vector<float> values_of(std::uint32_t rank, std::size_t n) {
  std::mt19937 random(1000 + rank);
  std::vector<float> values(n);
  for (float& v : values) v = std::ldexp(static_cast<float>(random()) - 2e9F, static_cast<int>(random() % 24));
  return values;
}

std::vector<float> summed(std::uint32_t ranks, std::size_t n, Collectives& group) {
  auto values = values_of(group.rank(), n);
  const Status done = group.all_reduce(values);
  EXPECT_TRUE(done) << done.error().message;
  std::vector<double> wanted(n), scale(n);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto part = values_of(r, n);
    for (std::size_t i = 0; i < n; ++i) wanted[i] += part[i], scale[i] += std::abs(part[i]);
  }
  for (std::size_t i = 0; i < n; i += 1 + n / 97) EXPECT_NEAR(values[i], wanted[i], 1e-6 * scale[i]) << ranks << " ranks, value " << i << " of " << n;
  return values;
}

TEST(Collectives, SumsAreRightAndTheSameBitsOnEveryRankAndInEveryRun) {
  for (const std::uint32_t ranks : {2U, 3U, 4U}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{1 << 16} + 5}) {
      std::vector<std::vector<float>> all(2 * ranks);
      for (const std::uint32_t run : {0U, 1U})
        as_ranks(ranks, [&](Collectives& group) {
          // In the second run the ranks come at other times.
          if (run == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((group.rank() + 2) % ranks)));
          all[run * ranks + group.rank()] = summed(ranks, n, group);
        });
      for (const auto& other : all) EXPECT_EQ(std::memcmp(other.data(), all[0].data(), n * sizeof(float)), 0) << ranks << " ranks, " << n << " values";
    }
  }
}

// c10d's recorder is shared by all groups of a process and takes in a group at its first operation (see start_alone).
TEST(Collectives, ManyGroupsOfOneProcessBeginAtTheSameTime) {
  for (int round = 0; round < 12; ++round) as_ranks(4, [](Collectives& group) { ASSERT_TRUE(group.barrier()); });
}

TEST(Collectives, SumsOfDoublesAndOfNothing) {
  as_ranks(3, [](Collectives& group) {
    std::vector<double> values{1.0 + group.rank(), 1e-12};
    std::vector<float> none;
    ASSERT_TRUE(group.all_reduce(none));
    ASSERT_TRUE(group.all_reduce(values));
    EXPECT_EQ(values[0], 6.0);
    EXPECT_NEAR(values[1], 3e-12, 1e-26) << "not rounded to float";
    ASSERT_TRUE(group.all_reduce(none));
    ASSERT_TRUE(group.barrier());
  });
}

TEST(Collectives, BroadcastAndGather) {
  as_ranks(3, [](Collectives& group) {
    std::string text = group.rank() == 1 ? "from rank 1" : "           ";
    ASSERT_TRUE(group.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), 1));
    EXPECT_EQ(text, "from rank 1");
    EXPECT_FALSE(group.broadcast({}, 3));
    const auto blobs = group.all_gather(std::string(100 * group.rank(), static_cast<char>('a' + group.rank()))); // rank 0 gives nothing
    ASSERT_TRUE(blobs) << blobs.error().message;
    EXPECT_EQ(*blobs, (std::vector<std::string>{"", std::string(100, 'b'), std::string(200, 'c')}));
  });
}

// S04: a tensor larger than a bucket is sent in pieces, several small ones share a bucket, and empty ones disturb nobody.
TEST(Buckets, TensorsOfAnySizeAgainstBucketsOfAnySize) {
  const std::vector<std::size_t> sizes{150, 0, 1, 127, 128, 129, 0, 300, 3}; // 150 floats are 600 bytes, a bucket of 128 is 512
  as_ranks(2, [&](Collectives& group) {
    for (const std::size_t bucket : {std::size_t{7}, std::size_t{128}, std::size_t{838}, std::size_t{10000}}) {
      std::vector<std::vector<float>> tensors;
      std::vector<std::span<float>> views;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        tensors.emplace_back(sizes[t]);
        for (std::size_t i = 0; i < sizes[t]; ++i) tensors[t][i] = static_cast<float>(1000 * t + i + 1) * (group.rank() == 0 ? 1 : 2);
      }
      for (auto& tensor : tensors) views.emplace_back(tensor);
      ASSERT_TRUE(all_reduce_in_buckets(group, views, bucket));
      for (std::size_t t = 0; t < sizes.size(); ++t)
        for (std::size_t i = 0; i < sizes[t]; ++i) ASSERT_EQ(tensors[t][i], 3 * static_cast<float>(1000 * t + i + 1)) << "bucket " << bucket << ", tensor " << t;
    }
    ASSERT_TRUE(all_reduce_in_buckets(group, {}, 128));
    EXPECT_FALSE(all_reduce_in_buckets(group, {}, 0));
  });
}

TEST(Digests, TheRankAndTheTensorThatDifferAreNamed) {
  as_ranks(3, [](Collectives& group) {
    std::vector<NamedDigest> digests{{"a.weight", 1}, {"b.weight", 2}, {"c.weight", 3}};
    EXPECT_TRUE(expect_equal(group, digests));
    if (group.rank() == 2) digests[1].digest = 20;
    const Status differs = expect_equal(group, digests);
    ASSERT_FALSE(differs);
    EXPECT_EQ(differs.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(differs.error().message, "rank/2 and rank/0 do not hold the same bits of b.weight");
    if (group.rank() == 2) digests.pop_back();
    EXPECT_THAT(expect_equal(group, digests).error().message, HasSubstr("rank/2 holds 2 tensors, rank/0 3"));
  });
}

TEST(Abort, WakesWhoeverWaitsAndBreaksTheGroupForAll) {
  as_ranks(3, [](Collectives& group) {
    ASSERT_TRUE(group.barrier());
    const auto start = Clock::now();
    std::thread head;
    if (group.rank() == 2) std::this_thread::sleep_for(300ms); // does not take part
    else if (group.rank() == 0) head = std::thread([&] { std::this_thread::sleep_for(100ms), group.abort("rank/2 is lost: killed by signal 9"); });
    std::vector<float> values(1000);
    const Status done = group.all_reduce(values);
    if (head.joinable()) head.join();
    ASSERT_FALSE(done);
    EXPECT_LT(Clock::now() - start, 5s) << "long before the deadline: rank " << group.rank() << ": " << done.error().message;
    EXPECT_THAT(done.error().message, HasSubstr("all_reduce, operation 2 of rank/" + std::to_string(group.rank()) + " in mesh 7 (3 ranks), failed: "));
    if (group.rank() == 0) { EXPECT_THAT(done.error().message, HasSubstr("rank/2 is lost: killed by signal 9")); }
    EXPECT_EQ(group.barrier().error().message, done.error().message) << "a broken group stays broken";
  });
}

TEST(Deadline, AnOperationThatOneRankDoesNotJoinEndsAndNamesIt) {
  as_ranks(
      3,
      [](Collectives& group) {
        ASSERT_TRUE(group.barrier());
        if (group.rank() == 1) return; // alive, but it does not come
        const auto start = Clock::now();
        const Status done = group.barrier();
        const auto took = Clock::now() - start;
        ASSERT_FALSE(done);
        EXPECT_LE(took, 1s + 300ms);
        EXPECT_GE(took, 700ms);
        EXPECT_THAT(done.error().message, HasSubstr("barrier, operation 2"));
        EXPECT_THAT(done.error().message, HasSubstr("no sign of life from rank/1"));
      },
      1s);
}

TEST(Deadline, AGroupThatDoesNotComeAboutEndsTheAttempt) {
  const auto start = Clock::now();
  const auto group = connect_gloo(std::make_shared<MemoryStore>(), {"mesh 1", 0, 2, "127.0.0.1", 500ms});
  ASSERT_FALSE(group);
  EXPECT_LT(Clock::now() - start, 3s);
  EXPECT_THAT(group.error().message, HasSubstr("rank/0 could not connect to the other ranks of mesh 1 (2 ranks)"));
  EXPECT_FALSE(connect_gloo(std::make_shared<MemoryStore>(), {"mesh 1", 2, 2, "127.0.0.1", 1s}));
}

// Ranks as processes of their own: each writes what became of its operations into a file.
class DyingRanks : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override {
    for (const pid_t pid : pids) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
    fs::remove_all(folder);
  }
  void start(std::uint32_t ranks, Duration deadline) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const pid_t pid = ::fork();
      if (pid != 0) {
        pids.push_back(pid);
        continue;
      }
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      auto group = connect_gloo(std::make_shared<FolderStore>(folder), {"mesh 2", r, ranks, "127.0.0.1", deadline});
      std::vector<float> values(1 << 20);
      Status done;
      for (int i = 0; group && done; ++i) {
        done = (*group)->all_reduce(values);
        if (i == 10) std::ofstream(folder / ("running." + std::to_string(r)));
      }
      (void)write_file_atomic(folder / ("ended." + std::to_string(r)), group ? done.error().message : group.error().message);
      ::_exit(0);
    }
    for (std::uint32_t r = 0; r < ranks; ++r) ASSERT_TRUE(appears("running." + std::to_string(r), 30s));
  }
  bool appears(const std::string& name, Duration limit) const {
    for (const auto until = Clock::now() + limit; Clock::now() < until; std::this_thread::sleep_for(2ms))
      if (fs::exists(folder / name)) return true;
    return false;
  }
  void expect_named(std::uint32_t survivor, std::uint32_t dead) const {
    const std::string said = read_file(folder / ("ended." + std::to_string(survivor))).value_or("");
    EXPECT_THAT(said, HasSubstr("all_reduce, operation "));
    EXPECT_THAT(said, HasSubstr("rank/" + std::to_string(survivor) + " in mesh 2"));
    EXPECT_THAT(said, HasSubstr("no sign of life from rank/" + std::to_string(dead) + " "));
  }
  const fs::path folder = fs::temp_directory_path() / ("troupe_ranks." + std::to_string(::getpid()));
  std::vector<pid_t> pids;
};

TEST_F(DyingRanks, AKilledRankFailsTheOthersAtOnceAndIsNamed) {
  start(3, 20s);
  const auto start = Clock::now();
  ASSERT_EQ(::kill(pids[1], SIGKILL), 0);
  ASSERT_TRUE(appears("ended.0", 15s) && appears("ended.2", 15s));
  EXPECT_LT(Clock::now() - start, 5s);
  expect_named(0, 1);
  expect_named(2, 1);
}

TEST_F(DyingRanks, AFrozenRankFailsTheOthersWithinTheDeadlineAndIsNamed) {
  start(2, 1s);
  const auto start = Clock::now();
  ASSERT_EQ(::kill(pids[0], SIGSTOP), 0);
  ASSERT_TRUE(appears("ended.1", 10s));
  EXPECT_LT(Clock::now() - start, 1s + 500ms);
  expect_named(1, 0);
}

} // namespace
} // namespace troupe::comm
