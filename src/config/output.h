/// @file
/// The way back: bound objects as TOML, as JSON, as a commented reference.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "config/diagnostic.h"
#include "config/schema.h"

namespace troupe::config {

/// Every active key with its present value. Keys of an inheriting section that equal their parent's are left out.
[[nodiscard]] Value dump(const Section& schema);

/// A dump as a TOML document.
[[nodiscard]] std::string to_toml(const Value& dumped);
/// The same with "# default", "# exp.toml:3" or "# --set optim.lr=1" after every leaf. `resolved` is the tree that was
/// assigned.
[[nodiscard]] std::string to_toml_with_origins(const Value& dumped, const Value& resolved, const Sources& sources);

/// Durations and sizes are strings with units, floats keep all their digits.
[[nodiscard]] nlohmann::json to_json(const Value& value);
/// Errors: an unsupported or too deep document gives a `Date` leaf, which every check refuses.
[[nodiscard]] Value from_json(const nlohmann::json& document, Origin origin);

/// All keys with type, range, default, doc and hot mark, as a TOML document that loads as the defaults.
[[nodiscard]] std::string reference(const Section& schema);

/// Whether a key may be changed while a run is live; nothing for an unknown key. Paths as for `explain`.
[[nodiscard]] std::optional<bool> is_hot(const Section& schema, std::string_view path);

/// What `troupe config explain KEY` prints; list elements are named without index ("stage.steps"). Nothing for an
/// unknown key; `nearest` (optional) then receives "did you mean ..." or "".
[[nodiscard]] std::optional<std::string> explain(const Section& schema, std::string_view path,
                                                 std::string* nearest = nullptr);

}  // namespace troupe::config
