#include "config/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace troupe::config {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr std::string_view kHex = "0123456789abcdef";
          const auto byte = static_cast<unsigned char>(c);
          out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // TOML tells floats from integers by this
  return text;
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  if (!is_table()) return nullptr;
  for (const Member& member : table())
    if (member.key == key) return &member.value;
  return nullptr;
}

Value* Value::find(std::string_view key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

Value::Value() : data(Table{}) {}
Value::Value(Data given, Origin where) : data(std::move(given)), origin(where) {}

const Value* Value::at(std::string_view path) const {
  const Value* value = this;
  for (const std::string& key : split_path(path)) {
    if (value->is_array()) {
      std::size_t index = 0;
      const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (ec != std::errc{} || end != key.data() + key.size() || index >= value->array().size()) return nullptr;
      value = &value->array()[index];
    } else {
      value = value->find(key);
    }
    if (value == nullptr) return nullptr;
  }
  return value;
}

Value& Value::set(std::string_view key, Origin key_origin, Value value) {
  for (Member& member : table()) {
    if (member.key != key) continue;
    member.key_origin = key_origin;
    member.value = std::move(value);
    return member.value;
  }
  table().push_back({std::string(key), key_origin, std::move(value)});
  return table().back().value;
}

void Value::erase(std::string_view key) {
  std::erase_if(table(), [key](const Member& member) { return member.key == key; });
}

std::string_view Value::kind_name() const {
  constexpr std::array<std::string_view, 7> kNames = {"a boolean", "an integer", "a float",       "a string",
                                                      "a list",    "a table",    "a date or time"};
  if (is_array() && !array().empty() && std::ranges::all_of(array(), [](const Value& v) { return v.is_table(); }))
    return "an array of tables";
  return kNames[data.index()];
}

bool Value::same_data(const Value& other) const {
  if (data.index() != other.data.index()) return false;
  if (is_array())
    return std::ranges::equal(array(), other.array(), [](const Value& a, const Value& b) { return a.same_data(b); });
  if (is_table())
    return std::ranges::equal(table(), other.table(), [](const Member& a, const Member& b) {
      return a.key == b.key && a.value.same_data(b.value);
    });
  return std::visit(
      [&other]<class T>(const T& mine) {
        if constexpr (std::is_same_v<T, Value::Array> || std::is_same_v<T, Value::Table>)
          return false;  // handled above
        else
          return mine == std::get<T>(other.data);
      },
      data);
}

std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : std::string(path) + "." + std::string(key);
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> keys;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    keys.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return keys;
}

std::string to_toml_inline(const Value& value) {
  struct Printer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return shortest(v); }
    std::string operator()(const std::string& v) const { return quoted(v); }
    std::string operator()(const Date&) const { return "<date>"; }
    std::string operator()(const Value::Array& array) const {
      std::string out = "[";
      for (const Value& element : array) out += (out.size() > 1 ? ", " : "") + to_toml_inline(element);
      return out + "]";
    }
    std::string operator()(const Value::Table& table) const {
      std::string out = "{";
      for (const Member& member : table)
        out += (out.size() > 1 ? ", " : " ") + member.key + " = " + to_toml_inline(member.value);
      return out + (out.size() > 1 ? " }" : "}");
    }
  };
  return std::visit(Printer{}, value.data);
}

}  // namespace troupe::config
