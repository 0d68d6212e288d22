#include "actors/supervisor/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/runtime/process.h"
#include "actors/supervisor/control_server.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder / "xdg");
    ::setenv("XDG_RUNTIME_DIR", (folder / "xdg").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / ("troupe_run_folder_test." + std::to_string(::getpid()));
};

TEST_F(RunFolderTest, IsNeverOverwritten) {
  { ASSERT_TRUE(RunFolder::create(folder / "run", "{\"a\":1}")); }
  const auto again = RunFolder::create(folder / "run", "{}");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_NE(again.error().message.find("--resume"), std::string::npos);
  EXPECT_EQ(*read_file(folder / "run" / "run.json"), "{\"a\":1}");
  EXPECT_TRUE(RunFolder::reopen(folder / "run"));
  EXPECT_EQ(RunFolder::reopen(folder / "none").error().code, ErrorCode::kNotFound);
}

TEST_F(RunFolderTest, HasOneSupervisorAtATime) {
  const auto held = RunFolder::create(folder / "run", "{}");
  const auto second = RunFolder::reopen(folder / "run");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST_F(RunFolderTest, FindsLiveRunsAndPassesOverStaleOnes) {
  fs::create_directories(folder / "run");
  const auto sockets = socket_folder("id1");
  ASSERT_TRUE(sockets) << sockets.error().to_string();
  struct stat info {};
  ::stat(sockets->c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ControlPoint point{"id1", "a", folder / "run", *sockets / "control.sock", ::getpid(), process_start_ticks(::getpid())};
  ASSERT_TRUE(write_control_point(point));
  ASSERT_EQ(live_runs().size(), 1u);
  EXPECT_EQ(live_runs()[0].run_name, "a");
  point.start_ticks += 1; // the pid lives, but it is another process
  ASSERT_TRUE(write_control_point(point));
  EXPECT_TRUE(live_runs().empty());
}

TEST_F(RunFolderTest, TheSocketAnswersLinesAndIsGoneAfterwards) {
  const fs::path socket = folder / "s";
  {
    auto server = ControlServer::start(socket, [](const std::string& line) { return "<" + line + ">"; });
    ASSERT_TRUE(server) << server.error().to_string();
    struct stat info {};
    ::stat(socket.c_str(), &info);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_EQ(*ask_supervisor(socket, "one"), "<one>");
    EXPECT_EQ(*ask_supervisor(socket, std::string(100000, 'x')), "<" + std::string(100000, 'x') + ">");
  }
  EXPECT_FALSE(fs::exists(socket));
  EXPECT_EQ(ask_supervisor(socket, "two").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(ControlServer::start(folder / std::string(200, 'p'), {}).error().code, ErrorCode::kInvalidArgument);
}

} // namespace
} // namespace troupe::actors
