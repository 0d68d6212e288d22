/// @file
/// What a person sees while a run goes on: one line that redraws on a terminal, a line every few seconds elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace troupe::observe {

/// What the progress line shows. Absent values are not printed.
struct Progress {
  std::string stage;
  std::uint64_t step = 0;
  std::uint64_t steps = 0;
  std::optional<double> reward;
  std::optional<double> loss;
  std::optional<double> tokens_per_second;
  std::optional<double> policy_age_mean;  ///< In optimizer steps.
  std::optional<double> policy_age_max;
  std::optional<double> eval_accuracy;
  std::optional<Duration> left;
};

/// "rl 12/150  reward 0.531  loss 0.0124  3.1k tok/s  age 1.2 (max 3)  1m20s left". Cut to `columns_max` characters if
/// that is not 0.
[[nodiscard]] std::string format_progress(const Progress& progress, std::size_t columns_max = 0);

/// Draws the line on a descriptor it does not own. `now` comes from the caller. Not thread-safe.
class ProgressLine {
 public:
  /// On a terminal the line redraws at most 10 times a second; elsewhere a full line appears every `interval` and at
  /// the end of a stage.
  ProgressLine(int fd, bool is_terminal, std::size_t columns, Duration interval = std::chrono::seconds(5));
  /// Whether `fd` is a terminal a line can be redrawn on, and how wide it is (0 when it is not).
  [[nodiscard]] static std::size_t terminal_columns(int fd);

  void update(const Progress& progress, TimePoint now);
  /// Prints a line above the progress line.
  void print(std::string_view line);
  /// Ends the line, so that what follows starts on a fresh one.
  void finish();

 private:
  void write(std::string_view text) const;

  int fd_;
  bool is_terminal_;
  std::size_t columns_;
  Duration interval_;
  std::optional<TimePoint> drawn_at_;
  std::string shown_;    // what stands on the terminal's line now
  std::string pending_;  // the newest text, not drawn yet
  std::string stage_;
};

/// Time left from the steps done since `begin`; nothing before the first step is done.
[[nodiscard]] std::optional<Duration> estimate_left(std::uint64_t steps_done, std::uint64_t steps, Duration elapsed);

/// Columns aligned, numbers to the right, header underlined. Rows may be shorter than the header.
[[nodiscard]] std::string format_table(const std::vector<std::string>& header,
                                       const std::vector<std::vector<std::string>>& rows);

}  // namespace troupe::observe
