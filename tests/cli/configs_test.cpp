// Every file in configs/ loads, and comes back from JSON as it was.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/experiment/load.h"

namespace troupe::experiment {
namespace {

namespace fs = std::filesystem;

TEST(Configs, EveryFileLoads) {
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TROUPE_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    const Loaded loaded = load_experiment({entry.path()});
    ASSERT_TRUE(loaded.ok()) << loaded.diagnostics.text();
    for (const Point& point : loaded.points) {
      const nlohmann::json json = experiment_to_json(point.experiment);
      const auto again = experiment_from_json(nlohmann::json::parse(json.dump()));
      ASSERT_TRUE(again) << entry.path() << ": " << again.error().to_string();
      EXPECT_EQ(experiment_to_json(*again), json) << entry.path();
    }
  }
  EXPECT_GE(count, 1);
}

TEST(Configs, QuickstartIsTheMainJob) {
  const Loaded loaded = load_experiment({fs::path(TROUPE_SOURCE_DIR) / "configs/quickstart.toml"});
  ASSERT_TRUE(loaded.ok()) << loaded.diagnostics.text();
  const Experiment& e = loaded.points.at(0).experiment;
  EXPECT_EQ(e.run.name, "quickstart");
  EXPECT_EQ(e.run.dir, "runs/quickstart");
  EXPECT_EQ(e.rollout.workers, 2u);
  EXPECT_GE(e.eval.problems, 400);
  ASSERT_EQ(e.stages.size(), 4u);
  EXPECT_EQ(e.stages[0].kind, protocol::StageKind::kSft);
  EXPECT_EQ(e.stages[1].kind, protocol::StageKind::kRl);
  EXPECT_EQ(e.stages[2].kind, protocol::StageKind::kEval);
  EXPECT_EQ(e.stages[3].kind, protocol::StageKind::kExport);
  EXPECT_EQ(export_folder(e, e.stages[3]), "runs/quickstart/export");
}

}  // namespace
}  // namespace troupe::experiment
