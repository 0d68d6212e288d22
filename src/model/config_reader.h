/// @file
/// Reads keys of a config.json with errors that name the key. Private to this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace troupe::model {

/// One JSON object. A key that is absent or null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string_view where) : object_(object), where_(where) {}

  [[nodiscard]] const nlohmann::json* get(std::string_view key) const;
  [[nodiscard]] Result<std::int64_t> integer(std::string_view key, std::optional<std::int64_t> otherwise = {}) const;
  [[nodiscard]] Result<double> number(std::string_view key, std::optional<double> otherwise = {}) const;
  [[nodiscard]] Result<bool> boolean(std::string_view key, bool otherwise) const;
  [[nodiscard]] Result<std::string> string(std::string_view key, std::optional<std::string> otherwise = {}) const;
  /// An id or a list of ids.
  [[nodiscard]] Result<std::vector<std::int64_t>> ids(std::string_view key) const;
  /// Refuses any value but false, null or nothing.
  [[nodiscard]] Status must_be_off(std::string_view key) const;
  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(ErrorCode::kInvalidArgument, why, where_);
  }

 private:
  [[nodiscard]] tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) const;
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace troupe::model
