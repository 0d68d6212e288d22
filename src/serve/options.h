/// @file
/// What the command line says about serving.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/units.h"

namespace troupe::serve {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                 ///< 0: any that is free.
  std::string name;                ///< What the model is called in requests.
  std::string api_key;             ///< Empty: nobody is asked; then only loopback addresses are listened on.
  int requests_max = 256;          ///< Completions that wait or run; more are refused with 429.
  int connections_max = 64;        ///< Connections that are served at once, a thread each; more wait in the kernel.
  int completions_max = 16;        ///< `n` of one request, and prompts of one request.
  Bytes body_max{4ull << 20};      ///< Longer bodies are refused with 413.
  Duration read_deadline = std::chrono::seconds(30);   ///< For a whole request to arrive, however slowly.
  Duration write_deadline = std::chrono::seconds(10);  ///< For a reader to take more.
  Duration idle_deadline = std::chrono::seconds(15);   ///< For a connection without a request.
  Duration drain_deadline = std::chrono::seconds(30);  ///< For what runs when the server is told to end.
};

} // namespace troupe::serve
