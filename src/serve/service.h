/// @file
/// The routes: requests to generations, generations to answers and streams.
#pragma once

#include <atomic>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "serve/api.h"
#include "serve/generator.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/options.h"
#include "serve/reply_stream.h"
#include "serve/served_model.h"

namespace troupe::serve {

/// Everything between a socket and the engine. Borrows all of it.
class Service {
 public:
  Service(const ServeOptions& options, const ServedModel& model, Generator& generator);

  /// Adds the routes, the check of keys and the errors.
  void install(HttpServer& server);
  /// Requests whose answer is not complete yet.
  [[nodiscard]] int open_requests() const { return open_; }

 private:
  struct Answer;
  class Chat;
  class Completions;

  void chat(const httplib::Request& request, httplib::Response& response);
  void completions(const httplib::Request& request, httplib::Response& response);
  void answer(std::shared_ptr<Answer> answer, httplib::Response& response);
  bool stream(Answer& answer, httplib::DataSink& sink);
  /// Whether that model is served here; if not, it is answered.
  [[nodiscard]] bool check(const std::string& model, httplib::Response& response) const;
  [[nodiscard]] bool authorised(const httplib::Request& request) const;
  [[nodiscard]] CallLimits limits() const;
  /// A request of one completion for each sample; what is left of the context where `most` is absent.
  [[nodiscard]] std::vector<generate::Request> requests_of(const Call& call, const std::vector<std::int32_t>& prompt, int otherwise) const;
  void end(Answer& answer);

  const ServeOptions& options_;
  const ServedModel& model_;
  Generator& generator_;
  Metrics metrics_;
  std::atomic<int> open_ = 0;
  std::atomic<std::uint64_t> next_ = 1;
  const std::time_t started_ = std::time(nullptr);
};

/// Sends an error in OpenAI's shape.
void send(httplib::Response& response, const ApiError& error);

} // namespace troupe::serve
