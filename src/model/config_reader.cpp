#include "model/config_reader.h"

#include <cmath>

namespace troupe::model {

namespace {

std::string shortened(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

const nlohmann::json* ConfigReader::get(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

tl::unexpected<Error> ConfigReader::wrong(std::string_view key, std::string_view wanted) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr)
    return refuse("the key '" + std::string(key) + "' is missing; it must be " + std::string(wanted));
  return refuse("'" + std::string(key) + "' is " + shortened(*value) + "; it must be " + std::string(wanted));
}

Result<std::int64_t> ConfigReader::integer(std::string_view key, std::optional<std::int64_t> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_number_integer()) return wrong(key, "a whole number");
  return value->get<std::int64_t>();
}

Result<double> ConfigReader::number(std::string_view key, std::optional<double> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) return wrong(key, "a number");
  return value->get<double>();
}

Result<bool> ConfigReader::boolean(std::string_view key, bool otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::string(std::string_view key, std::optional<std::string> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_string()) return wrong(key, "a string");
  return value->get<std::string>();
}

Result<std::vector<std::int64_t>> ConfigReader::ids(std::string_view key) const {
  const nlohmann::json* value = get(key);
  std::vector<std::int64_t> result;
  if (value == nullptr) return result;
  if (value->is_number_integer()) return std::vector<std::int64_t>{value->get<std::int64_t>()};
  if (!value->is_array()) return wrong(key, "an id or a list of ids");
  for (const auto& id : *value) {
    if (!id.is_number_integer()) return wrong(key, "an id or a list of ids");
    result.push_back(id.get<std::int64_t>());
  }
  return result;
}

Status ConfigReader::must_be_off(std::string_view key) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return {};
  return refuse("'" + std::string(key) + "' is " + shortened(*value) +
                ", which this build does not support; it must be false or absent");
}

}  // namespace troupe::model
