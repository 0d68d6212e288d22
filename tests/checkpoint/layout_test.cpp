#include "checkpoint/layout.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace troupe::checkpoint {
namespace {

TEST(Layout, TensorsAreAlignedInTheirOrder) {
  const auto layout = make_layout({{.name = "b", .dtype = "BF16", .shape = {3, 5}},
                                   {.name = "a", .dtype = "F32", .shape = {}},
                                   {.name = "z", .dtype = "U8", .shape = {0}}});
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->tensors[0].bytes, 30u);
  EXPECT_EQ(layout->tensors[1].offset, 64u);
  EXPECT_EQ(layout->tensors[1].bytes, 4u);
  EXPECT_EQ(layout->tensors[2].offset, 128u);
  EXPECT_EQ(layout->bytes, 128u);
  EXPECT_EQ(layout->find("a"), 1u);
  EXPECT_FALSE(layout->find("c").has_value());
  EXPECT_TRUE(check(*layout).has_value());
}

TEST(Layout, RefusesWhatHasNoPlace) {
  EXPECT_EQ(make_layout({{.name = "a", .dtype = "F33", .shape = {1}}}).error().message,
            "tensor a has the unknown type \"F33\"");
  EXPECT_FALSE(make_layout({{.name = "a", .dtype = "F32", .shape = {-1}}}).has_value());
  EXPECT_FALSE(make_layout({{.name = "a", .dtype = "F32", .shape = {1LL << 40, 1LL << 40}}}).has_value());
  EXPECT_FALSE(make_layout({{.name = "a", .dtype = "U8", .shape = {1LL << 62}},
                            {.name = "b", .dtype = "U8", .shape = {1LL << 62}}})
                   .has_value());
  EXPECT_EQ(make_layout({{.name = "a", .dtype = "F32", .shape = {1}}, {.name = "a", .dtype = "F32", .shape = {1}}})
                .error()
                .code,
            ErrorCode::kAlreadyExists);
  for (const char* name : {"", "__metadata__", "__pad.0", "a\nb", "\xC3\xA4"})
    EXPECT_FALSE(make_layout({{.name = name, .dtype = "F32", .shape = {1}}}).has_value()) << name;
}

TEST(Layout, SurvivesJsonAndHasAStableDigest) {
  auto layout =
      *make_layout({{.name = "a", .dtype = "F32", .shape = {2, 3}}, {.name = "b", .dtype = "I64", .shape = {4}}});
  layout.tensors[1].checksum = 0x1234;
  const auto back = layout_from_json(nlohmann::json::parse(to_json(layout).dump()));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->tensors, layout.tensors);
  EXPECT_EQ(back->digest(), layout.digest());
  const auto without =
      *make_layout({{.name = "a", .dtype = "F32", .shape = {2, 3}}, {.name = "b", .dtype = "I64", .shape = {4}}});
  EXPECT_EQ(without.digest(), layout.digest());  // checksums change every step, the plan does not
  const auto other =
      *make_layout({{.name = "a", .dtype = "F32", .shape = {3, 2}}, {.name = "b", .dtype = "I64", .shape = {4}}});
  EXPECT_NE(other.digest(), layout.digest());
}

TEST(Layout, HostileTablesAreRefused) {
  const auto good = to_json(
      *make_layout({{.name = "a", .dtype = "F32", .shape = {16}}, {.name = "b", .dtype = "F32", .shape = {16}}}));
  ASSERT_TRUE(layout_from_json(good).has_value());
  const auto refused = [&](auto change) {
    nlohmann::json json = good;
    change(json);
    const auto layout = layout_from_json(json);
    return !layout && layout.error().code == ErrorCode::kCorrupt;
  };
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][1]["offset"] = 0; }));           // overlap
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][1]["offset"] = 65; }));          // not aligned
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][1]["offset"] = 1ull << 63; }));  // outside
  EXPECT_TRUE(refused([](auto& j) { j["bytes"] = 64; }));                         // too short
  EXPECT_TRUE(refused([](auto& j) { j["bytes"] = ~0ull; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["bytes"] = 60; }));  // does not fit the shape
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["shape"] = {1ull << 60, 64}; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["shape"] = {-16, -1}; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["shape"] = "16"; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["name"] = "b"; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["dtype"] = 7; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0]["xxh3"] = "12"; }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"][0].erase("offset"); }));
  EXPECT_TRUE(refused([](auto& j) { j["tensors"] = nullptr; }));
  EXPECT_TRUE(refused([](auto& j) { j = nlohmann::json::array(); }));
}

}  // namespace
}  // namespace troupe::checkpoint
