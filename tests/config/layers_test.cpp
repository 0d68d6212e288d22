// Case S07, the whole kind: how layers of input become one config.
#include <gmock/gmock.h>

#include "config/sample.h"

namespace troupe::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(ConfigTest, BooleansCanBeTurnedOff) {
  EXPECT_EQ(load({"[optim]\nfused = true\n"}, {"optim.fused=false"}), "");
  EXPECT_FALSE(sample.optim.fused);
  EXPECT_EQ(load({"[optim]\nfused = false\n", "[optim]\nfused = true\n"}), "");
  EXPECT_TRUE(sample.optim.fused);
}

TEST_F(ConfigTest, ListsAreReplacedNotMerged) {
  EXPECT_EQ(load({"tags = [\"a\", \"b\"]\n"}, {"tags=[\"c\"]"}), "");
  EXPECT_THAT(sample.tags, ElementsAre("c"));
  EXPECT_EQ(load({"tags = [\"a\", \"b\"]\n", "tags = []\n"}), "");
  EXPECT_TRUE(sample.tags.empty());
}

TEST_F(ConfigTest, OverridingALeafKeepsItsSiblings) {
  EXPECT_EQ(load({"[optim]\nlr = 0.5\nbetas = [0.1, 0.2]\n", "optim.lr = 0.25\n"}), "");
  EXPECT_EQ(sample.optim.lr, 0.25);
  EXPECT_THAT(sample.optim.betas, ElementsAre(0.1, 0.2));
  EXPECT_EQ(load({"[optim]\nlr = 0.5\ndecay = \"cosine\"\n"}, {"optim={ lr = 0.125 }"}), "");
  EXPECT_EQ(sample.optim.lr, 0.125);
  EXPECT_EQ(sample.optim.decay, Decay::kCosine) << "a table given by a flag is merged like one of a file";
}

TEST_F(ConfigTest, SwitchingTheTypeDropsTheOldVariantsFields) {
  EXPECT_EQ(load({"[task]\ntype = \"jsonl\"\npath = \"x.jsonl\"\nlimit = 5\n"},
                 {"task.type=program", "task.command=[\"a\"]"}),
            "");
  EXPECT_EQ(sample.task.type, "program");
  EXPECT_EQ(merged.tree.at("task.path"), nullptr);
  EXPECT_EQ(merged.tree.at("task.limit"), nullptr);
  EXPECT_EQ(to_toml(dump(schema)).find("path"), std::string::npos);
}

TEST_F(ConfigTest, FieldsOfBothVariantsSurviveTheSwitch) {
  EXPECT_EQ(load({"[task]\ndigits = 3\nlimit = 5\n"}, {"task.path=x", "task.type=jsonl"}), "")
      << "the order of flags does not matter";
  EXPECT_EQ(sample.task.limit, 5);
  EXPECT_EQ(sample.task.path, "x");
  EXPECT_EQ(merged.tree.at("task.digits"), nullptr);
}

TEST_F(ConfigTest, NamingTheSameTypeAgainDropsNothing) {
  EXPECT_EQ(load({"[task]\ndigits = 3\n", "[task]\ntype = \"arithmetic\"\n"}), "");
  EXPECT_EQ(sample.task.digits, 3);
}

TEST_F(ConfigTest, AFieldOfAnotherVariantIsAnErrorThatSaysWhose) {
  EXPECT_THAT(load({"[task]\ntype = \"jsonl\"\ndigits = 3\n"}),
              HasSubstr("a.toml:3:1: error: task.digits does not belong to type = \"jsonl\", only to \"arithmetic\""));
  EXPECT_THAT(load({"[task]\ntype = \"json\"\n"}), HasSubstr("hint: did you mean \"jsonl\"?"));
}

TEST_F(ConfigTest, OverridingAWrongTypedSectionIsNotDropped) {
  EXPECT_THAT(load({"[optim]\nlr = 0.5\n"}, {"optim=3"}),
              HasSubstr("--set optim=3: error: optim must be a table, got an integer"));
  EXPECT_THAT(load({"optim = 3\n"}, {"optim.lr=0.5"}),
              HasSubstr("a.toml:1:9: error: optim must be a table, got an integer"));
  EXPECT_THAT(load({"[[optim]]\nlr = 0.5\n"}), HasSubstr("write [optim], one pair of brackets"));
  EXPECT_THAT(load({"[optim]\nlr = \"x\"\n", "[optim]\nlr = 0.5\n"}), HasSubstr("a.toml:2:6"))
      << "a wrong value is reported even where a later one wins";
}

TEST_F(ConfigTest, UnknownKeysAreErrorsEverywhere) {
  EXPECT_THAT(load({"zzz = 1\n"}), HasSubstr("unknown key zzz"));
  EXPECT_THAT(load({"[zzz]\na = 1\n"}), HasSubstr("unknown key zzz"));
  EXPECT_THAT(load({"[optim.zzz]\na = 1\n"}), HasSubstr("unknown key optim.zzz"));
  EXPECT_THAT(load({"[[stage]]\ntype = \"rl\"\nzzz = 1\n"}), HasSubstr("unknown key stage.0.zzz"));
  EXPECT_THAT(load({"[[stage]]\ntype = \"rl\"\noptim.zzz = 1\n"}), HasSubstr("unknown key stage.0.optim.zzz"));
}

TEST_F(ConfigTest, BareWordsAreTextOnlyWhereTheSchemaSaysText) {
  EXPECT_EQ(load({}, {"name=12", "task.type=jsonl", "task.path=true", "lease=3s", "numerics='invariant'"}), "");
  EXPECT_EQ(sample.name, "12");
  EXPECT_EQ(sample.task.path, "true");
  EXPECT_EQ(sample.lease, std::chrono::seconds(3));
  EXPECT_EQ(sample.numerics, "invariant");
  EXPECT_THAT(load({}, {"tags=[a]"}), HasSubstr("must be a list of strings"));
  EXPECT_EQ(load({}, {"name=a=b"}), "") << "only the first = splits";
  EXPECT_EQ(sample.name, "a=b");
}

TEST_F(ConfigTest, FilesAndFlagsWinFromLeftToRight) {
  EXPECT_EQ(load({"seed = 1\n", "seed = 2\n"}, {"seed=3", "seed=4"}), "");
  EXPECT_EQ(sample.seed, 4u);
}

TEST_F(ConfigTest, EveryLeafKnowsWhereItCameFrom) {
  load({"seed = 1\n[optim]\nlr = 0.5\n", "[optim]\nfused = false\n"}, {"name=x"});
  const auto origin = [this](std::string_view path) {
    const Value* value = tree.at(path);
    return value == nullptr ? std::string("default") : diagnostics.sources.provenance(value->origin);
  };
  EXPECT_EQ(origin("seed"), "a.toml:1");
  EXPECT_EQ(origin("optim.lr"), "a.toml:3");
  EXPECT_EQ(origin("optim.fused"), "b.toml:2");
  EXPECT_EQ(origin("name"), "--set name=x");
  EXPECT_EQ(origin("lease"), "default");
}

}  // namespace
}  // namespace troupe::config
