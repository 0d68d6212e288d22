/// @file
/// The whole server: HTTP, routes, engine.
#pragma once

#include <memory>
#include <thread>

#include "base/result.h"
#include "generate/options.h"
#include "serve/generator.h"
#include "serve/http.h"
#include "serve/options.h"
#include "serve/served_model.h"
#include "serve/service.h"

namespace troupe::serve {

class Server {
 public:
  /// Listens and serves, on threads of its own. `model` outlives the server. Errors: those of HttpServer::bind; kInvalidArgument for an address
  /// that others can reach without a key.
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(ServeOptions options, ServedModel& model, const generate::EngineOptions& engine, int threads);
  /// Ends without waiting for what runs.
  ~Server();

  [[nodiscard]] int port() const { return port_; }
  /// "http://127.0.0.1:8000/v1"
  [[nodiscard]] std::string address() const;
  /// Takes no new requests, lets those that run end within drain_deadline, then closes. False: some had to be cut off.
  bool drain();

 private:
  Server(ServeOptions options, ServedModel& model, const generate::EngineOptions& engine, int threads);

  const ServeOptions options_;
  std::unique_ptr<Generator> generator_;
  Service service_;
  HttpServer http_;
  int port_ = 0;
  std::thread thread_;
};

/// Whether only this machine reaches the address.
[[nodiscard]] bool is_loopback(const std::string& host);

} // namespace troupe::serve
