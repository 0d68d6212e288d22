// The harness without the benchmarks: rows, figures, medians, and what is read from a run's records.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "bench/registry.h"
#include "bench/rl_figures.h"

namespace troupe::bench {

// The registry names them; nothing here measures.
Status run_quickstart(Context&) { return {}; }
Status run_grpo(Context&) { return {}; }
Status run_generate(Context&) { return {}; }
Status run_train(Context&) { return {}; }
Status run_weights(Context&) { return {}; }
Status run_control(Context&) { return {}; }
Status run_kernels(Context&) { return {}; }
Status run_matmul(Context&) { return {}; }
Status run_loss(Context&) { return {}; }
Status run_delta_net(Context&) { return {}; }
Status run_smollm2(Context&) { return {}; }
Status run_recovery(Context&) { return {}; }
Status run_deaths(Context&) { return {}; }

namespace {

using nlohmann::json;

TEST(Registry, RowsAreUniqueAndDescribed) {
  std::set<std::string_view> names;
  for (const Benchmark& b : benchmarks()) {
    EXPECT_TRUE(names.insert(b.name).second) << b.name << " stands there twice";
    EXPECT_NE(b.name, "list");
    EXPECT_NE(b.name, "all");
    EXPECT_GT(b.what.size(), 20u) << b.name;
    EXPECT_EQ(b.what.find('\n'), std::string_view::npos) << b.name;
    EXPECT_FALSE(b.peer_always && b.peer.empty()) << b.name;
    ASSERT_NE(b.run, nullptr) << b.name;
  }
  EXPECT_FALSE(names.empty());
}

TEST(Registry, ListHasALineForEach) {
  const std::string text = list_text(false);
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), benchmarks().size());
  const json list = json::parse(list_text(true));
  ASSERT_EQ(list.size(), benchmarks().size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["name"], benchmarks()[i].name);
    EXPECT_NE(text.find(std::string(benchmarks()[i].what)), std::string::npos);
  }
}

TEST(Registry, AnUnknownNameListsTheOthers) {
  EXPECT_EQ((*find_benchmark("train"))->name, "train");
  const auto found = find_benchmark("trian");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNotFound);
  for (const Benchmark& b : benchmarks()) EXPECT_NE(found.error().message.find(b.name), std::string::npos) << b.name;
}

TEST(Statistics, MedianAndPercentiles) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  EXPECT_EQ(percentile(hundred, 0.5), 50);
  EXPECT_EQ(percentile(hundred, 1), 100);
  EXPECT_EQ(percentile(hundred, 0), 1);
}

TEST(Figure, AJsonRowHasAllFields) {
  const json machine = {{"cores", 2}, {"cpu", "x"}};
  const json alone = json_row({"a.b", 3.0, "tok/s", {}, {{"threads", 2}}}, machine);
  std::set<std::string> keys;
  for (const auto& [key, value] : alone.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"name", "value", "unit", "ratio", "peer", "conditions"}));
  EXPECT_TRUE(alone["ratio"].is_null());
  EXPECT_TRUE(alone["peer"].is_null());
  EXPECT_EQ(alone["conditions"], (json{{"cores", 2}, {"cpu", "x"}, {"threads", 2}}));

  const json compared = json_row({"a.b", 3.0, "tok/s", Peer{"them", 1.5}, json::object()}, machine);
  EXPECT_EQ(compared["ratio"], 2.0);
  EXPECT_EQ(compared["peer"], "them");
  EXPECT_EQ(compared["conditions"]["peer_value"], 1.5);
  EXPECT_TRUE(json_row({"a.b", 3.0, "s", Peer{"them", 0}, json::object()}, machine)["ratio"].is_null())
      << "nothing is divided by 0";
  EXPECT_TRUE(json::parse(json_row({"a.b", std::nan(""), "s", {}, json::object()}, machine).dump())["value"].is_null());
}

TEST(Figure, ATableSaysSharedConditionsOnce) {
  const Figure a{"a", 1, "s", {}, {{"threads", 2}, {"batch", 1}}},
      b{"b", 2, "s", Peer{"them", 4}, {{"threads", 2}, {"batch", 16}}};
  const std::string text = table({a, b}, {{"cores", 2}});
  EXPECT_EQ(text.find("threads"), text.rfind("threads"));
  EXPECT_THAT(text, testing::StartsWith("cores 2, threads 2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("batch 1 *\n"));
  EXPECT_THAT(text, testing::ContainsRegex("0.5 +them 4 +batch 16"));
  EXPECT_EQ(table({}, {}), "");
}

TEST(Machine, SaysWhereItMeasures) {
  const json machine = machine_conditions();
  EXPECT_GE(machine["cores"], 1);
  for (const char* key : {"cpu", "isa", "load1_at_start"}) EXPECT_TRUE(machine.contains(key)) << key;
}

TEST(RlStageTest, CountsStepsAndTimeFromTheStagesBeginning) {
  const auto line = [](const char* stage, double time, json more = json::object()) {
    more.update({{"stage", stage}, {"time", time}});
    return more;
  };
  const std::vector<json> metrics{line("sft", 1),
                                  line("sft", 5),
                                  line("rl", 6, {{"eval/accuracy", 0.25}}),
                                  line("rl", 7),
                                  line("rl", 8),
                                  line("rl", 8.5, {{"eval/accuracy", 0.75}}),
                                  line("eval", 20, {{"eval/accuracy", 0.9}})};
  const RlStage rl = rl_stage(metrics);
  EXPECT_EQ(rl.steps, 2u);
  EXPECT_EQ(rl.seconds, 2);  // 6 to 8
  ASSERT_EQ(rl.accuracy.size(), 2u);
  EXPECT_EQ(rl.accuracy[1].seconds, 2.5);
  EXPECT_EQ(rl_stage({line("sft", 3), line("rl", 4)}).seconds, 1)
      << "without an evaluation it begins at the stage before";
  EXPECT_EQ(rl_stage({}).steps, 0u);
}

TEST(RlStageTest, SecondsToAnAccuracyAreInterpolated) {
  const std::vector<RlStage::Point> curve{{0, 0.2}, {10, 0.4}, {20, 0.4}, {30, 0.8}};
  EXPECT_DOUBLE_EQ(*seconds_to(curve, 0.3), 5);
  EXPECT_DOUBLE_EQ(*seconds_to(curve, 0.6), 25);
  EXPECT_DOUBLE_EQ(*seconds_to(curve, 0.1), 0);
  EXPECT_FALSE(seconds_to(curve, 0.9));
  EXPECT_FALSE(seconds_to({}, 0.1));
}

}  // namespace
}  // namespace troupe::bench
