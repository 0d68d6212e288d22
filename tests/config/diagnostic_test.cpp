// What the user reads when a config is wrong: golden texts.
#include <gmock/gmock.h>

#include "config/sample.h"

namespace troupe::config {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(ConfigTest, ReportsEverythingAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(load({"nmae = \"x\"\n"
                  "seed = \"7\"\n"
                  "[optim]\n"
                  "lr = -1e-3\n"
                  "decay = \"cosin\"\n"
                  "[sampling]\n"
                  "\ttop_p = 1.5 # too much\n"}),
            "a.toml:1:1: error: unknown key nmae; did you mean name?\n"
            "    1 | nmae = \"x\"\n"
            "      | ^~~~\n"
            "a.toml:2:8: error: seed must be an integer, got a string \"7\"\n"
            "    2 | seed = \"7\"\n"
            "      |        ^~~\n"
            "   hint: write 7 without quotes\n"
            "a.toml:4:6: error: optim.lr must be greater than 0 and at most 10, got -0.001\n"
            "    4 | lr = -1e-3\n"
            "      |      ^~~~~\n"
            "   hint: `troupe config explain optim.lr`\n"
            "a.toml:5:9: error: optim.decay must be one of \"none\", \"cosine\"; got \"cosin\"\n"
            "    5 | decay = \"cosin\"\n"
            "      |         ^~~~~~~\n"
            "   hint: did you mean \"cosine\"?\n"
            "a.toml:7:10: error: sampling.top_p must be greater than 0 and at most 1, got 1.5\n"
            "    7 | \ttop_p = 1.5 # too much\n"
            "      | \t        ^~~\n"
            "   hint: `troupe config explain sampling.top_p`\n"
            "5 errors; nothing was started\n");
}

TEST_F(ConfigTest, UnitsNameWhatTheyAccept) {
  const std::string text = load({"lease = \"30 sec\"\ncache = \"4Gib\"\n"});
  EXPECT_THAT(
      text,
      HasSubstr(
          "a.toml:1:9: error: lease must be a duration: \"30 sec\" is not a duration (units: ns, us, ms, s, m, h, d)"));
  EXPECT_THAT(text, HasSubstr("a.toml:2:9: error: cache must be a size: \"4Gib\" is not a size (units: B, KiB"));
  EXPECT_THAT(load({"lease = 30\n"}), HasSubstr("hint: add a unit: \"30s\""));
  EXPECT_THAT(load({"lease = \"1ms\"\ncache = 5\n"}), HasSubstr("lease must be at least 100ms, got \"1ms\""));
  EXPECT_THAT(load({"cache = 5\n"}), HasSubstr("cache must be at least 1MiB, got 5"));
  EXPECT_EQ(load({"lease = \"1.5m\"\ncache = 2097152\n"}), "");
  EXPECT_EQ(sample.lease, std::chrono::seconds(90));
  EXPECT_EQ(sample.cache.count, 2097152u);
}

TEST_F(ConfigTest, AKeyInTheWrongSectionIsFoundByItsName) {
  EXPECT_THAT(load({"lr = 1e-3\n"}), HasSubstr("unknown key lr; did you mean optim.lr?"));
  EXPECT_THAT(load({"[sampling]\nzzz = 1\n"}), HasSubstr("hint: keys here: top_p, seed"));
}

TEST_F(ConfigTest, DuplicatesShowBothPlaces) {
  EXPECT_EQ(load({"name = \"a\"\n[optim]\nlr = 1.0\nfused = true\nlr = 2.0\n"}),
            "a.toml:5:1: error: duplicate key optim.lr\n"
            "    5 | lr = 2.0\n"
            "      | ^~\n"
            "a.toml:3:1: note: optim.lr is first given here\n"
            "    3 | lr = 1.0\n"
            "      | ^~\n"
            "   hint: keep one of the two\n"
            "1 error; nothing was started\n");
  EXPECT_THAT(load({"[optim]\nlr = 1.0\n[task]\n[optim]\n"}), HasSubstr("a.toml:1:2: note: optim is first given here"));
}

TEST_F(ConfigTest, BrokenLinesDoNotHideOtherErrors) {
  const std::string text = load({"name = \nseed = -1\n[optim]\nlr = 1..0\nfused = 3\n"});
  EXPECT_THAT(text, HasSubstr("a.toml:1:"));
  EXPECT_THAT(text, HasSubstr("a.toml:2:8: error: seed must be at least 0, got -1"));
  EXPECT_THAT(text, HasSubstr("a.toml:4:8: error: not valid TOML (floating-point): "));
  EXPECT_THAT(text, HasSubstr("a.toml:5:9: error: optim.fused must be a boolean (true or false), got an integer 3"));
  EXPECT_THAT(text, HasSubstr("4 errors"));
  EXPECT_FALSE(merged.syntax_ok);
}

TEST_F(ConfigTest, AnOpenBracketIsOneErrorNotMany) {
  const std::string text = load({"tags = [\"a\",\nseed = 3\n[optim]\nlr = 1.0\n"});
  EXPECT_THAT(text, HasSubstr("not valid TOML"));
  EXPECT_THAT(text, HasSubstr("1 error;"));
}

// The TOML library recurses as deep as a key is long, and runs into undefined behaviour at some letters.
TEST_F(ConfigTest, WhatTheParserMustNotSeeIsRefusedBefore) {
  std::string key = "a";
  for (int i = 0; i < 50'000; ++i) key += ".a";
  EXPECT_THAT(load({"seed = 1\n" + key + " = 1\n"}), HasSubstr("a.toml:2:1: error: a key has more than 64 parts"));
  EXPECT_THAT(load({"[" + key + "]\n"}), HasSubstr("a key has more than 64 parts"));
  EXPECT_THAT(load({"x = {" + key + " = 1}\n"}), HasSubstr("a key has more than 64 parts"));
  EXPECT_THAT(load({"\nseed = \xC8\x99\n"}), HasSubstr("a.toml:2:1: error: a character outside ASCII needs quotes"));
  const std::string dots(200, '.');
  EXPECT_EQ(load({"\xEF\xBB\xBF"
                  "name = \"gr\xC3\xBC\xC3\x9F" + dots + "\" # \xE2\x82\xAC" + dots + "\ntags = ['''\n\xC8\x99'''', \"\"\"\\\"\"\"\"\"]\n"}),
            "");
  EXPECT_THAT(load({"name = \"open " + dots + "\nseed = -1\n"}), HasSubstr("seed must be at least 0"));
}

// Looking for the table of a duplicate key once took the square of the lines.
TEST_F(ConfigTest, ADuplicateKeyAfterManyLinesIsFoundAtOnce) {
  EXPECT_THAT(load({std::string(1'000'000, '\n') + "seed = 1\nseed = 2\n"}), HasSubstr("duplicate key seed"));
}

TEST_F(ConfigTest, WrongTypesOfEveryKind) {
  EXPECT_THAT(load({"[optim]\nfused = \"true\"\n"}), HasSubstr("hint: write true without quotes"));
  EXPECT_THAT(load({"[optim]\nlr = nan\n"}), HasSubstr("must be a finite number, got nan"));
  EXPECT_THAT(load({"[optim]\nlr = 2024-01-01\n"}), HasSubstr("must be a number, got a date or time"));
  EXPECT_THAT(load({"[optim]\nbetas = 0.9\n"}), HasSubstr("hint: write it in brackets: [0.9]"));
  EXPECT_THAT(load({"[optim]\nbetas = [0.9, 1.0]\n"}),
              HasSubstr("optim.betas element 1 must be at least 0 and less than 1, got 1.0"));
  EXPECT_THAT(load({"[optim.lr]\nx = 1\n"}), HasSubstr("optim.lr must be a number, got a table"));
  EXPECT_THAT(load({"[task]\ndigits = 3.0\n"}), HasSubstr("hint: write 3"));
  EXPECT_THAT(load({"[[stage]]\ntype = \"sft\"\nsteps = 5_000_000_000\n"}),
              HasSubstr("stage.0.steps must be at most 2147483647, got 5000000000"));
  EXPECT_EQ(load({"[optim]\nlr = 1\n"}), "") << "an integer is a number";
  EXPECT_EQ(sample.optim.lr, 1.0);
}

TEST_F(ConfigTest, FlagsAreTheirOwnPlace) {
  EXPECT_EQ(load({}, {"optim.lr=-1"}),
            "--set optim.lr=-1: error: optim.lr must be greater than 0 and at most 10, got -1\n"
            "   hint: `troupe config explain optim.lr`\n"
            "1 error; nothing was started\n");
  EXPECT_THAT(load({}, {"optim.rl=1"}),
              StartsWith("--set optim.rl=1: error: unknown key optim.rl; did you mean optim.lr?"));
  EXPECT_THAT(load({}, {"optim.lr"}), HasSubstr("--set optim.lr: error: expected key=value"));
  EXPECT_THAT(load({}, {"=3"}), HasSubstr("expected key=value"));
  EXPECT_THAT(load({}, {"optim.lr.x=3"}), HasSubstr("it has no key x"));
  EXPECT_THAT(load({}, {"optim.lr=fast"}), HasSubstr("must be a number, got a string \"fast\""));
}

TEST_F(ConfigTest, AMissingFileIsNamed) {
  merged = merge(schema, {{"none.toml"}, {}}, diagnostics);
  EXPECT_THAT(diagnostics.text(), HasSubstr("none.toml"));
  EXPECT_THAT(diagnostics.text(), HasSubstr("No such file"));
}

TEST_F(ConfigTest, ColumnsCountCharactersNotBytes) {
  EXPECT_THAT(load({"tags = [\"\u00e4\u4e16\"]\ntask = { type = \"jsonl\", path = \"\u00e4\u00f6\", limit = 0 }\n"}),
              HasSubstr("    2 | task = { type = \"jsonl\", path = \"\u00e4\u00f6\", limit = 0 }\n"
                        "      |                                               ^\n"));
}

TEST_F(ConfigTest, ConflictsShowBothPlacesAndStaySilentAfterAnError) {
  load({"seed = 3\n[optim]\nlr = 0.5\n"}, {"sampling.top_p=0.5"});
  CrossChecks checks(tree, diagnostics);
  checks.conflict({"sampling.top_p", "optim.lr"}, "top_p and lr do not go together");
  EXPECT_EQ(diagnostics.text(),
            "--set sampling.top_p=0.5: error: top_p and lr do not go together\n"
            "a.toml:3:6: note: optim.lr is given here\n"
            "    3 | lr = 0.5\n"
            "      |      ^~~\n"
            "1 error; nothing was started\n");
  checks.conflict({"seed", "cache"}, "seed and cache differ");
  EXPECT_THAT(diagnostics.text(), HasSubstr("note: cache has its default\n"));

  load({"seed = -3\n"});
  CrossChecks(tree, diagnostics).conflict({"seed", "optim.lr"}, "never shown");
  EXPECT_EQ(diagnostics.size(), 1u);
}

TEST_F(ConfigTest, DiagnosticsAsJson) {
  load({"nmae = 1\n"});
  const nlohmann::json json = diagnostics.json();
  EXPECT_EQ(json[0]["place"], "a.toml:1:1");
  EXPECT_EQ(json[0]["message"], "unknown key nmae; did you mean name?");
}

TEST(Suggestions, NearButNotFar) {
  const std::vector<std::string> keys = {"max_in_flight", "workers", "lr"};
  EXPECT_EQ(suggestions("max_inflight", keys), std::vector<std::string>{"max_in_flight"});
  EXPECT_EQ(suggestions("wokrers", keys), std::vector<std::string>{"workers"});
  EXPECT_TRUE(suggestions("temperature", keys).empty());
}

}  // namespace
}  // namespace troupe::config
