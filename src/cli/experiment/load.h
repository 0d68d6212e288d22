/// @file
/// Files, flags and JSON -> experiments, and back.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/experiment/experiment.h"
#include "config/diagnostic.h"
#include "config/value.h"

namespace troupe::experiment {

/// One run to make.
struct Point {
  Experiment experiment;
  config::Value tree;  ///< What was given, resolved; every leaf knows where it was written.
  std::string label;   ///< "optim.lr=0.001 run.seed=2" in a sweep, else empty.
};

struct Loaded {
  config::Diagnostics diagnostics;  ///< `diagnostics.text()` is what the user reads.
  bool is_sweep = false;            ///< Points then have the run dirs <run.dir>/000, 001, ...
  std::vector<Point> points;        ///< Empty when there are diagnostics, else at least one.

  [[nodiscard]] bool ok() const { return diagnostics.empty(); }
};

/// defaults < files left to right < sets ("key=value"). A file that ends in .json holds an experiment as
/// `experiment_to_json` gives it.
[[nodiscard]] Loaded load_experiment(const std::vector<std::filesystem::path>& files,
                                     const std::vector<std::string>& sets = {});
/// The same from JSON; `name` is how its places print ("run.json").
[[nodiscard]] Loaded load_experiment_json(const nlohmann::json& document, const std::string& name,
                                          const std::vector<std::string>& sets = {});

/// Every key with its value; `experiment_from_json` gives the same experiment back. Keys of a stage that equal the
/// top-level section's are left out, so that a later `--set optim.lr=` still reaches the stage.
[[nodiscard]] nlohmann::json experiment_to_json(const Experiment& experiment);
/// Errors: kInvalidConfig with the first problem.
[[nodiscard]] Result<Experiment> experiment_from_json(const nlohmann::json& document);

/// The experiment as TOML. With `loaded` (where `point` comes from) every line says where its value was given.
[[nodiscard]] std::string experiment_toml(const Experiment& experiment);
[[nodiscard]] std::string experiment_toml_with_origins(const Loaded& loaded, const Point& point);

/// All keys with types, ranges, defaults, docs and hot marks, as TOML.
[[nodiscard]] std::string config_reference();
/// Whether `key` (of "key=value"; a stage may be named: stage.rl.optim.lr) can be changed while a run is live.
/// Errors: kNotFound with the nearest key; kInvalidArgument when it is fixed, with the keys that are not.
[[nodiscard]] Status check_hot(std::string_view key);
/// What `troupe config explain KEY` prints. Errors: kNotFound with the nearest key.
[[nodiscard]] Result<std::string> explain(std::string_view key);

}  // namespace troupe::experiment
