/// @file
/// What a benchmark is, and what it is given.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/figure.h"

namespace troupe::bench {

struct Options {
  bool json = false;
  bool peers = false;          ///< Measure other people's programs too.
  std::optional<int> repeats;  ///< Instead of the benchmark's own number.
  int threads = 2;             ///< Of benchmarks that compute in their own process, and of their peers.
};

/// Where a benchmark leaves its figures.
class Context {
 public:
  /// `machine`: the conditions that all figures of this process share.
  Context(Options options, nlohmann::json machine) : options_(options), machine_(std::move(machine)) {}

  /// JSON: prints the row at once. Table: keeps it until `print_table`.
  void add(Figure figure);
  /// A line on stderr.
  void say(const std::string& text) const;
  void print_table();
  /// A peer could not be measured: said on stderr at once, and the program's exit code is 1; our own figures stand.
  void peer_failed(const Error& error);
  [[nodiscard]] bool complete() const { return complete_; }

  [[nodiscard]] bool peers() const { return options_.peers; }
  [[nodiscard]] int threads() const { return options_.threads; }
  [[nodiscard]] int repeats(int by_default) const { return options_.repeats.value_or(by_default); }

 private:
  Options options_;
  nlohmann::json machine_;
  std::vector<Figure> figures_;
  bool complete_ = true;
};

/// Wall and CPU time of this process since it was made.
class Stopwatch {
 public:
  Stopwatch() : wall_(wall_now()), cpu_(cpu_now()) {}
  [[nodiscard]] double seconds() const { return wall_now() - wall_; }
  /// CPU seconds a second and thread: well below 1 when others held the cores.
  [[nodiscard]] double busy(int threads) const { return (cpu_now() - cpu_) / (seconds() * threads); }

 private:
  static double wall_now();
  static double cpu_now();
  double wall_, cpu_;
};

/// A row of the registry.
struct Benchmark {
  std::string_view name;
  std::string_view what;  ///< One line: what is measured, in which units.
  std::string_view peer;  ///< What it is compared with; empty: nothing.
  bool peer_always;       ///< Whether the peer is measured without --peers too: it needs no other software.
  Status (*run)(Context&);
};

/// All of them; registry.cpp is the list.
[[nodiscard]] std::span<const Benchmark> benchmarks();
/// Errors: kNotFound with the names there are.
[[nodiscard]] Result<const Benchmark*> find_benchmark(std::string_view name);
/// What `list` prints: a line each, or a JSON array.
[[nodiscard]] std::string list_text(bool json);

/// Cores, CPU model, instruction set in use, load average now.
[[nodiscard]] nlohmann::json machine_conditions();

}  // namespace troupe::bench
