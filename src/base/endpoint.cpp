#include "base/endpoint.h"

#include <unistd.h>

#include <charconv>

namespace troupe {

std::string to_string(const Endpoint& endpoint) { return endpoint.host + ":" + std::to_string(endpoint.port); }

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto wrong = [&](const char* why) {
    return fail(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is not HOST:PORT, such as 10.0.0.1:7700: " + why);
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("there is no port");
  if (colon == 0) return wrong("there is no host");
  const std::string_view digits = text.substr(colon + 1);
  unsigned port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() || port == 0 || port > 65535) return wrong("a port is a number from 1 to 65535");
  return Endpoint{std::string(text.substr(0, colon)), static_cast<std::uint16_t>(port)};
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

} // namespace troupe
