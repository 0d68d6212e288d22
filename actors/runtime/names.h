/// @file
/// Workers by the names that messages carry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "protocol/types.h"

namespace troupe::actors {

/// "rollout/3" with its incarnation. Errors: kInvalidArgument.
[[nodiscard]] Result<protocol::WorkerId> worker_id(std::string_view name, std::uint32_t incarnation);

/// Of its file in logs/: "rollout-3.0.log".
[[nodiscard]] std::string log_name(const protocol::WorkerId& worker);

} // namespace troupe::actors
