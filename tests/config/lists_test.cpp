// [[stage]] lists: variants, inheritance from the top level, reach of --set.
#include <gmock/gmock.h>

#include "config/sample.h"

namespace troupe::config {
namespace {

using testing::HasSubstr;

constexpr const char* kStages =
    "[optim]\nlr = 0.5\nfused = false\n"
    "[[stage]]\ntype = \"sft\"\nsteps = 3\noptim.lr = 0.25\n"
    "[[stage]]\ntype = \"rl\"\nname = \"main\"\ngroup_size = 4\n"
    "[[stage]]\ntype = \"export\"\n";

TEST_F(ConfigTest, StagesKeepTheirOrderAndInherit) {
  ASSERT_EQ(load({kStages}), "");
  ASSERT_EQ(sample.stages.size(), 3u);
  EXPECT_EQ(sample.stages[0].steps, 3);
  EXPECT_EQ(sample.stages[0].optim.lr, 0.25);
  EXPECT_FALSE(sample.stages[0].optim.fused) << "a sibling of the overridden leaf comes from [optim]";
  EXPECT_EQ(sample.stages[1].group_size, 4);
  EXPECT_EQ(sample.stages[1].optim.lr, 0.5);
  EXPECT_EQ(sample.stages[2].type, "export");
}

TEST_F(ConfigTest, FlagsReachElementsByIndexNameAndType) {
  ASSERT_EQ(
      load({kStages}, {"stage.0.steps=7", "stage.main.group_size=2", "stage.sft.optim.fused=true", "optim.lr=0.125"}),
      "");
  EXPECT_EQ(sample.stages[0].steps, 7);
  EXPECT_EQ(sample.stages[1].group_size, 2);
  EXPECT_TRUE(sample.stages[0].optim.fused);
  EXPECT_EQ(sample.stages[0].optim.lr, 0.25);
  EXPECT_EQ(sample.stages[1].optim.lr, 0.125);
}

TEST_F(ConfigTest, AWrongElementNameListsThoseThatExist) {
  EXPECT_THAT(load({kStages}, {"stage.eval.steps=1"}),
              HasSubstr("there is no stage.eval\n   hint: elements: 0 (sft), 1 (main), 2 (export)"));
  EXPECT_THAT(load({"[[stage]]\ntype = \"rl\"\n[[stage]]\ntype = \"rl\"\n"}, {"stage.rl.steps=1"}),
              HasSubstr("there are several stage.rl"));
  EXPECT_THAT(load({}, {"stage.rl.steps=1"}), HasSubstr("the list is empty"));
  EXPECT_THAT(load({kStages}, {"stage.export.steps=1"}),
              HasSubstr("stage.2.steps does not belong to type = \"export\""));
}

TEST_F(ConfigTest, ALaterListReplacesTheWholeList) {
  ASSERT_EQ(load({kStages, "[[stage]]\ntype = \"rl\"\n"}), "");
  ASSERT_EQ(sample.stages.size(), 1u);
  EXPECT_EQ(sample.stages[0].group_size, 8);
  EXPECT_EQ(sample.stages[0].name, "");
  ASSERT_EQ(load({kStages}, {"stage=[{type=\"export\"}]"}), "");
  ASSERT_EQ(sample.stages.size(), 1u);
}

TEST_F(ConfigTest, ChangingTheTypeOfAnElementDropsItsFields) {
  ASSERT_EQ(load({kStages}, {"stage.1.type=sft"}), "");
  EXPECT_EQ(merged.tree.at("stage.1.group_size"), nullptr);
  EXPECT_EQ(sample.stages[1].name, "main");
}

TEST_F(ConfigTest, ElementsNeedTheirTypeAndTheirBrackets) {
  EXPECT_THAT(load({"[[stage]]\nname = \"x\"\n"}), HasSubstr("stage.0.type is missing\n"));
  EXPECT_THAT(load({"[stage]\ntype = \"rl\"\n"}), HasSubstr("write [[stage]] above each element"));
  EXPECT_THAT(load({"stage = [1]\n"}), HasSubstr("stage must be an array of tables, got a list"));
}

}  // namespace
}  // namespace troupe::config
