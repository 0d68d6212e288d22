/// @file
/// The small run with a fresh model of any family, as a config.json describes it.
#pragma once

#include "support.h"

namespace troupe::test {

class FamilyRunTest : public RunTest {
 protected:
  // Supervised steps with every loss of the model's parts, RL with guesses where the model can guess, export.
  void play(const std::string& family, bool further_tokens) {
    std::string experiment = kExperiment;
    const auto begin = experiment.find("[model]"), end = experiment.find("[tokenizer]");
    const std::string config = std::string(TROUPE_GOLDEN_DIR) + "/model/" + family + "/base/config.json";
    experiment.replace(begin, end - begin, "[model]\npath = \"" + config + "\"\n[model_loss]\nload_balance = 0.001\nsequence_balance = 0.0001\n" +
                                               "correction_speed = 0.001\nfurther_tokens = 0.3\n");
    std::ofstream(folder / "small.toml") << experiment;
    start({"--set", "stage.sft.steps=6", "--set", "stage.rl.steps=40", "--set", "rollout.context_tokens=32",
           "--set", std::string("rollout.draft_tokens=") + (further_tokens ? "1" : "0")});
    ASSERT_EQ(finish(), 0) << read_file(folder / "run.err").value_or("");
    const json s = summary();
    expect_sound_summary(s);
    EXPECT_EQ(s["exit"], "done");
    EXPECT_EQ(s["logprob_diff_max"], 0);
    EXPECT_GT(s["logprob_tokens_compared"], 0);
    std::size_t balanced = 0, further = 0, guessed = 0;
    std::ifstream metrics(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const json m = json::parse(line, nullptr, false);
      balanced += m.contains("moe/max_violation");
      further += m.contains("loss/further_tokens") && m["loss/further_tokens"] > 0;
      guessed += m.contains("draft_acceptance_rate");
    }
    EXPECT_EQ(balanced > 0, family != "qwen3_5");
    EXPECT_EQ(further, further_tokens ? 46u : 0u);
    EXPECT_EQ(guessed > 0, further_tokens);
  }
};

} // namespace troupe::test
