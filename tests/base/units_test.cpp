#include "base/units.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using namespace std::chrono_literals;

TEST(Units, ReadsBytes) {
  EXPECT_EQ(parse_bytes("4GiB")->count, 4ull << 30);
  EXPECT_EQ(parse_bytes("1.5 KiB")->count, 1536u);
  EXPECT_EQ(parse_bytes("10MB")->count, 10'000'000u);
  EXPECT_EQ(parse_bytes("123")->count, 123u);
  for (const char* bad : {"", "-1MiB", "4Gib", "1e400MiB", "nanB", "0x10", "99999999TiB"}) EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Units, ReadsDurations) {
  EXPECT_EQ(*parse_duration("200ms"), 200ms);
  EXPECT_EQ(*parse_duration("1.5m"), 90s);
  EXPECT_EQ(*parse_duration("0s"), 0s);
  for (const char* bad : {"", "30", "-1s", "1 fortnight", "infs", "1000000d000"}) EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Units, NamesTheUnitsItAccepts) {
  EXPECT_NE(parse_duration("30 sec").error().message.find("ms, s, m"), std::string::npos);
}

TEST(Units, PrintsForPeople) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_duration(250ms), "250ms");
  EXPECT_EQ(format_duration(250s), "4m10s");
}

} // namespace
} // namespace troupe
