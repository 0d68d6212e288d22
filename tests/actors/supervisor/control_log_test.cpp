#include "actors/supervisor/control_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/supervisor/control_request.h"

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

// The limit of a file's size fails writes as a full disk does: after a part of the line, if that still fits.
TEST_F(ControlLogTest, AFullDiskLeavesNoHalfLineAndIsToldWhereItMatters) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    auto opened = ControlLog::open(path);
    ASSERT_TRUE(opened);
    ASSERT_TRUE(opened->log->append_or_fail(Term{1}));
    rlimit small = before;
    small.rlim_cur = fs::file_size(path) + 10;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    opened->log->append(Tally{"not kept"});
    const Status refused = opened->log->append_or_fail(Epoch{1});
    const auto size = fs::file_size(path);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(refused.error().message.find("control.log"), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().message.find("make room"), std::string::npos) << refused.error().message;
    EXPECT_EQ(size, fs::file_size(path));
    EXPECT_LT(size, small.rlim_cur) << "the half line is gone";
    ASSERT_TRUE(opened->log->append_or_fail(Epoch{2})) << "there is room again";
  }
  const auto again = ControlLog::open(path);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->state.epoch, 2u);
  EXPECT_EQ(again->state.tally, "");
}

TEST_F(ControlLogTest, ARecordOfThePastIsNotWritten) {
  {
    auto opened = ControlLog::open(path);
    opened->log->append(Term{5});
    opened->log->append(Term{4}); // would make the log unreadable
    EXPECT_FALSE(opened->log->append_or_fail(Term{5}));
    opened->log->append(Epoch{1});
  }
  const auto again = ControlLog::open(path);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->state.term, 5u);
  EXPECT_EQ(again->state.epoch, 1u);
}

TEST(ControlRequest, WhatIsNoRequestIsRefusedInOneSentence) {
  const auto refusal = [](const std::string& line) {
    const auto parsed = parse_control_request(line);
    return parsed ? std::string() : parsed.error().to_string();
  };
  EXPECT_EQ(refusal(R"({"command":"scale","role":"rollout","count":2})"), "");
  EXPECT_NE(refusal(R"({"command":7})").find("string \"command\""), std::string::npos) << "it once ended the head";
  EXPECT_NE(refusal(R"({"command":"scale","role":[1]})").find("\"role\""), std::string::npos);
  EXPECT_NE(refusal("[]").find("one JSON object"), std::string::npos);
  EXPECT_NE(refusal("").find("empty"), std::string::npos);
  EXPECT_NE(refusal(std::string(100'000, '[')).find("nested deeper"), std::string::npos);
}

} // namespace
} // namespace troupe::actors
