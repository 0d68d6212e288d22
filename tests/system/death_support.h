/// @file
/// Runs whose processes are killed in the middle.
#pragma once

#include "support.h"

namespace troupe::test {

class DeathTest : public RunTest {
 protected:
  void start_long(std::vector<std::string> more = {}) {
    for (const char* set : {"stage.rl.steps=800", "checkpoint.every=100"}) more.insert(more.end(), {"--set", set});
    start(std::move(more));
    ASSERT_TRUE(wait_until([&] { return training_rl(120); }));
  }
  void kill_supervisor() {
    ASSERT_EQ(::kill(run_pid, SIGKILL), 0);
    EXPECT_EQ(finish(), 128 + SIGKILL);
  }
  void resume() { run_pid = spawn({"run", "--resume", run_dir()}, folder / "run2.out", folder / "run.err"); }
  bool serving(const std::string& name, int restarts) const {
    for (const json& a : actors())
      if (a["name"] == name && a["state"] == "serving" && a["restarts"] == restarts) return true;
    return false;
  }
  void expect_done(std::uint64_t steps) {
    ASSERT_EQ(finish(), 0);
    const json s = summary();
    expect_sound_summary(s);
    EXPECT_EQ(s["exit"], "done");
    EXPECT_EQ(s["steps"], steps);
    EXPECT_EQ(s["prompts"]["delivered"], 4 * (steps - 20));
  }
  // Each step of the run once, in order, whoever the supervisor was; after a rollback, from the commit on again.
  std::vector<std::uint64_t> steps_reported() const {
    std::vector<std::uint64_t> steps;
    std::ifstream file(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const json m = json::parse(line, nullptr, false); m.is_object() && m.contains("loss/mean")) steps.push_back(m["step"].get<std::uint64_t>());
    return steps;
  }
};

} // namespace troupe::test
