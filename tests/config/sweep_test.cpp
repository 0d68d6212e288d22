// [sweep]: lists of values, expanded to their product in the order of the file.
#include <gmock/gmock.h>

#include "config/sample.h"

namespace troupe::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(const std::vector<SweepPoint>& points) {
  std::vector<std::string> out;
  for (const SweepPoint& point : points) {
    std::string name;
    for (const auto& [path, value] : point.values)
      name += (name.empty() ? "" : " ") + path + "=" + to_toml_inline(value);
    out.push_back(name);
  }
  return out;
}

TEST_F(ConfigTest, TheProductIsInFileOrder) {
  ASSERT_EQ(load({"[sweep]\nseed = [1, 2]\n\"optim.lr\" = [0.5, 1]\n"}), "");
  EXPECT_THAT(names(sweep_points(merged.sweep)),
              ElementsAre("seed=1 optim.lr=0.5", "seed=1 optim.lr=1.0", "seed=2 optim.lr=0.5", "seed=2 optim.lr=1.0"));
}

TEST_F(ConfigTest, AllSpellingsOfAnAxisAreTheSame) {
  for (const char* text :
       {"[sweep]\noptim.lr = [0.5]\n", "[sweep.optim]\nlr = [0.5]\n", "sweep = { optim = { lr = [0.5] } }\n"}) {
    ASSERT_EQ(load({text}), "") << text;
    EXPECT_THAT(names(sweep_points(merged.sweep)), ElementsAre("optim.lr=0.5"));
  }
  ASSERT_EQ(load({}, {"sweep.optim.lr=[0.5]"}), "");
  EXPECT_EQ(merged.sweep.size(), 1u);
}

TEST_F(ConfigTest, WithoutASweepThereIsOnePoint) {
  ASSERT_EQ(load({"seed = 1\n"}), "");
  EXPECT_EQ(sweep_points(merged.sweep).size(), 1u);
}

TEST_F(ConfigTest, APointIsLaidOverTheTreeBeforeStagesInherit) {
  ASSERT_EQ(load({"[[stage]]\ntype = \"rl\"\n[sweep]\n\"optim.lr\" = [0.5, 0.25]\n\"stage.rl.group_size\" = "
                  "[2]\n\"task.type\" = [\"jsonl\"]\n[task]\ndigits = 3\n"}),
            "");
  const auto points = sweep_points(merged.sweep);
  ASSERT_EQ(points.size(), 2u);
  Sample other;
  Section section;
  bind_sample(section, other);
  const Value resolved = resolve(section, merged.tree, points[1]);
  assign(section, resolved);
  EXPECT_EQ(other.stages.at(0).optim.lr, 0.25);
  EXPECT_EQ(other.stages.at(0).group_size, 2);
  EXPECT_EQ(other.task.type, "jsonl");
  EXPECT_EQ(resolved.at("task.digits"), nullptr) << "a swept type drops the other variant's fields too";
}

TEST_F(ConfigTest, SweptListsTakeListsOfLists) {
  ASSERT_EQ(load({"[sweep]\ntags = [[\"a\"], [\"b\", \"c\"]]\n"}), "");
  EXPECT_EQ(sweep_points(merged.sweep).size(), 2u);
}

TEST_F(ConfigTest, WrongAxesAreErrors) {
  EXPECT_THAT(load({"[sweep]\noptim.lr = [0.5, -1, 2]\n"}),
              HasSubstr("a.toml:2:18: error: sweep.optim.lr: optim.lr must be greater than 0"));
  EXPECT_THAT(load({"[sweep]\noptim.rl = [0.5]\n"}), HasSubstr("unknown key optim.rl; did you mean optim.lr?"));
  EXPECT_THAT(load({"[sweep]\nseed = 3\n"}), HasSubstr("sweep.seed must be a list of values"));
  EXPECT_THAT(load({"[sweep]\nseed = []\n"}), HasSubstr("sweep.seed is empty"));
  EXPECT_THAT(load({"[sweep]\noptim = [1]\n"}), HasSubstr("a sweep goes over single keys"));
  EXPECT_THAT(load({"sweep = 3\n"}), HasSubstr("sweep must be a table of lists"));
  EXPECT_THAT(load({"[sweep]\nseed = [1, 2]\n"}, {"seed=5"}), HasSubstr("seed is swept and set by a flag"));
}

TEST_F(ConfigTest, TheProductIsBounded) {
  std::string list = "[";
  for (int i = 0; i < 40; ++i) list += std::to_string(i) + ",";
  EXPECT_THAT(load({"[sweep]\nseed = " + list + "]\ntask.limit = " + list.replace(0, 3, "[") + "]\n"}),
              HasSubstr("more than 1000 points"));
}

}  // namespace
}  // namespace troupe::config
