#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::model {
namespace {

nlohmann::json read(const std::string& name) {
  std::ifstream in(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / name);
  return nlohmann::json::parse(in);
}

class RopeGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(RopeGolden, FrequenciesAreTheReferences) {
  const std::string name = GetParam();
  const auto spec = spec_from_config(read(name + "/config.json"), name);
  ASSERT_TRUE(spec) << spec.error().to_string();
  const auto golden = read(name + "/golden.json")["rope"];
  const auto frequencies = rope_frequencies(spec->ropes[0]);
  ASSERT_EQ(frequencies.size(), golden["inv_freq"].size());
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    EXPECT_NEAR(frequencies[i] / golden["inv_freq"][i].get<double>(), 1, 3e-7) << i;
  if (golden.contains("attention_scaling")) {
    EXPECT_NEAR(spec->ropes[0].attention_factor, golden["attention_scaling"].get<double>(), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RopeGolden, ::testing::Values("qwen3/base", "qwen3/yarn_untied", "llama3/base"));

TEST(RopeTable, APositionsRowDoesNotDependOnWhenItWasAsked) {
  RopeSpec rope;
  rope.width = 32;
  rope.theta = 1e6;
  RopeTable late(rope);
  RopeTable early(rope);
  const std::vector<std::int32_t> positions = {0, 5, 700, 5};
  std::vector<float> cos(64), sin(64), cos2(64), sin2(64);
  std::vector<float> ignored(16), ignored2(16);
  for (std::int32_t p : {3, 90, 400}) early.gather(std::span(&p, 1), ignored.data(), ignored2.data());
  late.gather(positions, cos.data(), sin.data());
  early.gather(positions, cos2.data(), sin2.data());
  EXPECT_EQ(cos, cos2);
  EXPECT_EQ(sin, sin2);
  EXPECT_EQ(cos[0], 1.0F);
  EXPECT_EQ(sin[0], 0.0F);
  EXPECT_FLOAT_EQ(cos[32], std::cos(700.0F));
  EXPECT_TRUE(std::equal(cos.begin() + 16, cos.begin() + 32, cos.begin() + 48));
}

}  // namespace
}  // namespace troupe::model
