/// @file
/// Reads keys of a config.json with errors that name the key. Private to this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace troupe::model {

/// One JSON object. A key that is absent or null counts as absent. Remembers which keys were asked for.
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
  /// A list of whole numbers; empty where it is absent.
  [[nodiscard]] Result<std::vector<std::int64_t>> integers(std::string_view key) const;
  /// A list of strings; empty where it is absent.
  [[nodiscard]] Result<std::vector<std::string>> strings(std::string_view key) const;
  /// Refuses any string but `only`; absent is right too.
  [[nodiscard]] Status must_be(std::string_view key, std::string_view only) const;
  /// Refuses a key that is switched on, that nobody asked for and that is not known to leave the maths alone: named, with
  /// the most similar known one.
  [[nodiscard]] Status refuse_unknown() const;
  [[nodiscard]] std::string_view where() const { return where_; }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }
  /// Refuses any value but false, null or nothing.
  [[nodiscard]] Status must_be_off(std::string_view key) const;
  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(ErrorCode::kInvalidArgument, why, where_);
  }

 private:
  [[nodiscard]] tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) const;
  const nlohmann::json& object_;
  std::string where_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace troupe::model
