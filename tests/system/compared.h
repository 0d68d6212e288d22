/// @file
/// What a run leaves that is a function of its config and seed, and its comparison.
#pragma once

#include <string>

#include "support.h"

namespace troupe::test {

class ComparedRunTest : public RunTest {
 protected:
  /// What a run left.
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

} // namespace troupe::test
