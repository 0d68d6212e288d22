// With staleness 0 a run is a function of its config and seed: run again, or stopped and resumed, it leaves the same bits.
#include "support.h"

#include <algorithm>

namespace troupe::test {
namespace {

class DeterminismTest : public RunTest {
 protected:
  static std::vector<std::string> settings() {
    std::vector<std::string> out;
    for (const char* set : {"stage.rl.rl.staleness=0", "stage.rl.steps=110", "checkpoint.every=40", "output.samples_per_step=4",
                            "task.reward={type=\"regex\",pattern=\"7$\"}", "stage.rl.optim.lr=5e-5"})
      out.insert(out.end(), {"--set", set});
    return out;
  }
  /// Plays the whole run, killing or stopping it on the way as `interrupt` does, and takes what it left.
  struct Left {
    std::string weights, samples;
    std::map<std::uint64_t, json> metrics; // by step; of a step that was made twice, the last
  };
  Left take() const {
    Left left;
    left.weights = read_file(fs::path(run_dir()) / "export" / "model.safetensors").value_or("");
    std::map<std::string, std::string> samples; // by step and prompt
    std::ifstream file(fs::path(run_dir()) / "samples.jsonl");
    for (std::string line; std::getline(file, line);) {
      const json s = json::parse(line);
      samples[s["step"].dump() + "/" + s["prompt_id"].dump()] = line;
    }
    for (const auto& [name, line] : samples) left.samples += line + "\n";
    std::ifstream metrics(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      json m = json::parse(line);
      if (!m.contains("loss/mean")) continue;
      for (auto it = m.begin(); it != m.end();) it = depends_on_time(it.key()) ? m.erase(it) : std::next(it);
      const auto step = m["step"].get<std::uint64_t>();
      left.metrics[step] = std::move(m);
    }
    fs::rename(run_dir(), run_dir() + "." + std::to_string(++taken_));
    return left;
  }
  // Clocks, rates, gauges of a moment, and what the probe happened to compare.
  static bool depends_on_time(const std::string& key) {
    for (const char* prefix : {"time", "perf/", "timing", "num_requests", "kv_cache", "generation_tokens", "rollout_buffer/", "dispatcher/", "reward/generated",
                               "bit_wise/probe", "watcher/"})
      if (key.starts_with(prefix)) return true;
    return false;
  }
  static void expect_equal(const Left& a, const Left& b) {
    EXPECT_FALSE(a.weights.empty());
    EXPECT_TRUE(a.weights == b.weights) << "the exported weights differ";
    EXPECT_EQ(a.samples, b.samples);
    ASSERT_EQ(a.metrics.size(), b.metrics.size());
    for (const auto& [step, m] : a.metrics) {
      json other = b.metrics.at(step);
      json mine = m;
      for (const char* epoch_of_the_run : {"epoch"}) mine.erase(epoch_of_the_run), other.erase(epoch_of_the_run);
      EXPECT_EQ(mine, other) << "step " << step;
    }
  }
  mutable int taken_ = 0;
};

TEST_F(DeterminismTest, TwoRunsAreEqualAndSoIsOneThatWasStoppedAndResumed) {
  start(settings());
  ASSERT_EQ(finish(), 0);
  const Left first = take();
  ASSERT_EQ(first.metrics.size(), 130u);
  EXPECT_GT(std::count_if(first.metrics.begin(), first.metrics.end(), [](const auto& m) { return m.second.value("actor/grad_norm", 0.0) > 0; }), 50)
      << "there is something to learn all the time";

  start(settings());
  ASSERT_EQ(finish(), 0);
  {
    SCOPED_TRACE("the same again");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(8); }));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  ASSERT_EQ(summary()["exit"], "stopped");
  ASSERT_EQ(command({"run", "--resume", run_dir()}).code, 0);
  {
    SCOPED_TRACE("stopped and resumed");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(20); }));
  ASSERT_EQ(::kill(pids().at("rank/0"), SIGKILL), 0);
  ASSERT_EQ(finish(), 0);
  {
    SCOPED_TRACE("the rank was killed");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(20); }));
  ASSERT_EQ(::kill(run_pid, SIGKILL), 0);
  finish();
  run_pid = spawn({"run", "--resume", run_dir()}, folder / "run2.out", folder / "run.err");
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(events("adopted").size(), 1u);
  EXPECT_TRUE(first.weights == take().weights) << "the supervisor was killed and another one went on with its rank";
}

} // namespace
} // namespace troupe::test
