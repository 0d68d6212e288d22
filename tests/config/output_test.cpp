// The way back: TOML, JSON, the reference, explain.
#include <gmock/gmock.h>

#include "config/sample.h"

namespace troupe::config {
namespace {

using testing::HasSubstr;

constexpr const char* kEverything =
    "numerics = \"invariant\"\nname = \"q\\\"\\\\ \\u00e4\"\nseed = 9223372036854775807\ntags = []\nlease = "
    "\"1500ms\"\ncache = \"3MiB\"\n"
    "[optim]\nlr = 1.1e-7\nbetas = [0.1, 0.30000000000000004]\ndecay = \"cosine\"\nfused = false\n"
    "[task]\ntype = \"program\"\ncommand = [\"a\", \"b c\"]\n"
    "[[stage]]\ntype = \"rl\"\ngroup_size = 3\noptim.lr = 0.25\n[[stage]]\ntype = \"export\"\n";

TEST_F(ConfigTest, JsonBringsTheSameStructsBack) {
  ASSERT_EQ(load({kEverything}), "");
  const nlohmann::json json = to_json(dump(schema));
  Sample copy;
  Section section;
  bind_sample(section, copy);
  Diagnostics errors;
  const Merged again = merge_json(section, nlohmann::json::parse(json.dump()), "run.json", {}, errors);
  ASSERT_EQ(errors.text(), "");
  assign(section, resolve(section, again.tree));
  EXPECT_EQ(to_json(dump(section)), json);
  EXPECT_EQ(copy.seed, 9223372036854775807u);
  EXPECT_EQ(copy.optim.betas[1], 0.30000000000000004);
  EXPECT_EQ(copy.name, sample.name);
  EXPECT_EQ(copy.stages[0].optim.lr, 0.25);
  EXPECT_EQ(copy.stages[0].optim.decay, Decay::kCosine);
  EXPECT_EQ(copy.lease, std::chrono::milliseconds(1500));
}

TEST_F(ConfigTest, TomlBringsTheSameStructsBack) {
  ASSERT_EQ(load({kEverything}), "");
  const std::string text = to_toml(dump(schema));
  const nlohmann::json first = to_json(dump(schema));
  sample = {};
  ASSERT_EQ(load({text}), "") << text;
  EXPECT_EQ(to_json(dump(schema)), first);
}

TEST_F(ConfigTest, JsonFromElsewhereIsCheckedLikeAFile) {
  const auto errors_of = [this](const char* text, const std::vector<std::string>& sets = {}) {
    Diagnostics errors;
    static_cast<void>(merge_json(schema, nlohmann::json::parse(text), "run.json", sets, errors));
    return errors.text();
  };
  EXPECT_THAT(errors_of(R"({"optim": {"lr": -1}, "zzz": 1})"), HasSubstr("run.json: error: optim.lr must be"));
  EXPECT_THAT(errors_of(R"({"seed": null})"), HasSubstr("seed must be an integer"));
  EXPECT_THAT(errors_of(R"({"seed": 18446744073709551615})"), HasSubstr("seed must be an integer"));
  EXPECT_THAT(errors_of(R"([1])"), HasSubstr("must be a table"));
  EXPECT_THAT(errors_of((std::string(2000, '[') + std::string(2000, ']')).c_str()), HasSubstr("must be a table"));
  EXPECT_EQ(errors_of(R"({"optim": {"lr": 0.5}})", {"optim.lr=0.25"}), "");
}

TEST_F(ConfigTest, JsonFilesAreLayersToo) {
  ASSERT_TRUE(write_file_atomic("run.json", R"({"seed": 5})"));
  merged = merge(schema, {{"run.json"}, {"name=x"}}, diagnostics);
  ASSERT_EQ(diagnostics.text(), "");
  EXPECT_EQ(std::get<std::int64_t>(merged.tree.at("seed")->data), 5);
  ASSERT_TRUE(write_file_atomic("run.json", R"({"seed": )"));
  merged = merge(schema, {{"run.json"}, {}}, diagnostics);
  EXPECT_THAT(diagnostics.text(), HasSubstr("run.json: error: the file ends in the middle of a JSON value"));
}

TEST_F(ConfigTest, ShowSaysWhereEachValueComesFrom) {
  ASSERT_EQ(load({"seed = 1\n[optim]\nlr = 0.5\n[[stage]]\ntype = \"sft\"\noptim.fused = false\n"}, {"name=x"}), "");
  EXPECT_EQ(to_toml_with_origins(dump(schema), tree, diagnostics.sources),
            "numerics = \"fast\"  # default\n"
            "name = \"x\"  # --set name=x\n"
            "seed = 1  # a.toml:1\n"
            "tags = [\"x\"]  # default\n"
            "lease = \"5s\"  # default\n"
            "cache = \"256MiB\"  # default\n"
            "\n[optim]\n"
            "lr = 0.5  # a.toml:3\n"
            "betas = [0.9, 0.95]  # default\n"
            "decay = \"none\"  # default\n"
            "fused = true  # default\n"
            "\n[sampling]\n"
            "top_p = 1.0  # default\n"
            "\n[task]\n"
            "type = \"arithmetic\"  # default\n"
            "digits = 2  # default\n"
            "limit = 100  # default\n"
            "\n[[stage]]\n"
            "type = \"sft\"  # a.toml:5\n"
            "name = \"\"  # default\n"
            "steps = 10  # default\n"
            "\n[stage.optim]\n"
            "fused = false  # a.toml:6\n");
}

TEST_F(ConfigTest, TheReferenceLoadsAsTheDefaults) {
  const nlohmann::json defaults = to_json(dump(schema));
  const std::string text = reference(schema);
  ASSERT_EQ(load({text}), "") << text;
  EXPECT_EQ(to_json(dump(schema)), defaults);
  EXPECT_THAT(text, HasSubstr("# Peak learning rate. (float, greater than 0 and at most 10; hot)\nlr = 0.001\n"));
  EXPECT_THAT(text, HasSubstr("# The file. (string) Only with type = \"jsonl\".\n# path = \"\"\n"));
  EXPECT_THAT(text, HasSubstr("# [[stage]]\n"));
  EXPECT_THAT(text, HasSubstr("# Optimizer. Any key of [optim], for this element alone. Only with type = \"sft\" or "
                              "\"rl\".\n# [stage.optim]\n"));
}

TEST_F(ConfigTest, ExplainsKeysAndSuggestsForUnknownOnes) {
  EXPECT_EQ(*explain(schema, "optim.lr"),
            "optim.lr\n  Peak learning rate.\n  type: float, greater than 0 and at most 10\n  default: 0.001\n"
            "  hot: may be changed while a run is live\n");
  EXPECT_THAT(*explain(schema, "stage.group_size"), HasSubstr("only with type = \"rl\""));
  EXPECT_EQ(*explain(schema, "stage.steps"), explain(schema, "stage.rl.steps")->replace(0, 14, "stage.steps"));
  EXPECT_THAT(*explain(schema, "stage"), HasSubstr("keys: type name steps optim group_size"));
  EXPECT_THAT(*explain(schema, "sampling.seed"), HasSubstr("default: unset"));
  std::string nearest;
  EXPECT_FALSE(explain(schema, "optm.lr", &nearest));
  EXPECT_EQ(nearest, "did you mean optim.lr?");
  EXPECT_FALSE(explain(schema, "", &nearest));
}

TEST_F(ConfigTest, OptionalsMayStayUnset) {
  ASSERT_EQ(load({""}), "");
  EXPECT_FALSE(to_json(dump(schema))["sampling"].contains("seed"));
  ASSERT_EQ(load({"[sampling]\nseed = 0\n"}), "");
  EXPECT_EQ(sample.sampling.seed, 0);
  EXPECT_EQ(to_json(dump(schema))["sampling"]["seed"], 0);
  EXPECT_THAT(load({"[sampling]\nseed = 5_000_000_000\n"}), HasSubstr("sampling.seed must be at most"));
}

TEST(Quantities, ExactTextReadsBack) {
  using namespace std::chrono_literals;
  for (const Duration d : {Duration(0s), Duration(200ms), Duration(90s), Duration(24h), Duration(1ns), Duration(36h)})
    EXPECT_EQ(*parse_duration(exact_text(d)), d) << exact_text(d);
  for (const std::uint64_t b : {0ull, 1ull, 1023ull, 1024ull, 3ull << 30, 5ull << 40})
    EXPECT_EQ(parse_bytes(exact_text(Bytes{b}))->count, b);
  EXPECT_EQ(exact_text(Duration(90s)), "90s");
}

}  // namespace
}  // namespace troupe::config
