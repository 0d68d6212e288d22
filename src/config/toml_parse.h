/// @file
/// TOML text -> Value. The only user of toml++.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/diagnostic.h"
#include "config/value.h"

namespace troupe::config {

/// Parses a document whose text is already a source. Syntax errors and duplicate keys are reported; where an error
/// spoils a single line only, the rest of the document is still returned, so that its other errors are found in the
/// same go. `complete` becomes false when anything was left out.
[[nodiscard]] Value parse_toml(std::string_view text, int source, Diagnostics& diagnostics, bool& complete);

/// One value, as it would stand behind "key = ". Nothing when it is not TOML. Every part gets `origin`.
[[nodiscard]] std::optional<Value> parse_toml_value(std::string_view text, Origin origin);

}  // namespace troupe::config
