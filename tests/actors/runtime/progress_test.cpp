#include "actors/runtime/progress.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "actors/runtime/work_thread.h"

namespace troupe::actors {
namespace {

struct Pages {
  FileDescriptor file = WorkProgress::create_file().value();
  WorkProgress ours = WorkProgress::map(file.get()).value();
  WorkProgress agents = WorkProgress::map(file.get()).value();
};

TEST(WorkProgress, TheAgentSeesWhatTheThreadDoes) {
  Pages pages;
  EXPECT_FALSE(pages.agents.read().busy);
  pages.ours.begin();
  const WorkReading first = pages.agents.read();
  EXPECT_TRUE(first.busy);
  pages.ours.move();
  EXPECT_GT(pages.agents.read().moves, first.moves);
  pages.ours.end();
  EXPECT_FALSE(pages.agents.read().busy);
}

TEST(WorkProgress, AFileThatIsNoPageIsRefused) {
  const FileDescriptor other(::memfd_create("other", 0));
  EXPECT_FALSE(WorkProgress::map(other.get()));
  EXPECT_FALSE(WorkProgress::map(-1));
}

TEST(WorkProgress, NobodyCanMakeTheReadersPageVanish) {
  Pages pages;
  EXPECT_NE(::ftruncate(pages.file.get(), 0), 0);
}

TEST(WorkThread, IsBusyWhileACommandRunsAndNotWhenItWaits) {
  Pages pages;
  std::mutex mutex;
  std::condition_variable changed;
  int stage = 0;
  const auto wait_for = [&](int wanted) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return stage == wanted; });
  };
  const auto set = [&](int to) {
    { const std::lock_guard lock(mutex); stage = to; }
    changed.notify_all();
  };
  WorkThread thread(4, {}, &pages.ours);
  ASSERT_TRUE(thread.post([&] { set(1); wait_for(2); }));
  ASSERT_TRUE(wait_for(1));
  EXPECT_TRUE(pages.agents.read().busy);
  set(2);
  for (int i = 0; i < 1000 && pages.agents.read().busy; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(pages.agents.read().busy);
}

} // namespace
} // namespace troupe::actors
