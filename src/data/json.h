/// @file
/// JSON that comes from outside: places in messages, typed access. For .cpp files only (the parser is heavy).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace troupe::data {

/// A value inside a document that knows its place, for errors such as "t.json: model.vocab must be
/// an object, not a string".
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] const nlohmann::json& value() const { return *value_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  [[nodiscard]] Result<JsonView> at(const std::string& key) const;
  /// The member, or nothing when it is missing or null. Not an object: nothing.
  [[nodiscard]] std::optional<JsonView> find(const std::string& key) const;
  [[nodiscard]] JsonView element(std::size_t index) const;

  [[nodiscard]] Result<std::string> string() const;
  [[nodiscard]] Result<bool> boolean() const;
  [[nodiscard]] Result<std::int64_t> integer(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] Status require_object() const;
  [[nodiscard]] Result<std::size_t> array_size() const;
  /// A member that may be missing or null.
  [[nodiscard]] Result<bool> boolean_or(const std::string& key, bool otherwise) const;
  [[nodiscard]] Result<std::string> string_or(const std::string& key, std::string otherwise) const;

  /// "must be X, not Y" / any other sentence about this value.
  [[nodiscard]] tl::unexpected<Error> wrong_type(std::string_view wanted) const;
  [[nodiscard]] tl::unexpected<Error> error(ErrorCode code, std::string_view sentence) const;

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

} // namespace troupe::data
