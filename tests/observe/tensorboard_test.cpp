#include "observe/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

namespace troupe::observe {
namespace {

namespace fs = std::filesystem;

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    out += two;
  }
  return out;
}

TEST(Crc32c, StandardVectors) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Tensorboard, TheBytesOfAnEvent) {
  const Metric metric{"a", 0.5};
  EXPECT_EQ(hex(scalar_event(1.0, 300, std::span(&metric, 1))),
            "09000000000000f03f"  // 1: wall_time = 1.0
            "10ac02"              // 2: step = 300
            "2a0a"                // 5: summary, 10 bytes
            "0a08"                //   1: value, 8 bytes
            "0a0161"              //     1: tag = "a"
            "150000003f");        //     2: simple_value = 0.5
  EXPECT_EQ(hex(tfrecord("")).substr(0, 16), "0000000000000000");
  EXPECT_EQ(tfrecord("abc").size(), 8u + 4 + 3 + 4);
}

class TensorboardTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / ("troupe_tb_test." + std::to_string(::getpid())) / "tb";
};

TEST_F(TensorboardTest, WhatIsWrittenReadsBack) {
  auto writer = TensorboardWriter::create(folder, 100);
  ASSERT_TRUE(writer);
  EXPECT_TRUE(writer->path().filename().string().starts_with("events.out.tfevents.100."));
  ASSERT_TRUE(writer->write({1, "rl", 0, {{"loss", 2.5}, {"reward/mean", -1}}}, 101));
  ASSERT_TRUE(writer->write({2, "rl", 0, {{"loss", 1.25}, {"bad", NAN}}}, 102));
  const auto points = read_event_file(writer->path());
  ASSERT_TRUE(points) << points.error().to_string();
  ASSERT_EQ(points->size(), 3u);
  EXPECT_EQ((*points)[1].name, "reward/mean");
  EXPECT_EQ((*points)[1].value, -1);
  EXPECT_EQ((*points)[2].step, 2);
  EXPECT_EQ((*points)[2].value, 1.25);
  EXPECT_EQ((*points)[2].wall_time_s, 102);
}

TEST_F(TensorboardTest, EveryFlippedByteAndEveryCutIsFound) {
  auto writer = TensorboardWriter::create(folder, 100);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write({1, "", 0, {{"loss", 2.5}}}, 101));
  const std::string good = *read_file(writer->path());
  const std::size_t first = good.size() - tfrecord(scalar_event(101, 1, std::vector<Metric>{{"loss", 2.5}})).size();
  const fs::path path = folder / "broken";
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    std::ofstream(path, std::ios::binary) << bad;
    EXPECT_FALSE(read_event_file(path)) << i;
    if (i == 0 || i == first) continue;  // cut between records
    std::ofstream(path, std::ios::binary) << good.substr(0, i);
    EXPECT_FALSE(read_event_file(path)) << i;
  }
}

}  // namespace
}  // namespace troupe::observe
