/// @file
/// Addresses and listening sockets: where a run can be reached, and who listens on what.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/file.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::actors {

/// The interface that has this IPv4 address. Errors: kNotFound listing the addresses of this machine.
[[nodiscard]] Result<std::string> interface_of(const std::string& address);
/// The address of this machine from which packets to `host` leave. Sends nothing. Errors: kUnavailable.
[[nodiscard]] Result<std::string> address_towards(const std::string& host);
/// A TCP connection. Errors: kUnavailable (refused, no route), kTimeout.
[[nodiscard]] Result<FileDescriptor> connect_to(const Endpoint& endpoint, Duration deadline);

/// A listening TCP socket of a process.
struct Listener {
  std::int32_t pid = 0;
  std::string address; ///< "127.0.0.1", "0.0.0.0", "::".
  std::uint16_t port = 0;
  friend auto operator<=>(const Listener&, const Listener&) = default;
};
/// Of these processes, from /proc; processes of other users or machines are passed over. Sorted.
[[nodiscard]] std::vector<Listener> listeners_of(const std::vector<std::int32_t>& pids);

} // namespace troupe::actors
