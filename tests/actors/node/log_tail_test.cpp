#include "actors/node/log_tail.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace troupe::actors {
namespace {

class LogTailTest : public ::testing::Test {
 protected:
  ~LogTailTest() override { std::filesystem::remove(file_); }
  void add(const std::string& text) { std::ofstream(file_, std::ios::app | std::ios::binary) << text; }
  /// Everything there is, in pieces of at most `bytes_max`, put together by their offsets.
  std::string rest(LogTail& tail, std::uint64_t bytes_max) {
    while (const auto piece = tail.next(bytes_max)) {
      EXPECT_EQ(piece->offset, stream_.size());
      stream_ += piece->text;
    }
    return stream_;
  }
  std::filesystem::path file_ = std::filesystem::path(::testing::TempDir()) / ("log_tail." + std::to_string(::getpid()) + ".log");
  std::string stream_;
};

TEST_F(LogTailTest, GivesWhatIsNewAndOnlyThat) {
  LogTail tail(file_, "node2:log");
  EXPECT_FALSE(tail.next(100)) << "the file is not there yet";
  add("one\ntwo\n");
  EXPECT_EQ(rest(tail, 100), "one\ntwo\n");
  EXPECT_FALSE(tail.next(100));
  add("three");
  EXPECT_EQ(rest(tail, 100), "one\ntwo\nthree");
  add(" goes on\n");
  EXPECT_EQ(rest(tail, 100), "one\ntwo\nthree goes on\n");
}

TEST_F(LogTailTest, CutsAtLinesWhereThereAreAny) {
  LogTail tail(file_, "node2:log");
  add("12345\n12345\n12345\n");
  EXPECT_EQ(tail.next(14)->text, "12345\n12345\n");
  EXPECT_EQ(tail.next(14)->text, "12345\n");
  add(std::string(40, 'x') + "\n");
  EXPECT_EQ(tail.next(14)->text, std::string(14, 'x')) << "a line longer than a piece comes in parts";
  EXPECT_EQ(tail.last()->text, std::string(14, 'x'));
  EXPECT_EQ(tail.last()->offset, 18u);
  EXPECT_EQ(tail.next(14)->offset, 32u);
}

TEST_F(LogTailTest, AFloodLosesItsMiddleAndSaysSo) {
  LogTail tail(file_, "node2:log");
  add("the beginning\n");
  rest(tail, 4096);
  std::string flood;
  while (flood.size() < 3 * LogTail::kBehindMax) flood += "line " + std::to_string(flood.size()) + "\n";
  add(flood + "the end\n");
  const std::string all = rest(tail, 4096);
  EXPECT_LT(all.size(), 8192u);
  EXPECT_TRUE(all.starts_with("the beginning\n"));
  EXPECT_NE(all.find(" left out here; the whole log: node2:log]\n"), std::string::npos) << all;
  EXPECT_TRUE(all.ends_with("the end\n"));
}

} // namespace
} // namespace troupe::actors
