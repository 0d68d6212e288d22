/// @file
/// HOST:PORT, and the name of this host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe {

struct Endpoint {
  std::string host; ///< An address or a name.
  std::uint16_t port = 0;
};
[[nodiscard]] std::string to_string(const Endpoint& endpoint);
/// "10.0.0.1:7700". Errors: kInvalidArgument naming what is wrong.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text);

/// What this machine calls itself; "localhost" when it has no name.
[[nodiscard]] std::string host_name();

} // namespace troupe
