#include "config/toml_parse.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace troupe::config {
namespace {

constexpr int kRecoveriesMax = 8;  // single broken lines of one file that are reported together

constexpr int kKeyPartsMax = 64;  // of one dotted key; toml++ nests as deep as a key is long, and so does its recursion

struct Refusal {
  int line = 0;
  std::string why;
};

// What toml++ must not see, as it would not return from it: a dotted key without end, and characters outside ASCII where neither a string nor a
// comment is (TOML has none there). The text need not be valid.
std::optional<Refusal> refusal_of(std::string_view text) {
  int line = 1, dots = 0;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == '"' || c == '\'') {
      const bool many_lines = text.substr(i).starts_with(std::string(3, c));
      const std::string_view fence = text.substr(i, many_lines ? 3 : 1);
      for (i += fence.size(); i < text.size() && !text.substr(i).starts_with(fence); ++i) {
        if (text[i] == '\\' && c == '"' && i + 1 < text.size()) ++i;
        if (text[i] == '\n') ++line;
        if (text[i] == '\n' && !many_lines) break;  // not closed
      }
      i += fence.size();
      for (int extra = 0; many_lines && extra < 2 && i < text.size() && text[i] == c; ++extra) ++i;  // quotes right before the fence
      i = std::min(i, text.size()) - 1;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
      dots = 0;
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return Refusal{line, "a character outside ASCII needs quotes"};
    } else if (c == '.') {
      if (++dots >= kKeyPartsMax) return Refusal{line, "a key has more than " + std::to_string(kKeyPartsMax) + " parts"};
    } else if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != ' ' && c != '\t') {
      dots = 0;
    }
  }
  return {};
}

Origin to_origin(const toml::source_region& region, int source) {
  Origin origin{source, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column), 1};
  if (region.end.line == region.begin.line && region.end.column > region.begin.column)
    origin.width = static_cast<int>(region.end.column - region.begin.column);
  return origin;
}

Value convert(const toml::node& node, int source);

Value convert_table(const toml::table& table, int source) {
  Value::Table members;
  for (const auto& [key, child] : table) {
    members.push_back({std::string(key.str()), to_origin(key.source(), source), convert(child, source)});
    // The place of a table is the key that names it, not the bracket before it.
    if (members.back().value.is_table()) members.back().value.origin = members.back().key_origin;
  }
  std::ranges::stable_sort(members, {},
                           [](const Member& m) { return std::pair(m.key_origin.line, m.key_origin.column); });
  return {std::move(members), to_origin(table.source(), source)};
}

Value convert(const toml::node& node, int source) {
  const Origin origin = to_origin(node.source(), source);
  if (const auto* table = node.as_table()) return convert_table(*table, source);
  if (const auto* array = node.as_array()) {
    Value::Array elements;
    for (const toml::node& child : *array) elements.push_back(convert(child, source));
    return {std::move(elements), origin};
  }
  if (const auto* boolean = node.as_boolean()) return {boolean->get(), origin};
  if (const auto* integer = node.as_integer()) return {integer->get(), origin};
  if (const auto* real = node.as_floating_point()) return {real->get(), origin};
  if (const auto* text = node.as_string()) return {text->get(), origin};
  return {Date{}, origin};
}

struct Line {
  std::size_t begin = 0;
  std::size_t end = 0;  // without the newline
};

Line line_at(std::string_view text, int number) {
  std::size_t begin = 0;
  for (int i = 1; i < number && begin < text.size(); ++i) begin = std::min(text.find('\n', begin), text.size() - 1) + 1;
  return {begin, std::min(text.find('\n', begin), text.size())};
}

// The place where `name` was first given before `line`, searched in everything the text says up to there.
std::optional<Origin> first_definition(std::string_view text, int line, std::string_view name, int source) {
  const toml::parse_result earlier = toml::parse(text.substr(0, line_at(text, line).begin));
  if (!earlier) return {};
  const Value root = convert_table(earlier.table(), source);
  const Value* parent = &root;
  const std::vector<std::string> keys = split_path(name);
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    parent = parent->find(keys[i]);
    if (parent != nullptr && parent->is_array() && !parent->array().empty()) parent = &parent->array().back();
    if (parent == nullptr || !parent->is_table()) return {};
  }
  for (const Member& member : parent->table())
    if (member.key == keys.back()) return member.key_origin;
  return {};
}

// The dotted path of the last [header] before `line`: toml++ names a duplicate key without its table.
std::string header_before(std::string_view text, int line) {
  text = text.substr(0, line_at(text, line).begin);
  while (!text.empty()) {
    text.remove_suffix(1);  // the newline
    const std::size_t begin = text.rfind('\n') + 1;  // 0 when there is none
    std::string_view row = text.substr(begin);
    text = text.substr(0, begin);
    while (!row.empty() && (row.front() == ' ' || row.front() == '\t')) row.remove_prefix(1);
    if (!row.starts_with('[')) continue;
    row.remove_prefix(row.starts_with("[[") ? 2 : 1);
    return std::string(row.substr(0, row.find(']')));
  }
  return {};
}

Diagnostic describe_error(const toml::parse_error& error, std::string_view text, int source) {
  Diagnostic d{to_origin(error.source(), source), std::string(error.description()), {}, {}};
  const std::size_t at = d.message.find("cannot redefine existing ");
  if (at == std::string::npos) {
    // "Error while parsing floating-point: expected ..." -> "not valid TOML (floating-point): expected ..."
    constexpr std::string_view kPrefix = "Error while parsing ";
    const std::size_t colon = d.message.starts_with(kPrefix) ? d.message.find(": ") : std::string::npos;
    d.message = colon == std::string::npos ? "not valid TOML: " + d.message
                                           : "not valid TOML (" + d.message.substr(kPrefix.size(), colon - kPrefix.size()) +
                                                 ")" + d.message.substr(colon);
    return d;
  }
  const std::size_t open = d.message.find('\'', at);
  const std::size_t close = d.message.find('\'', open == std::string::npos ? at : open + 1);
  if (open == std::string::npos || close == std::string::npos) return d;
  const std::string name = d.message.substr(open + 1, close - open - 1);
  std::optional<Origin> first = first_definition(text, d.origin.line, name, source);
  std::string shown = name;
  if (!first) {
    shown = join_path(header_before(text, d.origin.line), name);
    first = first_definition(text, d.origin.line, shown, source);
  }
  d.message = "duplicate key " + shown;
  d.hint = "keep one of the two";
  const Line at_line = line_at(text, d.origin.line);  // underline the line's key: toml++ points behind it
  const std::string_view row = text.substr(at_line.begin, at_line.end - at_line.begin);
  if (const std::size_t column = row.find_first_not_of(" \t["); column != std::string_view::npos) {
    d.origin.column = static_cast<int>(column) + 1;
    d.origin.width = static_cast<int>(std::min(row.find_first_of(" \t=]", column), row.size()) - column);
  }
  if (first) d.notes.push_back({*first, shown + " is first given here"});
  return d;
}

}  // namespace

Value parse_toml(std::string_view text, int source, Diagnostics& diagnostics, bool& complete) {
  if (const auto refused = refusal_of(text)) {
    complete = false;
    diagnostics.error("", {{source, refused->line, 1, 1}, refused->why, {}, {}});
    return {};
  }
  std::string remaining(text);
  std::vector<Diagnostic> found;
  for (int attempt = 0; attempt <= kRecoveriesMax; ++attempt) {
    const toml::parse_result result = toml::parse(std::string_view(remaining));
    if (result) {
      for (Diagnostic& d : found) diagnostics.error("", std::move(d));
      return convert_table(result.table(), source);
    }
    complete = false;
    found.push_back(describe_error(result.error(), remaining, source));
    // Blank the line and look on: when the rest then parses, the error was this line's alone.
    const Line line = line_at(remaining, found.back().origin.line);
    const std::string_view row = std::string_view(remaining).substr(line.begin, line.end - line.begin);
    const bool is_pair = row.find('=') != std::string_view::npos && row.find_first_not_of(" \t") != row.find('[');
    if (!is_pair) break;
    remaining.replace(line.begin, line.end - line.begin, std::string(line.end - line.begin, ' '));
  }
  diagnostics.error("", std::move(found.front()));
  return {};
}

std::optional<Value> parse_toml_value(std::string_view text, Origin origin) {
  if (refusal_of(text)) return {};
  const toml::parse_result result = toml::parse("x = " + std::string(text));
  if (!result || result.table().size() != 1) return {};
  Value value = convert(*result.table().get("x"), origin.source);
  struct Stamp {
    Origin origin;
    void operator()(Value& v) const {
      v.origin = origin;
      if (v.is_array())
        for (Value& element : v.array()) (*this)(element);
      if (v.is_table())
        for (Member& member : v.table()) member.key_origin = origin, (*this)(member.value);
    }
  };
  Stamp{origin}(value);
  return value;
}

}  // namespace troupe::config
