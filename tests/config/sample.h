/// @file
/// A small schema with one of everything, and a folder for files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "config/load.h"
#include "config/output.h"
#include "config/schema.h"

namespace troupe::config {

enum class Decay { kNone, kCosine };

struct Optim {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  Decay decay = Decay::kNone;
  bool fused = true;
};
struct Sampling {
  double top_p = 1;
  std::optional<std::int32_t> seed;
};
struct Task {
  std::string type = "arithmetic";
  int digits = 2;
  std::string path;
  std::vector<std::string> command;
  std::int64_t limit = 100;
};
struct Stage {
  std::string type = "sft";
  std::string name;
  int steps = 10;
  int group_size = 8;
  Optim optim;
};
struct Sample {
  std::string numerics = "fast";
  std::string name = "run";
  std::uint64_t seed = 7;
  std::vector<std::string> tags = {"x"};
  Duration lease = std::chrono::seconds(5);
  Bytes cache{256u << 20};
  Optim optim;
  Sampling sampling;
  Task task;
  std::vector<Stage> stages;
};

inline void bind_optim(Section& s, Optim& o) {
  s.field("lr", o.lr, "Peak learning rate.").above(0).max(10).hot();
  s.field("betas", o.betas, "Decay of the moments.").min(0).below(1);
  s.choice("decay", o.decay, {{"none", Decay::kNone}, {"cosine", Decay::kCosine}}, "Shape after the warm-up.");
  s.field("fused", o.fused, "One pass over the parameters.");
}
inline void bind_sampling(Section& s, Sampling& o) {
  s.field("top_p", o.top_p, "Nucleus.").above(0).max(1);
  s.field("seed", o.seed, "Own seed.");
}
inline void bind_task(Section& s, Task& o) {
  s.choice("type", o.type, {"arithmetic", "jsonl", "program"}, "Which task.");
  s.variant_key("type");
  s.variant({"arithmetic"}, [&] { s.field("digits", o.digits, "Digits of each number.").min(1).max(9); });
  s.variant({"jsonl"}, [&] { s.field("path", o.path, "The file."); });
  s.variant({"program"}, [&] { s.field("command", o.command, "Program and arguments."); });
  s.variant({"arithmetic", "jsonl"}, [&] { s.field("limit", o.limit, "Problems at most.").min(1); });
}
inline void bind_stage(Section& s, Stage& o) {
  s.choice("type", o.type, {"sft", "rl", "export"}, "What the stage does.").required();
  s.variant_key("type");
  s.field("name", o.name, "Name of the stage.");
  s.variant({"sft", "rl"}, [&] {
    s.field("steps", o.steps, "Optimizer steps.").min(1);
    s.section("optim", o.optim, bind_optim, "Optimizer.").inherit("optim");
  });
  s.variant({"rl"}, [&] { s.field("group_size", o.group_size, "Samples of a prompt.").min(1); });
}
inline void bind_sample(Section& s, Sample& o) {
  s.choice("numerics", o.numerics, {"fast", "invariant"}, "Order of sums.");
  s.field("name", o.name, "Name of the run.");
  s.field("seed", o.seed, "Seed of everything.");
  s.field("tags", o.tags, "Words.");
  s.field("lease", o.lease, "Time without the head.").min(0.1);
  s.field("cache", o.cache, "Cache.").min(1 << 20);
  s.section("optim", o.optim, bind_optim, "Optimizer.");
  s.section("sampling", o.sampling, bind_sampling, "Sampling.");
  s.section("task", o.task, bind_task, "Task.");
  s.list("stage", o.stages, bind_stage, "Stages, one after another.");
}

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() { bind_sample(schema, sample); }
  void SetUp() override {
    ASSERT_TRUE(make_folders(folder));
    before = std::filesystem::current_path();
    std::filesystem::current_path(folder);  // so that diagnostics name "a.toml"
  }
  void TearDown() override {
    std::filesystem::current_path(before);
    std::filesystem::remove_all(folder);
  }

  /// Loads the texts as a.toml, b.toml, ... and the flags into `sample`; the errors as text.
  std::string load(const std::vector<std::string>& files, const std::vector<std::string>& sets = {}) {
    Layers layers;
    for (std::size_t i = 0; i < files.size(); ++i) {
      layers.files.emplace_back(std::string(1, static_cast<char>('a' + i)) + ".toml");
      EXPECT_TRUE(write_file_atomic(layers.files.back(), files[i]));
    }
    layers.sets = sets;
    diagnostics = {};
    merged = merge(schema, layers, diagnostics);
    tree = resolve(schema, merged.tree);
    assign(schema, tree);
    return diagnostics.text();
  }

  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("troupe_config_test." + std::to_string(::getpid()));
  std::filesystem::path before;
  Sample sample;
  Section schema;
  Diagnostics diagnostics;
  Merged merged;
  Value tree;
};

}  // namespace troupe::config
