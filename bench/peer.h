/// @file
/// Other people's programs: Python scripts in an environment of their own, set up when they are first asked for.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/benchmark.h"

namespace troupe::bench {

/// Runs bench/peers/SCRIPT and gives the JSON object it printed last; nothing when peers were not asked for, or when
/// the environment cannot be set up or the script failed: then the context was told why.
[[nodiscard]] std::optional<nlohmann::json> run_peer(Context& context, const std::string& script,
                                                     const std::vector<std::string>& arguments);

/// `result`'s number `key` as the peer of a figure.
[[nodiscard]] std::optional<Peer> peer_of(const std::optional<nlohmann::json>& result, const std::string& key);

}  // namespace troupe::bench
