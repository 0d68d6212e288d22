#include "serve/server.h"

#include <chrono>

namespace troupe::serve {

using Clock = std::chrono::steady_clock;

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

Server::Server(ServeOptions options, ServedModel& model, const generate::EngineOptions& engine, int threads)
    : options_(std::move(options)),
      generator_(std::make_unique<Generator>(model.model, model.tokenizer, engine, options_.requests_max, threads)),
      service_(options_, model, *generator_),
      http_(options_) {
  service_.install(http_);
}

Result<std::unique_ptr<Server>> Server::start(ServeOptions options, ServedModel& model, const generate::EngineOptions& engine, int threads) {
  if (!is_loopback(options.host) && options.api_key.empty())
    return fail(ErrorCode::kInvalidArgument, "others can reach " + options.host + ", so requests must carry a key: give --api-key-file FILE, or listen on 127.0.0.1");
  std::unique_ptr<Server> server(new Server(std::move(options), model, engine, threads));
  TROUPE_TRY(server->port_, server->http_.bind());
  server->thread_ = std::thread([raw = server.get()] { raw->http_.serve(); });
  while (!server->http_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return server;
}

Server::~Server() {
  if (!thread_.joinable()) return;
  generator_->drain();
  generator_->abort_all();
  http_.stop_serving();
  thread_.join();
}

std::string Server::address() const {
  const bool v6 = options_.host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + options_.host + "]" : options_.host) + ":" + std::to_string(port_) + "/v1";
}

bool Server::drain() {
  generator_->drain();
  const auto until = Clock::now() + options_.drain_deadline;
  bool all = generator_->wait_idle(options_.drain_deadline);
  while (service_.open_requests() > 0 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5)); // the last words are written
  all = all && service_.open_requests() == 0;
  generator_->abort_all(); // what is left ends now, and its connections with it
  http_.stop_serving();
  thread_.join();
  return all;
}

} // namespace troupe::serve
