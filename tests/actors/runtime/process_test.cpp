#include "actors/runtime/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "actors/runtime/frame.h"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

struct Exits {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<pid_t, ExitStatus> seen;

  ProcessKeeper::OnExit callback() {
    return [this](pid_t pid, ExitStatus status) {
      const std::lock_guard lock(mutex);
      seen[pid] = status;
      changed.notify_all();
    };
  }
  std::optional<ExitStatus> wait_for(pid_t pid) {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, 10s, [&] { return seen.contains(pid); })) return std::nullopt;
    return seen[pid];
  }
};

ProcessSpec shell(FileDescriptor& exe, const std::string& script) {
  exe = *open_executable("/bin/sh");
  ProcessSpec spec;
  spec.executable = exe.get();
  spec.argv = {"sh", "-c", script};
  return spec;
}

TEST(ProcessKeeper, ReportsExitCodesAndSignals) {
  Exits exits;
  ProcessKeeper keeper(exits.callback());
  FileDescriptor exe;
  const auto three = keeper.start(shell(exe, "exit 3"));
  const auto sleeper = keeper.start(shell(exe, "exec sleep 100"));
  ASSERT_TRUE(three && sleeper);
  EXPECT_EQ(exits.wait_for(*three)->code, 3);
  EXPECT_TRUE(keeper.signal(*sleeper, SIGKILL));
  const auto killed = exits.wait_for(*sleeper);
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->signal, SIGKILL);
  EXPECT_EQ(to_string(*killed), "killed by SIGKILL");
  EXPECT_FALSE(keeper.signal(*sleeper, SIGKILL)) << "a reaped pid must never be signalled";
}

TEST(ProcessKeeper, GivesTheFrameAndNothingElse) {
  Exits exits;
  ProcessKeeper keeper(exits.callback());
  FileDescriptor exe;
  const auto folder = std::filesystem::temp_directory_path() / ("troupe_process_test." + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const FileDescriptor leaked(::dup(0)); // inheritable on purpose
  auto frame = frame_file("hello frame");
  ProcessSpec spec = shell(exe, "cat <&3; echo; ls /proc/self/fd | tr '\\n' ' '");
  spec.descriptors = {{frame->get(), 3}};
  spec.output = folder / "log";
  const auto pid = keeper.start(std::move(spec));
  ASSERT_TRUE(pid);
  EXPECT_EQ(exits.wait_for(*pid)->code, 0);
  const auto text = read_file(folder / "log");
  EXPECT_EQ(*text, "hello frame\n0 1 2 3 4 ") << "4 is ls's own"; // sh passes 3 on
  std::filesystem::remove_all(folder);
}

TEST(ProcessKeeper, KillsWhatIsLeft) {
  pid_t pid = -1;
  {
    Exits exits;
    ProcessKeeper keeper(exits.callback());
    FileDescriptor exe;
    pid = *keeper.start(shell(exe, "exec sleep 100"));
    EXPECT_NE(process_start_ticks(pid), 0u);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(ProcessKeeper, SaysWhyAProgramCannotStart) {
  Exits exits;
  ProcessKeeper keeper(exits.callback());
  const auto exe = open_executable("/etc/hostname"); // not executable
  ProcessSpec spec;
  spec.executable = exe->get();
  spec.argv = {"hostname-file"};
  const auto pid = keeper.start(std::move(spec));
  ASSERT_FALSE(pid);
  EXPECT_NE(pid.error().message.find("hostname-file"), std::string::npos) << pid.error().message;
}

TEST(Frame, SurvivesTheTrip) {
  WorkerFrame frame;
  frame.name = "rollout/3";
  frame.term = 7;
  frame.head_port = 41234;
  frame.experiment = R"({"run":{"name":"x"}})";
  const auto back = decode_frame(encode_frame(frame));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->name, "rollout/3");
  EXPECT_EQ(back->head_port, 41234);
  EXPECT_EQ(back->experiment, frame.experiment);
  for (const char* bad : {"", "{", "[]", "{\"name\":1}"}) EXPECT_FALSE(decode_frame(bad)) << bad;
}

} // namespace
} // namespace troupe::actors
