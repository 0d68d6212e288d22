#include "bench/figure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "observe/console.h"

namespace troupe::bench {
namespace {

std::string number(double value) {
  char text[32];
  const double size = std::fabs(value);
  std::snprintf(text, sizeof text, size >= 1000 ? "%.0f" : size >= 10 ? "%.1f" : "%.3g", value);
  return text;
}

}  // namespace

std::optional<double> Figure::ratio() const {
  if (!peer || peer->value == 0) return std::nullopt;
  return value / peer->value;
}

nlohmann::json json_row(const Figure& figure, const nlohmann::json& machine) {
  nlohmann::json conditions = machine;
  conditions.update(figure.conditions);
  nlohmann::json row = {
      {"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}, {"ratio", nullptr}, {"peer", nullptr}};
  if (figure.peer) {
    row["peer"] = figure.peer->name;
    conditions["peer_value"] = figure.peer->value;
  }
  if (const auto ratio = figure.ratio()) row["ratio"] = *ratio;
  row["conditions"] = std::move(conditions);
  return row;
}

std::string table(const std::vector<Figure>& figures, const nlohmann::json& machine) {
  if (figures.empty()) return "";
  nlohmann::json common = figures.front().conditions;
  for (const Figure& figure : figures)
    for (auto it = common.begin(); it != common.end();) {
      const bool same = figure.conditions.contains(it.key()) && figure.conditions[it.key()] == it.value();
      it = same ? std::next(it) : common.erase(it);
    }
  std::vector<std::vector<std::string>> rows;
  for (const Figure& figure : figures) {
    nlohmann::json own = figure.conditions;
    for (const auto& [key, value] : common.items()) own.erase(key);
    const auto ratio = figure.ratio();
    rows.push_back({figure.name, number(figure.value), figure.unit, ratio ? number(*ratio) : "-",
                    figure.peer ? figure.peer->name + " " + number(figure.peer->value) : "-", one_line(own)});
  }
  nlohmann::json shared = machine;
  shared.update(common);
  return one_line(shared) + "\n" +
         observe::format_table({"figure", "value", "unit", "ratio", "peer", "conditions"}, rows);
}

std::string one_line(const nlohmann::json& conditions) {
  std::string text;
  for (const auto& [key, value] : conditions.items()) {
    if (!text.empty()) text += ", ";
    text += key + " ";
    if (value.is_number_float())
      text += number(value.get<double>());
    else
      text += value.is_string() ? value.get<std::string>() : value.dump();
  }
  return text;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

}  // namespace troupe::bench
