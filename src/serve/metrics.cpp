#include "serve/metrics.h"

#include <algorithm>
#include <cstdio>

namespace troupe::serve {

namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void head(std::string& out, const std::string& name, const char* type, const char* help) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void one(std::string& out, const std::string& name, const char* type, const char* help, double value) {
  head(out, name, type, help);
  out += name + " " + number(value) + "\n";
}

} // namespace

void Metrics::Histogram::add(double seconds) {
  const auto at = std::lower_bound(kEdges.begin(), kEdges.end(), seconds) - kEdges.begin();
  ++counts[static_cast<std::size_t>(at)];
  sum += seconds;
}

void Metrics::Histogram::print(std::string& out, const std::string& name, const char* help) const {
  head(out, name, "histogram", help);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    out += name + "_bucket{le=\"" + (i < kEdges.size() ? number(kEdges[i]) : "+Inf") + "\"} " + std::to_string(total) + "\n";
  }
  out += name + "_sum " + number(sum) + "\n" + name + "_count " + std::to_string(total) + "\n";
}

void Metrics::answered(const std::string& route, int status) {
  const std::scoped_lock lock(mutex_);
  ++answers_[{route, status}];
}

void Metrics::generated(std::int64_t prompt_tokens, std::int64_t completion_tokens) {
  const std::scoped_lock lock(mutex_);
  prompt_tokens_ += prompt_tokens;
  completion_tokens_ += completion_tokens;
}

void Metrics::disconnected() {
  const std::scoped_lock lock(mutex_);
  ++disconnects_;
}

void Metrics::first_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::request(double seconds) {
  const std::scoped_lock lock(mutex_);
  request_.add(seconds);
}

std::string Metrics::text(const Generator::Figures& figures) const {
  const std::scoped_lock lock(mutex_);
  std::string out;
  head(out, "troupe_http_requests_total", "counter", "Answers by route and status.");
  for (const auto& [key, count] : answers_)
    out += "troupe_http_requests_total{route=\"" + key.first + "\",status=\"" + std::to_string(key.second) + "\"} " + std::to_string(count) + "\n";
  one(out, "troupe_client_disconnects_total", "counter", "Requests whose client hung up before the answer was complete.", static_cast<double>(disconnects_));
  one(out, "troupe_prompt_tokens_total", "counter", "Tokens of prompts that were answered.", static_cast<double>(prompt_tokens_));
  one(out, "troupe_completion_tokens_total", "counter", "Tokens of answers.", static_cast<double>(completion_tokens_));
  const generate::EngineStats& e = figures.engine;
  one(out, "troupe_engine_steps_total", "counter", "Forward passes.", static_cast<double>(e.steps));
  one(out, "troupe_engine_tokens_computed_total", "counter", "Rows of all forward passes.", static_cast<double>(e.tokens_computed));
  one(out, "troupe_engine_tokens_shared_total", "counter", "Prompt tokens that were taken from an earlier request.", static_cast<double>(e.tokens_shared));
  one(out, "troupe_engine_preemptions_total", "counter", "Requests that lost their cache to older ones.", static_cast<double>(e.preemptions));
  one(out, "troupe_engine_busy_seconds_total", "counter", "Time in forward passes.", figures.busy_seconds);
  one(out, "troupe_completions_held", "gauge", "Completions that wait or run.", figures.requests);
  one(out, "troupe_completions_limit", "gauge", "Completions that may.", figures.requests_max);
  one(out, "troupe_completions_running", "gauge", "Completions that hold cache pages.", e.running);
  one(out, "troupe_completions_waiting", "gauge", "Completions that wait for cache pages.", e.waiting);
  one(out, "troupe_kv_pages", "gauge", "Pages of the KV cache.", e.pages);
  one(out, "troupe_kv_pages_used", "gauge", "Pages that hold something.", e.pages_used);
  first_token_.print(out, "troupe_first_token_seconds", "From request to first token.");
  request_.print(out, "troupe_request_seconds", "From request to the end of the answer.");
  return out;
}

} // namespace troupe::serve
