/// @file
/// One number of a benchmark, with everything a reader needs to judge it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::bench {

/// What somebody else's program reached at the same work, in the same run and the same unit.
struct Peer {
  std::string name;
  double value = 0;
};

struct Figure {
  std::string name;  ///< "<benchmark>.<what>", such as "generate.decode_batch16".
  double value = 0;
  std::string unit;                                      ///< "tok/s", "s", "us", "GB/s", "GFLOP/s", ...
  std::optional<Peer> peer;                              ///< Absent when it was not measured in this run.
  nlohmann::json conditions = nlohmann::json::object();  ///< Of this figure: threads, dtype, shape, batch, repeats, ...

  /// value / the peer's value.
  [[nodiscard]] std::optional<double> ratio() const;
};

/// {"name","value","unit","ratio","peer","conditions"}: ratio and peer are null without a peer; conditions also hold
/// the machine's, and the peer's value.
[[nodiscard]] nlohmann::json json_row(const Figure& figure, const nlohmann::json& machine);

/// The same for people: what all figures have in common on the first line, then a table.
[[nodiscard]] std::string table(const std::vector<Figure>& figures, const nlohmann::json& machine);

/// "cores 2, cpu Xeon": an object on one line.
[[nodiscard]] std::string one_line(const nlohmann::json& conditions);

/// Of an unordered list; the mean of the two middle ones when their number is even. 0 for an empty list.
[[nodiscard]] double median(std::vector<double> values);
/// The smallest value that at least `part` (0 ... 1) of the values do not exceed. 0 for an empty list.
[[nodiscard]] double percentile(std::vector<double> values, double part);

}  // namespace troupe::bench
