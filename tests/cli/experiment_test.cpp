// The experiment as a whole: stages, algorithms, sweeps, JSON, reference.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/experiment/bindings.h"
#include "cli/sample.h"
#include "config/load.h"
#include "config/output.h"
#include "data/chat.h"
#include "rl/algorithm.h"
#include "rl/environment.h"
#include "rl/reward.h"

namespace troupe::experiment {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

TEST_F(ExperimentTest, StagesInheritAndOverride) {
  ASSERT_EQ(load(std::string(kModel) + "[optim]\nlr = 1e-4\nschedule = \"cosine\"\n[rl]\ngroup_size = 4\n" +
                 "[[stage]]\ntype = \"sft\"\nsteps = 5\noptim.lr = 1e-3\ndata.context_tokens = 64\n" + kRlStage +
                 "rl.staleness = 0\n[[stage]]\ntype = \"rl\"\nsteps = 3\n" + "sampling.max_new_tokens = 8\n"),
            "");
  const auto& stages = experiment().stages;
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].optim.adamw.lr, 1e-3);
  EXPECT_EQ(stages[0].optim.schedule.decay, optim::Decay::kCosine);
  EXPECT_EQ(schedule_of(stages[0]).total_steps, 5);
  EXPECT_EQ(stages[1].optim.adamw.lr, 1e-4);
  EXPECT_EQ(stages[1].rl.plan.samples_per_prompt, 4u);
  EXPECT_EQ(stages[1].rl.plan.staleness, 0u);
  EXPECT_EQ(stages[1].rl.plan.steps, 10u);
  EXPECT_EQ(protocol::window_groups(stages[1].rl.plan), 1u) << "staleness 0 forces a window of 1";
  EXPECT_EQ(stages[2].rl.plan.staleness, 1u);
  EXPECT_EQ(stages[1].name, "rl");
  EXPECT_EQ(stages[2].name, "rl-2");
}

TEST_F(ExperimentTest, TheAlgorithmSetsDefaultsNotValues) {
  const std::string text = std::string(kModel) + "[rl]\nalgorithm = \"dr_grpo\"\nloss.clip_high = 0.5\n" + kRlStage +
                           "[[stage]]\ntype = \"rl\"\nname = \"b\"\nsteps = 1\n" +
                           "rl.algorithm = \"dapo\"\nsampling.max_new_tokens = 8\n";
  ASSERT_EQ(load(text), "");
  const rl::AlgorithmOptions a = algorithm_of(experiment().stages[0]);
  EXPECT_EQ(a.advantage.std, rl::StdConvention::kNone);
  EXPECT_EQ(a.loss.aggregation, rl::Aggregation::kConstant);
  EXPECT_EQ(a.loss.constant_tokens, 16) << "the longest completion of the stage";
  EXPECT_EQ(a.loss.clip_high, 0.5) << "what the user wrote wins over the algorithm";
  const rl::AlgorithmOptions b = algorithm_of(experiment().stages[1]);
  EXPECT_EQ(b.loss.aggregation, rl::Aggregation::kTokenMean);
  EXPECT_EQ(b.advantage.std, rl::StdConvention::kSample);
  EXPECT_EQ(b.loss.clip_high, 0.5);
  EXPECT_THAT(experiment_toml_with_origins(loaded, loaded.points[0]),
              HasSubstr("aggregation = \"constant\"  # default\n"));
}

TEST_F(ExperimentTest, JsonComesBackEqualAndTakesFlags) {
  ASSERT_EQ(load(std::string(kModel) +
                 "[rl]\nalgorithm = \"rloo\"\nmax_age = 4\n[[optim.group]]\npattern = \"*norm*\"\nweight_decay = 0\n" +
                 kRlStage + "rl.algorithm = \"dapo\"\noptim.lr = 0.25\n[[stage]]\ntype = \"export\"\n"),
            "");
  const nlohmann::json json = experiment_to_json(experiment());
  const auto again = experiment_from_json(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(experiment_to_json(*again), json);
  EXPECT_EQ(again->stages[0].rl.options.loss.clip_high, 0.28);
  EXPECT_EQ(again->stages[0].rl.plan.max_age, 4u);
  EXPECT_EQ(again->stages[0].optim.adamw.groups.at(0).weight_decay, 0);
  EXPECT_EQ(again->rl.options.advantage.baseline, rl::Baseline::kLeaveOneOut);

  const Loaded changed =
      load_experiment_json(json, "run.json", {"rollout.sampling.temperature=0.5", "stage.rl.steps=99"});
  ASSERT_TRUE(changed.ok()) << changed.diagnostics.text();
  EXPECT_EQ(changed.points[0].experiment.stages[0].sampling.temperature, 0.5);
  EXPECT_EQ(schedule_of(changed.points[0].experiment.stages[0]).total_steps, 99);
  EXPECT_THAT(load_experiment_json({{"zzz", 1}}, "run.json").diagnostics.text(),
              HasSubstr("run.json: error: unknown key zzz"));
}

TEST_F(ExperimentTest, WhoeverKeepsNoBitsIsRefusedWhereTheyArePromised) {
  const auto with = [&](const char* numerics, const std::string& set) {
    return load("numerics = \"" + std::string(numerics) + "\"\n" + kModel + kRlStage, {set});
  };
  for (const tensor::BackendRow& row : tensor::kBackendRows) {
    const std::string key = std::string("kernels.") + row.key, cuda = key + "=\"cuda\"";
    SCOPED_TRACE(key);
    for (const char* value : {"cpu", "check:cuda"}) EXPECT_EQ(with("invariant", key + "=\"" + value + "\""), "");
    EXPECT_EQ(with("fast", cuda), "");
    if (row.same_bits)
      EXPECT_EQ(with("invariant", cuda), "");
    else
      EXPECT_THAT(with("invariant", cuda), HasSubstr(key + " = \"cuda\" cannot keep what numerics = \"invariant\" promises"));
    if (row.other == tensor::Backend::kCpu) {
      EXPECT_THAT(with("fast", key + "=\"check\""), HasSubstr("must be one of \"cpu\", \"cuda\", \"check:cuda\"; got \"check\"")) << "there is nobody to compare with";
      continue;
    }
    const std::string name = row.other == tensor::Backend::kAten ? "aten" : "chunked", other = key + "=\"" + name + "\"";
    EXPECT_THAT(with("invariant", other), HasSubstr(key + " = \"" + name + "\" cannot keep")) << other;
    EXPECT_EQ(with("fast", other), "") << other;
    EXPECT_EQ(with("invariant", key + "=\"check\""), "");
  }
}

TEST_F(ExperimentTest, AKernelWithoutBfloat16IsRefusedOnTheGpu) {
  for (const tensor::BackendRow& row : tensor::kBackendRows)
    for (const char* value : {"cuda", "check:cuda"}) {
      const std::string key = std::string("kernels.") + row.key;
      const std::string text = load(std::string(kModel) + kRlStage, {key + "=\"" + value + "\"", "model.dtype=\"bfloat16\""});
      if (row.bfloat16)
        EXPECT_EQ(text, "");
      else
        EXPECT_THAT(text, HasSubstr(key + " = \"" + value + "\" needs model.dtype = \"float32\""));
    }
}

TEST_F(ExperimentTest, TomlComesBackEqual) {
  ASSERT_EQ(load(std::string(kModel) + kRlStage), "");
  const nlohmann::json json = experiment_to_json(experiment());
  const std::string text = experiment_toml(experiment());
  ASSERT_EQ(load(text), "") << text;
  EXPECT_EQ(experiment_to_json(experiment()), json);
}

TEST_F(ExperimentTest, SweepsMakeOneRunPerPoint) {
  ASSERT_EQ(load(std::string("numerics = \"fast\"\n") + kModel + kRlStage +
                 "[sweep]\n\"optim.lr\" = [1e-3, 1e-4]\n\"rl.algorithm\" = [\"grpo\", \"rloo\"]\n"),
            "");
  ASSERT_TRUE(loaded.is_sweep);
  ASSERT_EQ(loaded.points.size(), 4u);
  EXPECT_EQ(loaded.points[1].label, "optim.lr=0.001 rl.algorithm=\"rloo\"");
  const Experiment& e = loaded.points[1].experiment;
  EXPECT_EQ(e.run.dir, "runs/exp/001");
  EXPECT_EQ(e.run.name, "exp.001");
  EXPECT_EQ(e.stages[0].optim.adamw.lr, 1e-3);
  EXPECT_EQ(e.stages[0].rl.options.advantage.baseline, rl::Baseline::kLeaveOneOut);
  EXPECT_EQ(loaded.points[2].experiment.stages[0].optim.adamw.lr, 1e-4);
}

TEST_F(ExperimentTest, TheRunIsNamedAfterItsFile) {
  ASSERT_EQ(load(std::string(kModel) + kRlStage), "");
  EXPECT_EQ(experiment().run.name, "exp");
  EXPECT_EQ(experiment().run.dir, "runs/exp");
  ASSERT_EQ(load(std::string(kModel) + kRlStage, {"run.name=other", "run.seed=9"}), "");
  EXPECT_EQ(experiment().run.dir, "runs/other");
  EXPECT_EQ(experiment().task.seed, 9u);
}

TEST_F(ExperimentTest, EvaluationIsGreedy) {
  ASSERT_EQ(load(std::string(kModel) + kRlStage +
                 "sampling.temperature = 0.7\n[[stage]]\ntype = \"eval\"\neval.max_new_tokens = 5\n"),
            "");
  EXPECT_EQ(evaluation_sampling(experiment(), experiment().stages[0]).temperature, 0);
  EXPECT_EQ(evaluation_sampling(experiment(), experiment().stages[0]).max_new_tokens, 16);
  EXPECT_EQ(evaluation_sampling(experiment(), experiment().stages[1]).max_new_tokens, 5);
  EXPECT_TRUE(needs_rollouts(experiment()));
}

TEST(Reference, LoadsAsTheDefaults) {
  const std::string text = config_reference();
  config::Diagnostics diagnostics;
  Experiment read, defaults;
  config::Section schema, plain;
  bind_experiment(schema, read);
  bind_experiment(plain, defaults);
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("troupe_reference." + std::to_string(::getpid()) + ".toml");
  ASSERT_TRUE(write_file_atomic(path, text));
  const config::Merged merged = config::merge(schema, {{path}, {}}, diagnostics);
  std::filesystem::remove(path);
  ASSERT_EQ(diagnostics.text(), "");
  config::assign(schema, config::resolve(schema, merged.tree));
  EXPECT_EQ(config::to_json(config::dump(schema)), config::to_json(config::dump(plain)));
  EXPECT_THAT(text, HasSubstr("workers = 2"));
  EXPECT_THAT(text, HasSubstr("; hot)"));
}

// Every default must be one that the user could have written.
void expect_defaults_in_range(const config::Section& section, const std::string& path) {
  for (const config::Field& field : section.fields()) {
    EXPECT_FALSE(field.doc.empty()) << path << field.key;
    if (!field.is_leaf()) {
      expect_defaults_in_range(*field.section, path + field.key + ".");
    } else if (const auto value = field.read()) {
      const auto checked = config::check_leaf(field, *value);
      const auto* problem = std::get_if<config::LeafProblem>(&checked);
      EXPECT_TRUE(problem == nullptr || field.is_required)
          << path << field.key << " " << (problem ? problem->message : "");
    }
  }
}

TEST(Reference, EveryKeyIsDocumentedAndItsDefaultIsLegal) {
  Experiment defaults;
  config::Section schema;
  bind_experiment(schema, defaults);
  expect_defaults_in_range(schema, "");
}

TEST(Explain, KnowsEveryKindOfPath) {
  EXPECT_THAT(*explain("rollout.on_update"), HasSubstr("\"keep_kv\" | \"recompute_kv\""));
  EXPECT_THAT(*explain("stage.steps"), HasSubstr("only with type = \"pretrain\" or \"sft\" or \"rl\""));
  EXPECT_THAT(*explain("stage.rl.loss.clip_high"), HasSubstr("default: 0.2"));
  EXPECT_THAT(explain("rl.clip_high").error().message, HasSubstr("did you mean"));
}

// The names a config may use are those the registries know.
template <class Rows, class F>
std::vector<std::string> names_of(const Rows& rows, F name) {
  std::vector<std::string> out;
  for (const auto& row : rows) out.emplace_back(name(row));
  return out;
}

TEST(Registries, ChoicesAreTheirRows) {
  Experiment e;
  config::Section s;
  bind_experiment(s, e);
  const auto choices = [&](const char* section, const char* key) {
    return s.find(section)->section->find(key)->choices;
  };
  EXPECT_THAT(choices("rl", "algorithm"),
              ElementsAreArray(names_of(rl::algorithms(), [](const auto& r) { return r.name; })));
  EXPECT_THAT(choices("task", "type"), ElementsAreArray(names_of(rl::tasks(), [](const auto& r) { return r.type; })));
  const auto rewards = s.find("task")->section->find("reward")->section->find("type")->choices;
  EXPECT_THAT(rewards,
              testing::UnorderedElementsAreArray(names_of(rl::rewards(), [](const auto& r) { return r.type; })));
  EXPECT_THAT(choices("tokenizer", "format"), testing::UnorderedElementsAreArray(names_of(
                                                  data::prompt_format_names(), [](const auto& r) { return r; })));
}

}  // namespace
}  // namespace troupe::experiment
