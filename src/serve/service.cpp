#include "serve/service.h"

#include <algorithm>
#include <random>

#include "serve/answer.h"

namespace troupe::serve {

using nlohmann::ordered_json;

namespace {

constexpr auto kLook = std::chrono::milliseconds(50); // how often a waiting handler looks whether the client is still there

// Takes the same time whatever the difference.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

std::string event(const ordered_json& json) { return "data: " + dump(json) + "\n\n"; }

std::string route_of(const std::string& path) {
  for (const char* known : {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"})
    if (path == known) return known;
  return "other"; // a label for each path that somebody tries would have no bound
}

} // namespace

void send(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "1");
  response.set_content(to_json_text(error), "application/json");
}

ordered_json Service::Answer::envelope(bool streamed) const { return {{"id", id}, {"object", streamed ? chunk_object : object}, {"created", created}, {"model", model}}; }

Delta advance(Choice& choice, Duration timeout, bool keep_tokens, std::size_t& fresh) {
  std::vector<Token> tokens;
  choice.over = choice.generation->take(tokens, timeout);
  fresh = tokens.size();
  Delta delta;
  for (Token& token : tokens) {
    Delta more = choice.text.push(token.id);
    delta.reasoning += more.reasoning;
    delta.content += more.content;
    if (keep_tokens) choice.unsent.push_back(std::move(token));
  }
  if (!choice.over) return delta;
  Delta rest = choice.text.finish(choice.generation->completion());
  rest.reasoning = delta.reasoning + rest.reasoning;
  rest.content = delta.content + rest.content;
  return rest;
}

Service::Service(const ServeOptions& options, const ServedModel& model, Generator& generator) : options_(options), model_(model), generator_(generator) {}

CallLimits Service::limits() const { return {options_.completions_max, static_cast<int>(model_.model.spec().used_vocab())}; }

bool Service::authorised(const httplib::Request& request) const {
  return options_.api_key.empty() || same_secret(request.get_header_value("Authorization"), "Bearer " + options_.api_key);
}

bool Service::check(const std::string& model, httplib::Response& response) const {
  if (model.empty() || model == options_.name) return true;
  send(response, {404, "the model '" + model.substr(0, 100) + "' is not served here; '" + options_.name + "' is", "invalid_request_error", "model", "model_not_found"});
  return false;
}

void Service::install(HttpServer& server) {
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    using Next = httplib::Server::HandlerResponse;
    if (request.path == "/health") return Next::Unhandled;
    if (!authorised(request)) {
      HttpServer::close_after(response);
      response.set_header("WWW-Authenticate", "Bearer");
      send(response, {401, "the key in the header Authorization: Bearer KEY is missing or wrong", "authentication_error", {}, "invalid_api_key"});
      return Next::Handled;
    }
    // What a form of some web page can send without asking is not taken.
    if (request.method == "POST" && request.get_header_value("Content-Type").substr(0, 16) != "application/json") {
      HttpServer::close_after(response);
      send(response, {400, "the header Content-Type must be application/json", "invalid_request_error", {}, {}});
      return Next::Handled;
    }
    return Next::Unhandled;
  });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    ApiError error{response.status, "the request cannot be read", "invalid_request_error", {}, {}};
    if (response.status == 404) error.message = "there is no " + request.method + " " + request.path.substr(0, 100) + " here";
    if (response.status == 413) error.message = "the body is longer than this server takes (--body-max)";
    if (response.status >= 500) error.type = "server_error";
    send(response, error);
  });
  server.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr) { send(response, {500, "the request failed unexpectedly", "server_error", {}, {}}); });
  server.set_logger([this](const httplib::Request& request, const httplib::Response& response) { metrics_.answered(route_of(request.path), response.status); });

  server.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
    const bool ending = generator_.draining();
    response.status = ending ? 503 : 200;
    response.set_content(ending ? R"({"status":"draining"})" : R"({"status":"ok"})", "application/json");
  });
  server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) { response.set_content(metrics_.text(generator_.figures()), "text/plain; version=0.0.4"); });
  const ordered_json card{{"id", options_.name}, {"object", "model"}, {"created", started_}, {"owned_by", "troupe"}, {"max_model_len", model_.model.spec().context}};
  server.Get("/v1/models", [card](const httplib::Request&, httplib::Response& response) {
    response.set_content(dump({{"object", "list"}, {"data", ordered_json::array({card})}}), "application/json");
  });
  server.Get(R"(/v1/models/(.+))", [this, card](const httplib::Request& request, httplib::Response& response) {
    if (check(request.matches[1].str(), response)) response.set_content(dump(card), "application/json");
  });
  server.Post("/v1/chat/completions", [this](const httplib::Request& request, httplib::Response& response) { chat(request, response); });
  server.Post("/v1/completions", [this](const httplib::Request& request, httplib::Response& response) { completions(request, response); });
}

std::vector<generate::Request> Service::requests_of(const Call& call, const std::vector<std::int32_t>& prompt, int otherwise) const {
  std::vector<generate::Request> requests;
  const std::uint64_t seed = call.seed ? *call.seed : std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
  for (int i = 0; i < call.completions; ++i) {
    generate::Request& request = requests.emplace_back();
    request.prompt = prompt;
    request.seed = seed;
    request.randomness = SampleId{0, static_cast<std::uint32_t>(i)};
    request.sampling = call.sampling;
    const auto left = std::max<std::int64_t>(generator_.capacity_tokens() - static_cast<std::int64_t>(prompt.size()), 1);
    request.sampling.max_new_tokens = call.max_tokens.value_or(static_cast<int>(std::min<std::int64_t>(otherwise, left)));
    request.sampling.stop_ids = model_.format.stop_ids();
  }
  return requests;
}

// ---- answering ------------------------------------------------------------------------------------------------------

void Service::end(Answer& answer) {
  if (std::exchange(answer.complete, true)) return;
  for (const auto& choice : answer.choices) {
    if (!choice->over) choice->generation->cancel();
  }
  metrics_.generated(answer.usage.prompt, answer.usage.completion);
  metrics_.request(std::chrono::duration<double>(std::chrono::steady_clock::now() - answer.asked).count());
  --open_;
}

void Service::answer(std::shared_ptr<Answer> answer, httplib::Response& response) {
  if (answer->stream) {
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream", [this, answer](std::size_t, httplib::DataSink& sink) { return stream(*answer, sink); }, [this, answer](bool) { end(*answer); });
    return;
  }
  for (std::size_t i = 0; i < answer->choices.size(); ++i) {
    Choice& choice = *answer->choices[i];
    while (!choice.over) {
      std::size_t fresh = 0;
      (void)advance(choice, kLook, answer->logprobs, fresh);
      if (fresh > 0 && !std::exchange(answer->first_seen, true)) metrics_.first_token(std::chrono::duration<double>(std::chrono::steady_clock::now() - answer->asked).count());
      answer->usage.completion += static_cast<std::int64_t>(fresh);
      if (!HttpServer::client_gone()) continue;
      metrics_.disconnected();
      end(*answer);
      return send(response, {499, "the client has gone", "server_error", {}, {}}); // nobody reads it
    }
    if (const auto& completion = choice.generation->completion(); completion.finish == generate::Finish::kError || completion.finish == generate::Finish::kAborted) {
      end(*answer);
      if (completion.finish == generate::Finish::kAborted) return send(response, {503, "the server is ending", "server_error", {}, "unavailable"});
      return send(response, {500, completion.error, "server_error", {}, {}});
    }
  }
  ordered_json out = answer->envelope(false);
  out["choices"] = ordered_json::array();
  for (std::size_t i = 0; i < answer->choices.size(); ++i) out["choices"].push_back(answer->whole(i));
  out["usage"] = to_json(answer->usage);
  response.set_content(dump(out), "application/json");
  end(*answer);
}

bool Service::stream(Answer& answer, httplib::DataSink& sink) {
  std::string events;
  bool all_over = true, any = false;
  for (std::size_t i = 0; i < answer.choices.size(); ++i) {
    Choice& choice = *answer.choices[i];
    if (choice.over) continue;
    std::size_t fresh = 0;
    // Waits for the first that is not over; the others are looked at on the way.
    const Delta delta = advance(choice, any ? Duration{} : Duration(kLook), answer.logprobs, fresh);
    any = true;
    answer.usage.completion += static_cast<std::int64_t>(fresh);
    if (fresh > 0 && !std::exchange(answer.first_seen, true)) metrics_.first_token(std::chrono::duration<double>(std::chrono::steady_clock::now() - answer.asked).count());
    all_over = all_over && choice.over;
    if (choice.over && (choice.generation->completion().finish == generate::Finish::kError || choice.generation->completion().finish == generate::Finish::kAborted)) {
      const auto& completion = choice.generation->completion();
      const std::string why = completion.error.empty() ? "the server is ending" : completion.error;
      const std::string text = events + "data: " + to_json_text({500, why, "server_error", {}, {}}) + "\n\n";
      (void)sink.write(text.data(), text.size());
      return false; // not the end of a stream that is complete
    }
    const ordered_json said = answer.chunk(i, delta, choice.over);
    if (said.is_null()) continue;
    ordered_json out = answer.envelope(true);
    out["choices"] = ordered_json::array({said});
    if (answer.include_usage) out["usage"] = nullptr;
    events += event(out);
  }
  if (HttpServer::client_gone()) {
    metrics_.disconnected();
    return false;
  }
  if (all_over) {
    if (answer.include_usage) {
      ordered_json out = answer.envelope(true);
      out["choices"] = ordered_json::array();
      out["usage"] = to_json(answer.usage);
      events += event(out);
    }
    events += "data: [DONE]\n\n";
  }
  if (!events.empty() && !sink.write(events.data(), events.size())) {
    metrics_.disconnected();
    return false;
  }
  if (all_over) sink.done();
  return true;
}

} // namespace troupe::serve
