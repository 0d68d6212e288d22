/// @file
/// What `troupe status` and its siblings ask on the control socket: one JSON object on one line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"

namespace troupe::actors {

/// A request whose `command` is a string, and its `role`, `node`, `setting`, `experiment` where it has them. Errors: kInvalidArgument, kCorrupt.
[[nodiscard]] Result<nlohmann::json> parse_control_request(std::string_view line);

} // namespace troupe::actors
