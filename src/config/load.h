/// @file
/// Layers of input -> one checked tree: defaults < files left to right < `--set`. Nothing stops at the first error.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/diagnostic.h"
#include "config/schema.h"

namespace troupe::config {

/// What the user gave, in order of precedence. Files ending in ".json" are read as JSON, others as TOML.
struct Layers {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> sets;  ///< "key=value"; values in TOML syntax, text keys take bare words.
};

/// One line of `[sweep]`: a leaf and the values it takes.
struct SweepAxis {
  std::string path;
  Origin origin;
  std::vector<Value> values;
};

/// One combination: the value of each axis, in the axes' order.
struct SweepPoint {
  std::vector<std::pair<std::string, Value>> values;
};

/// Everything the layers gave, checked against the schema: unknown keys, types, ranges, units, choices.
struct Merged {
  Value tree;  ///< Only what was given; each leaf has its origin. Wrong leaves are left out (and reported).
  std::vector<SweepAxis> sweep;
  bool syntax_ok = true;  ///< False: a file could not be read whole, so "missing" proves nothing.
};

/// Largest number of points a sweep may have.
inline constexpr std::size_t kSweepPointsMax = 1000;

/// Reads and merges all layers. Tables are merged, lists replaced whole; a changed variant drops the old one's keys.
/// `--set` reaches into lists by index or by the element's name or type: `stage.0.steps`, `stage.rl.steps`.
/// A key `sweep` at the top is taken as the sweep table unless the schema has a key of that name.
[[nodiscard]] Merged merge(const Section& schema, const Layers& layers, Diagnostics& diagnostics);
/// The same with a JSON document below the `--set` flags. `name` is how its places print.
[[nodiscard]] Merged merge_json(const Section& schema, const nlohmann::json& document, const std::string& name,
                                const std::vector<std::string>& sets, Diagnostics& diagnostics);

/// All points of the product, the first axis slowest. One empty point when there are no axes.
[[nodiscard]] std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes);

/// The tree with a sweep point laid over it and inherited sections filled in (keys with `Field::inherits`).
[[nodiscard]] Value resolve(const Section& schema, Value tree, const SweepPoint& point = {});

/// Writes a resolved tree into the bound objects. Keys that are not in the tree keep their value.
void assign(const Section& schema, const Value& tree);

/// Checks between keys, after the tree is resolved. A check about a key that already has an error stays silent.
class CrossChecks {
 public:
  CrossChecks(const Value& tree, Diagnostics& diagnostics) : tree_(tree), diagnostics_(diagnostics) {}
  /// One error that shows the place of every key in `paths`; it stands at the first one that was given.
  void conflict(const std::vector<std::string>& paths, std::string message, std::string hint = {});
  /// One error at the first of `paths` that was given (a key, or the section it would be in). Silent when any has an
  /// error.
  void problem(const std::vector<std::string>& paths, std::string message, std::string hint = {});
  /// Whether the user gave the key; values filled in for him (origin "default") do not count.
  [[nodiscard]] bool given(std::string_view path) const;

 private:
  const Value& tree_;
  Diagnostics& diagnostics_;
};

}  // namespace troupe::config
