// The rules between keys: each is broken once, and the message must show the places.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/sample.h"

namespace troupe::experiment {
namespace {

using testing::HasSubstr;

std::string base(const std::string& more = {}) { return std::string(kModel) + more + kRlStage; }

TEST_F(ExperimentTest, AnEmptyFileSaysWhatIsMissing) {
  const std::string text = load("");
  EXPECT_THAT(text, HasSubstr("the model is not described: width, layers, heads, ffn_width missing in [model]"));
  EXPECT_THAT(text, HasSubstr("there is no tokenizer: a fresh model brings none"));
  EXPECT_THAT(text, HasSubstr("there is no [[stage]]: nothing to do"));
  EXPECT_TRUE(loaded.points.empty());
}

TEST_F(ExperimentTest, CutSamplingIsRefusedInRlStages) {
  EXPECT_EQ(load(std::string(kModel) + "[rollout.sampling]\ntop_p = 0.9\n" + kRlStage),
            "exp.toml:12:9: error: top_p = 0.9 cannot be used in an rl stage: kept sets are not recorded, so that "
            "every ratio would be wrong by the probability that was cut off\n"
            "   12 | top_p = 0.9\n"
            "      |         ^~~\n"
            "exp.toml:14:8: note: stage.0.type is given here\n"
            "   14 | type = \"rl\"\n"
            "      |        ^~~~\n"
            "   hint: train with top_p = 1; evaluation is greedy anyway\n"
            "1 error; nothing was started\n");
  EXPECT_THAT(load(base() + "sampling.top_k = 5\nsampling.min_p = 0.1\n"), HasSubstr("2 errors"));
  EXPECT_THAT(load(base() + "sampling.temperature = 0\n"), HasSubstr("every sample of a group would be the same"));
  EXPECT_EQ(load(std::string(kModel) + "[rollout.sampling]\ntop_p = 0.9\n[[stage]]\ntype = \"eval\"\n"), "")
      << "only training is concerned";
}

TEST_F(ExperimentTest, GenerationNeedsAWorker) {
  EXPECT_THAT(
      load(base(), {"rollout.workers=0"}),
      HasSubstr("--set rollout.workers=0: error: rollout.workers is 0, but the run has a stage that generates"));
  EXPECT_EQ(load(std::string(kModel) + "[rollout]\nworkers = 0\n[[stage]]\ntype = \"export\"\n"), "");
}

TEST_F(ExperimentTest, AModelIsAFileOrSizes) {
  EXPECT_THAT(load(base(), {"model.path=x.gguf"}),
              HasSubstr("model.width is for fresh models, but model.path names a checkpoint"));
  EXPECT_THAT(load(base(), {"model.path=x.gguf"}), HasSubstr("note: model.path is given here"));
  EXPECT_THAT(load(base(), {"model.heads=3"}), HasSubstr("model.width 64 is not a multiple of model.heads 3"));
  EXPECT_THAT(load(base(), {"model.kv_heads=3"}), HasSubstr("model.heads 4 is not a multiple of model.kv_heads 3"));
  EXPECT_EQ(load(std::string("[model]\npath = \"x.gguf\"\n") + kRlStage), "") << "a checkpoint brings its tokenizer";
}

TEST_F(ExperimentTest, LengthsMustFit) {
  EXPECT_THAT(load(base(), {"stage.rl.sampling.max_new_tokens=128"}),
              HasSubstr("max_new_tokens 128 leaves no room for a prompt in a context of 128 tokens"));
  EXPECT_THAT(load(base(), {"rollout.context_tokens=129"}),
              HasSubstr("rollout.context_tokens 129 is longer than model.context 128"));
  EXPECT_THAT(load(base(), {"rollout.kv_cache=64KiB", "model.context=256"}),
              HasSubstr("rollout.kv_cache 64 KiB does not hold one sequence of 256 tokens (128 KiB)"));
  const std::string sft = std::string(kModel) + "[[stage]]\ntype = \"sft\"\nsteps = 5\n";
  EXPECT_THAT(load(sft), HasSubstr("data.context_tokens 2048 is longer than model.context 128"));
  EXPECT_THAT(load(sft + "data.context_tokens = 100\ndata.tokens_per_batch = 50\n"),
              HasSubstr("a batch of 50 tokens does not hold a document of 100"));
  EXPECT_THAT(load(base("[rl]\ngroup_size = 300\n")),
              HasSubstr("a group of 300 samples does not fit rollout.max_in_flight 256"));
}

TEST_F(ExperimentTest, StalenessZeroHasNoWindow) {
  const std::string text = load(base("[rl]\nwindow_fraction = 0.5\nstaleness = 0\n"));
  EXPECT_THAT(text, HasSubstr("exp.toml:12:19: error: staleness = 0 trains on the newest weights only"));
  EXPECT_THAT(text, HasSubstr("exp.toml:13:13: note: stage.0.rl.staleness is given here"));
  EXPECT_EQ(load(base("[rl]\nstaleness = 0\n")), "") << "the default window does not count as given";
  EXPECT_THAT(load(base("[rl]\nstaleness = 3\nmax_age = 2\n")), HasSubstr("max_age 2 is below staleness 3"));
}

TEST_F(ExperimentTest, LossesThatAreWrongAreRefused) {
  EXPECT_THAT(load(base("[rl]\nloss.importance = \"token\"\n")), HasSubstr("rl.loss.importance corrects twice"));
  EXPECT_THAT(load(base("[rl]\nloss.kl = { coefficient = 0.1, estimator = \"k1\", weight = \"none\" }\n")),
              HasSubstr("zero mean"));
  EXPECT_THAT(load(base("[rl]\ngroup_size = 1\n")), HasSubstr("rl.group_size must be"));
}

TEST_F(ExperimentTest, TasksAndRewardsMustBeWhole) {
  EXPECT_THAT(load(base("[task]\ntype = \"jsonl\"\n")), HasSubstr("exp.toml:12:8: error: task.path is missing"));
  EXPECT_THAT(load(base("[task]\ntype = \"program\"\n")), HasSubstr("task.command is missing"));
  EXPECT_THAT(load(base("[task]\nreward = { type = \"regex\", pattern = \"(\" }\n")),
              HasSubstr("error: task.reward: "));
  EXPECT_THAT(load(base("[task]\nreward = { type = \"sum\" }\n")), HasSubstr("error: task.reward: "));
  EXPECT_EQ(load(base("[task.reward]\ntype = \"sum\"\n[[task.reward.part]]\ntype = \"exact\"\nweight = "
                      "0.5\n[[task.reward.part]]\ntype = \"boxed\"\n")),
            "");
  ASSERT_EQ(experiment().task.reward.parts.size(), 2u);
  EXPECT_EQ(experiment().task.reward.parts[0].weight, 0.5);
  EXPECT_THAT(load(base("[task]\noperand_min = 50\noperand_max = 40\n")), HasSubstr("error: task: "));
  EXPECT_THAT(load(base("[eval]\nproblems = 100_000\n")),
              HasSubstr("different problems, eval.problems asks for 100000"));
  EXPECT_THAT(load(std::string(kModel) + "[[stage]]\ntype = \"pretrain\"\nsteps = 1\n"),
              HasSubstr("a pretrain stage needs data.path"));
}

TEST_F(ExperimentTest, NamesMakeFolders) {
  EXPECT_THAT(load(base(), {"run.name=../x"}), HasSubstr("run.name \"../x\" cannot name a folder"));
  EXPECT_THAT(load(base() + "name = \"a\"\n[[stage]]\ntype = \"export\"\nname = \"a\"\n"),
              HasSubstr("two stages are called \"a\""));
}

TEST_F(ExperimentTest, RanksAndTheirThreads) {
  EXPECT_EQ(load(base(), {"trainer.ranks=2", "trainer.threads=3"}), "");
  EXPECT_EQ(experiment().trainer.ranks, 2u);
  EXPECT_EQ(rank_threads(experiment()), 3);
  EXPECT_EQ(load(base(), {"trainer.ranks=200", "comm.deadline=\"5s\""}), "");
  EXPECT_EQ(rank_threads(experiment()), 1) << "at least one, however many share the cores";
  EXPECT_EQ(experiment().comm.deadline, std::chrono::seconds(5));
  EXPECT_THAT(load(base(), {"trainer.ranks=0"}), HasSubstr("trainer.ranks must be"));
  EXPECT_THAT(load(base(), {"comm.deadline=\"20m\""}), HasSubstr("comm.deadline must be shorter than control.work_silence"));
}

TEST_F(ExperimentTest, DeadlinesAreOrdered) {
  EXPECT_THAT(load(base("[control]\nheartbeat = \"2s\"\n")),
              HasSubstr("control.heartbeat must be shorter than control.suspect_after"));
  EXPECT_THAT(load(base("[control]\nlease = \"2m\"\n")),
              HasSubstr("control.lease must be shorter than control.head_wait"));
}

TEST_F(ExperimentTest, ConflictsAndWrongKeysComeInOneGo) {
  const std::string text = load(base("[rl]\ngruop_size = 4\n"), {"comm.deadline=\"3m\"", "rollout.workers=-1"});
  EXPECT_THAT(text, HasSubstr("unknown key rl.gruop_size; did you mean rl.group_size?"));
  EXPECT_THAT(text, HasSubstr("comm.deadline must be shorter than control.mesh_deadline"));
  EXPECT_THAT(text, HasSubstr("rollout.workers must be"));
  EXPECT_THAT(text, HasSubstr("3 errors; nothing was started"))
      << "the check of workers stays silent: the value is known to be wrong";
}

}  // namespace
}  // namespace troupe::experiment
