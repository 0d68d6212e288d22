/// @file
/// A parsed value that remembers where it was written. The common form of TOML files, `--set` flags and JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::config {

/// Where something was written. `source` indexes `Sources`; -1 is "nowhere", the default of a field.
struct Origin {
  int source = -1;
  int line = 0;    ///< From 1; 0 when the source has no lines.
  int column = 0;  ///< From 1, in characters, not bytes.
  int width = 1;   ///< Characters to underline.
};

/// A TOML date or time. No key takes one; it is kept so that the message can say so.
struct Date {
  friend bool operator==(const Date&, const Date&) = default;
};

struct Member;

/// A TOML value with its origin. Tables keep the order of the file.
struct Value {
  using Array = std::vector<Value>;
  using Table = std::vector<Member>;
  using Data = std::variant<bool, std::int64_t, double, std::string, Array, Table, Date>;
  Data data;
  Origin origin;

  /// An empty table.
  Value();
  Value(Data given, Origin where);

  [[nodiscard]] bool is_table() const { return std::holds_alternative<Table>(data); }
  [[nodiscard]] bool is_array() const { return std::holds_alternative<Array>(data); }
  [[nodiscard]] Table& table() { return std::get<Table>(data); }
  [[nodiscard]] const Table& table() const { return std::get<Table>(data); }
  [[nodiscard]] Array& array() { return std::get<Array>(data); }
  [[nodiscard]] const Array& array() const { return std::get<Array>(data); }

  /// The member of this table called `key`, or null; null as well when this is not a table.
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] Value* find(std::string_view key);
  /// The value at a dotted path such as "optim.lr" or "stage.0.steps", or null.
  [[nodiscard]] const Value* at(std::string_view path) const;
  /// Sets or appends a member. This must be a table.
  Value& set(std::string_view key, Origin key_origin, Value value);
  /// Removes a member if it is there.
  void erase(std::string_view key);

  /// "a string", "an integer", ...: for messages.
  [[nodiscard]] std::string_view kind_name() const;
  /// The same data, wherever it was written.
  [[nodiscard]] bool same_data(const Value& other) const;
};

struct Member {
  std::string key;
  Origin key_origin;
  Value value;
};

/// "a.b" + "c" -> "a.b.c"; an empty path gives the key alone.
[[nodiscard]] std::string join_path(std::string_view path, std::string_view key);
/// "a.b.c" -> a, b, c. Quoted segments are not supported: no key of this project needs them.
[[nodiscard]] std::vector<std::string> split_path(std::string_view path);

/// The value as TOML text: 1e-06, "text", [1, 2], { a = 1 }.
[[nodiscard]] std::string to_toml_inline(const Value& value);

}  // namespace troupe::config
