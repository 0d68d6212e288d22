/// @file
/// Loads experiments from texts.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/experiment/load.h"

namespace troupe::experiment {

/// A complete small experiment, to which a test adds what it is about.
inline constexpr const char* kModel =
    "[model]\nwidth = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nffn_width = 128\ncontext = 128\n"
    "[tokenizer]\ntype = \"bytes\"\nformat = \"plain\"\n";
inline constexpr const char* kRlStage = "[[stage]]\ntype = \"rl\"\nsteps = 10\nsampling.max_new_tokens = 16\n";

class ExperimentTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(make_folders(folder));
    before = std::filesystem::current_path();
    std::filesystem::current_path(folder);  // so that diagnostics name "exp.toml"
  }
  void TearDown() override {
    std::filesystem::current_path(before);
    std::filesystem::remove_all(folder);
  }
  /// `text` as exp.toml, loaded; `loaded` keeps everything. Returns the errors.
  std::string load(const std::string& text, const std::vector<std::string>& sets = {}) {
    EXPECT_TRUE(write_file_atomic("exp.toml", text));
    loaded = load_experiment({"exp.toml"}, sets);
    return loaded.diagnostics.text();
  }
  const Experiment& experiment() const { return loaded.points.at(0).experiment; }

  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("troupe_experiment_test." + std::to_string(::getpid()));
  std::filesystem::path before;
  Loaded loaded;
};

}  // namespace troupe::experiment
