/// @file
/// Metrics in memory: folded per step, bounded, taken as a batch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::observe {

struct Metric {
  std::string name;
  double value = 0;
};

/// The metrics of one step, sorted by name, each name once.
struct MetricBatch {
  std::uint64_t step = 0;
  std::string stage;  ///< Of the run, e.g. "rl"; may be empty.
  double time_s = 0;  ///< Seconds since the run began.
  std::vector<Metric> metrics;

  /// The value of a metric, or null.
  [[nodiscard]] const double* find(std::string_view name) const;
};

/// How several values of one name become one.
enum class Fold : std::uint8_t { kLast, kSum, kMean, kMax, kMin };

/// Collects the metrics of the current step. Not thread-safe: one per actor.
class MetricBuffer {
 public:
  /// `names_max`: names beyond it are counted as dropped, and reported as observe/metrics_dropped.
  explicit MetricBuffer(std::size_t names_max = 512) : names_max_(names_max) {}

  /// Adds a value; the first use of a name in a step decides its fold. `weight` counts for kMean only.
  void add(std::string_view name, double value, Fold fold = Fold::kLast, double weight = 1);
  /// The folded values since the last take; the buffer is empty afterwards.
  [[nodiscard]] MetricBatch take(std::uint64_t step, std::string_view stage, double time_s);
  [[nodiscard]] bool empty() const { return slots_.empty(); }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  struct Slot {
    Fold fold = Fold::kLast;
    double value = 0;
    double weight = 0;
  };
  std::map<std::string, Slot, std::less<>> slots_;
  std::size_t names_max_;
  std::uint64_t dropped_ = 0;
};

}  // namespace troupe::observe
