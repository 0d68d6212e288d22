/// @file
/// What the server has done, in Prometheus' text format.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "serve/generator.h"

namespace troupe::serve {

/// Thread-safe.
class Metrics {
 public:
  void answered(const std::string& route, int status);
  void generated(std::int64_t prompt_tokens, std::int64_t completion_tokens);
  void disconnected();
  void first_token(double seconds);
  void request(double seconds);
  [[nodiscard]] std::string text(const Generator::Figures& figures) const;

 private:
  static constexpr std::array<double, 12> kEdges = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};
  struct Histogram {
    std::array<std::uint64_t, kEdges.size() + 1> counts{};
    double sum = 0;
    void add(double seconds);
    void print(std::string& out, const std::string& name, const char* help) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;
  std::int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
  std::uint64_t disconnects_ = 0;
  Histogram first_token_, request_;
};

} // namespace troupe::serve
