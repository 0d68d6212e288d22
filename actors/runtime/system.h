/// @file
/// One CAF system per process, set up the only way troupe uses it: mutual TLS, heartbeats that notice a frozen peer within seconds, two
/// scheduler threads, no automatic connections (control is a star through the head), peers of another build refused.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/runtime/credentials.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::actors {

/// TROUPE_TIME_SCALE, at least 1: how much slower than usual this build runs (sanitizers).
[[nodiscard]] double time_scale();

/// Identifies the wire format: peers of another build are refused.
[[nodiscard]] const char* build_id();

struct SystemOptions {
  Credential credential;
  Duration heartbeat = std::chrono::milliseconds(200); ///< Multiplied by TROUPE_TIME_SCALE, as the next.
  std::string build = build_id();                      ///< Peers of another one are refused.
  Duration timeout = std::chrono::seconds(3);          ///< Silence after which a peer counts as gone; never 0 (CAF would cut at once).
};

/// Owns the configuration and the system, in the order CAF needs.
class System {
 public:
  explicit System(const SystemOptions& options);
  ~System();
  [[nodiscard]] caf::actor_system& caf() { return *system_; }

  /// Makes `actor` reachable at host:port (0: any free port). Returns the port. Errors: kUnavailable, e.g. a port in use.
  [[nodiscard]] Result<std::uint16_t> publish(const caf::actor& actor, const std::string& host, std::uint16_t port);
  /// Connects to a published actor. Errors: kUnavailable naming host, port and the likely cause: another build, another run, nobody there.
  [[nodiscard]] Result<caf::actor> connect(const std::string& host, std::uint16_t port);

 private:
  struct Config;
  std::unique_ptr<Config> config_;
  std::unique_ptr<caf::actor_system> system_;
  std::vector<caf::actor> published_;
};

} // namespace troupe::actors
