/// @file
/// Lays one tree over another under a schema, and reports what does not fit. Internal to config.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostic.h"
#include "config/schema.h"

namespace troupe::config {

/// A key and the table that holds it.
struct Target {
  const Section* section = nullptr;
  const Field* field = nullptr;
  Value* table = nullptr;
  std::string table_path;  ///< "stage.1"
  std::string path;        ///< "stage.1.steps", with the index where the user wrote a name
};

class Merger {
 public:
  Merger(const Section& root, Diagnostics& diagnostics) : root_(root), diagnostics_(diagnostics) {}

  /// Lays the table `overlay` over the table `base`. What does not fit the schema is reported and left out.
  void merge(const Section& section, Value& base, const Value& overlay, std::string_view path);

  /// Finds the key that `keys` names in `tree`, making tables on the way; list elements go by index, name or variant.
  /// Reports and returns nothing when there is none.
  std::optional<Target> locate(Value& tree, const std::vector<std::string>& keys, Origin origin);

 private:
  void member(const Section& section, const Field& field, Value& base, const Member& given, std::string_view path);
  void list(const Field& field, Value& base, const Member& given, const std::string& path);
  void select_variant(const Section& section, Value& base, const Value& overlay);
  void unknown(const Section& section, std::string_view variant, std::string_view path, std::string_view key,
               Origin origin);
  Value* element(const Field& field, Value& table, const std::string& list_path, const std::string& selector,
                 Origin origin, std::string& index);

  const Section& root_;
  Diagnostics& diagnostics_;
};

/// The field at a dotted path; list elements may be named ("stage.rl.steps", "stage.0.steps") or not ("stage.steps").
[[nodiscard]] const Field* find_field(const Section& section, const std::vector<std::string>& keys,
                                      std::size_t begin = 0, const Section** owner = nullptr);

/// Every path of a schema, list elements without index: "optim.lr", "stage.steps".
[[nodiscard]] std::vector<std::string> all_paths(const Section& schema, std::string_view prefix = {});

/// "did you mean optim.lr?" for a mistyped or misplaced path, or "".
[[nodiscard]] std::string did_you_mean(const Section& root, const Section& section, std::string_view variant,
                                       std::string_view path, std::string_view key);

}  // namespace troupe::config
