#include "actors/supervisor/control_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using namespace protocol::control;

class ControlLogTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / ("troupe_control_log_test." + std::to_string(::getpid()));
  fs::path path = folder / "control.log";
};

TEST_F(ControlLogTest, RemembersWhatWasAppended) {
  {
    auto opened = ControlLog::open(path);
    ASSERT_TRUE(opened);
    opened->log->append(Term{1});
    opened->log->append(Wanted{protocol::Role::kRollout, 4, 2});
    opened->log->append(Epoch{3});
  }
  const auto again = ControlLog::open(path);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->state.term, 1u);
  EXPECT_EQ(again->state.epoch, 3u);
  EXPECT_EQ(again->state.wanted.at(protocol::Role::kRollout).count, 4u);
}

TEST_F(ControlLogTest, ATornLastLineIsCutAtEveryByte) {
  {
    auto opened = ControlLog::open(path);
    opened->log->append(Term{1});
    opened->log->append(Term{2});
  }
  const std::string whole = *read_file(path);
  const std::size_t first = whole.find('\n') + 1;
  for (std::size_t keep = first; keep < whole.size(); ++keep) {
    std::ofstream(path, std::ios::trunc) << whole.substr(0, keep);
    auto opened = ControlLog::open(path);
    ASSERT_TRUE(opened) << keep;
    EXPECT_EQ(opened->state.term, 1u) << keep;
    opened->log->append(Term{5}); // goes on after the cut, readable
    EXPECT_EQ(ControlLog::open(path)->state.term, 5u) << keep;
  }
}

TEST_F(ControlLogTest, IsReplacedByAShortOneWhenItIsLong) {
  {
    auto opened = ControlLog::open(path);
    opened->log->append(Term{7});
    for (std::uint64_t step = 1; step <= 40000; ++step) opened->log->append(Progress{{0, step, {0, step}}, {}});
  }
  EXPECT_LT(fs::file_size(path), 2 * ControlLog::kCompactBytes);
  const auto again = ControlLog::open(path);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->state.term, 7u);
  EXPECT_EQ(again->state.position.version.step, 40000u);
}

TEST_F(ControlLogTest, DamageInTheMiddleIsAnErrorThatNamesTheLine) {
  {
    auto opened = ControlLog::open(path);
    for (std::uint64_t term = 1; term <= 3; ++term) opened->log->append(Term{term});
  }
  std::string text = *read_file(path);
  text[text.find('\n') + 20] ^= 1;
  std::ofstream(path, std::ios::trunc) << text;
  const auto opened = ControlLog::open(path);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(opened.error().message.find("control.log:2"), std::string::npos) << opened.error().message;
}

} // namespace
} // namespace troupe::actors
