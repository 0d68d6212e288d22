#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>

#include "tests/checkpoint/state.h"

namespace troupe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kNotPossibleHere = 77;

// Runs `body` in a child; its result is the exit status.
pid_t in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// A writer is killed at a random moment, again and again: what was acknowledged is there, and whatever is there is
// whole.
TEST(Crash, AKilledWriterLosesNothingThatItAcknowledged) {
  const ScratchFolder scratch;
  Repository repository(scratch.path() / "checkpoints");
  Rng rng(11, RngStream::kTest);
  std::uint64_t acknowledged = 1;
  const State first = state_of(1, 0, 4000);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(repository.write(first.layout, first.region, first.record).has_value());
  const auto one_write = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count());
  int with_remains = 0;
  for (int round = 0; round < 60; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t writer = in_child([&] {
      for (std::uint64_t step = acknowledged + 1;; ++step) {
        const State state = state_of(step, 0, 4000);
        if (!repository.write(state.layout, state.region, state.record, 2)) return 1;
        if (::write(pipe_ends[1], &step, sizeof step) != sizeof step) return 1;
      }
    });
    ::close(pipe_ends[1]);
    ::usleep(static_cast<useconds_t>(rng.below(4 * one_write + 1)));
    ::kill(writer, SIGKILL);
    EXPECT_EQ(wait_for(writer), 1000 + SIGKILL);
    for (std::uint64_t seen = 0; ::read(pipe_ends[0], &seen, sizeof seen) == sizeof seen;) acknowledged = seen;
    ::close(pipe_ends[0]);

    const auto newest = repository.newest_valid();
    ASSERT_TRUE(newest.has_value());
    EXPECT_TRUE(newest->skipped.empty()) << newest->skipped[0].reason;
    ASSERT_TRUE(newest->loaded.has_value());
    const std::uint64_t step = newest->loaded->record().version.step;
    EXPECT_GE(step, acknowledged);
    EXPECT_LE(step, acknowledged + 1);
    expect_state(*newest->loaded, state_of(step, 0, 4000));
    acknowledged = step;
    const auto left = entries(repository.folder());
    with_remains +=
        std::any_of(left.begin(), left.end(), [](const std::string& name) { return name.starts_with("."); });
    ASSERT_TRUE(repository.sweep().has_value());
  }
  EXPECT_GT(acknowledged, 1u);
  EXPECT_GT(with_remains, 0) << "no kill hit a write: the test proves nothing";
}

// What must hold after a write that failed: the old commit, nothing else, and a clear word.
int expect_clean_failure(Repository& repository, const State& state, std::optional<ErrorCode> code) {
  const auto failed = repository.write(state.layout, state.region, state.record, 1);
  if (failed) return 2;
  if (code && failed.error().code != *code) return 3;
  if (entries(repository.folder()) != std::vector<std::string>{"step-1.e0"}) return 4;
  const auto newest = repository.newest_valid();
  if (!newest || !newest->loaded || newest->loaded->record().version.step != 1) return 5;
  return 0;
}

// The file size limit stops the write at any byte, with and without the reservation seeing it first.
TEST(Crash, AWriteThatEndsEarlyLeavesNothing) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  const State first = state_of(1);
  ASSERT_TRUE(repository.write(first.layout, first.region, first.record).has_value());
  State next = state_of(2, 0, 300);
  next.record.blobs[0].bytes.assign(20000, 'l');  // longer than the state: the limit can hit any of the files
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{700}, rlim_t{5000}, rlim_t{9000}, rlim_t{15000}}) {
    const int status = wait_for(in_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit size{limit, limit};
      if (::setrlimit(RLIMIT_FSIZE, &size) != 0) return kNotPossibleHere;
      return expect_clean_failure(repository, next, std::nullopt);
    }));
    EXPECT_EQ(status, 0) << "limit " << limit;
  }
  ASSERT_TRUE(repository.write(next.layout, next.region, next.record, 1).has_value());  // and works once there is room
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"step-2.e0"});
}

TEST(Crash, AFullDiskIsReportedAndOldCommitsStay) {
  const ScratchFolder scratch;
  const int status = wait_for(in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNotPossibleHere;
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=1m") != 0) return kNotPossibleHere;
    Repository repository(scratch.path() / "checkpoints");
    const State first = state_of(1);
    if (!repository.write(first.layout, first.region, first.record)) return 1;
    const State large = state_of(2, 0, 60000);
    if (const int bad = expect_clean_failure(repository, large, ErrorCode::kResourceExhausted)) return bad;
    const State small = state_of(3);
    return repository.write(small.layout, small.region, small.record, 1) ? 0 : 6;
  }));
  if (status == kNotPossibleHere) GTEST_SKIP() << "needs a mount namespace";
  EXPECT_EQ(status, 0);
}

TEST(Crash, AFolderThatCannotBeWrittenIsNamed) {
  const ScratchFolder scratch;
  std::error_code ignored;
  fs::create_directory(scratch.path() / "real", ignored);
  ASSERT_EQ(::symlink("/proc/self/nothing", (scratch.path() / "gone").c_str()), 0);
  Repository repository(scratch.path() / "gone");
  const State state = state_of(1);
  const auto failed = repository.write(state.layout, state.region, state.record);
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find((scratch.path() / "gone").string()), std::string::npos)
      << failed.error().message;
}

}  // namespace
}  // namespace troupe::checkpoint
