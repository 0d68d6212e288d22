#include "observe/console.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace troupe::observe {
namespace {

using namespace std::chrono_literals;

Progress at_step(std::uint64_t step) {
  Progress p{"rl", step, 150, {}, {}, {}, {}, {}, {}, {}};
  p.reward = 0.531;
  return p;
}

class ProgressTest : public testing::Test {
 protected:
  ProgressTest() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0); }
  ~ProgressTest() override { ::close(fds[0]), ::close(fds[1]); }
  std::string taken() const {
    char text[4096];
    const ssize_t got = ::read(fds[1], text, sizeof text);
    return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "";
  }
  int fds[2] = {};
  TimePoint start{1h};
};

TEST(FormatProgress, ShowsWhatThereIs) {
  Progress p{"rl", 12, 150, 0.531, 0.01241, 3141.0, 1.24, 3.0, {}, 80s};
  EXPECT_EQ(format_progress(p), "rl 12/150  reward 0.531  loss 0.01241  3.1k tok/s  age 1.2 (max 3)  1m20s left");
  EXPECT_EQ(format_progress(Progress{"sft", 1, 10, {}, 2.5, 950.0, {}, {}, {}, {}}), "sft 1/10  loss 2.5  950 tok/s");
  EXPECT_EQ(format_progress(p, 10), "rl 12/150 ");
}

TEST_F(ProgressTest, ATerminalRedrawsOneLine) {
  ProgressLine line(fds[0], true, 80);
  line.update(at_step(1), start);
  EXPECT_EQ(taken(), "\r\x1b[Krl 1/150  reward 0.531");
  line.update(at_step(2), start + 50ms);
  EXPECT_EQ(taken(), "") << "not more than ten times a second";
  line.update(at_step(3), start + 150ms);
  EXPECT_EQ(taken(), "\r\x1b[Krl 3/150  reward 0.531");
  line.print("rollout/1 replaced");
  EXPECT_EQ(taken(), "\r\x1b[Krollout/1 replaced\nrl 3/150  reward 0.531");
  line.update(at_step(4), start + 160ms);
  line.finish();
  EXPECT_EQ(taken(), "\r\x1b[Krl 4/150  reward 0.531\n") << "the last state is shown even when it was not due";
}

TEST_F(ProgressTest, AFileGetsALineEveryFewSeconds) {
  ProgressLine line(fds[0], false, 0, 5s);
  line.update(at_step(1), start);
  line.update(at_step(2), start + 4900ms);
  EXPECT_EQ(taken(), "rl 1/150  reward 0.531\n");
  line.update(at_step(3), start + 5s);
  EXPECT_EQ(taken(), "rl 3/150  reward 0.531\n");
  line.update(at_step(150), start + 5100ms);
  EXPECT_EQ(taken(), "rl 150/150  reward 0.531\n") << "the last step is always shown";
  line.finish();
  EXPECT_EQ(taken(), "");
}

TEST_F(ProgressTest, ANewStageStartsANewLine) {
  ProgressLine line(fds[0], true, 80);
  Progress sft = at_step(10);
  sft.stage = "sft";
  line.update(sft, start);
  line.update(at_step(1), start + 10ms);
  EXPECT_EQ(taken(), "\r\x1b[Ksft 10/150  reward 0.531\n\r\x1b[Krl 1/150  reward 0.531");
}

TEST(EstimateLeft, FromTheStepsDone) {
  EXPECT_FALSE(estimate_left(0, 10, 5s));
  EXPECT_EQ(*estimate_left(5, 10, 5s), 5s);
  EXPECT_EQ(*estimate_left(10, 10, 5s), 0s);
}

TEST(FormatTable, AlignsNumbersRight) {
  EXPECT_EQ(format_table({"name", "value"}, {{"a", "1.5"}, {"\u00e4bc", "12"}, {"x"}}),
            "name  value\n"
            "----  -----\n"
            "a       1.5\n"
            "\u00e4bc      12\n"
            "x\n");
}

}  // namespace
}  // namespace troupe::observe
