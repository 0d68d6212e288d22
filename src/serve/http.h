/// @file
/// The HTTP server: deadlines for slow clients, a bound on connections, and whether who asked is still there.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>

#include "base/result.h"
#include "serve/options.h"

namespace troupe::serve {

/// httplib's server with connections of our own: a request must arrive within a deadline as a whole, a reader must take what it asked for, and
/// handlers can ask whether the client has gone.
class HttpServer : public httplib::Server {
 public:
  explicit HttpServer(const ServeOptions& options);

  /// Listens. Returns the port. Errors: kInvalidArgument for an address that is none of this machine's; kUnavailable when another program
  /// has the port.
  [[nodiscard]] Result<int> bind();
  /// Serves until stop_serving(); returns when every connection is closed.
  void serve();
  /// May be called from any thread: no new connections; those that are open end after their request.
  void stop_serving();

  /// In a handler: whether the client of this request has hung up.
  [[nodiscard]] static bool client_gone();
  /// In a handler: no further request on this connection. For answers that are given before the body was read.
  static void close_after(httplib::Response& response);

 private:
  bool process_and_close_socket(socket_t socket) override;

  const ServeOptions& options_;
  std::atomic<bool> stopping_ = false;
};

} // namespace troupe::serve
