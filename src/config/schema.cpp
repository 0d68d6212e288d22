#include "config/schema.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "config/diagnostic.h"

namespace troupe::config {
namespace {

// "1", "0.5", "1e-06"; for durations and sizes with their unit.
std::string bound_text(const Field& field, double bound) {
  if (field.kind == Kind::kDuration) return exact_text(from_seconds(bound));
  if (field.kind == Kind::kBytes) return exact_text(Bytes{static_cast<std::uint64_t>(bound)});
  if (bound == std::floor(bound) && std::abs(bound) < 1e15) return std::to_string(static_cast<std::int64_t>(bound));
  return to_toml_inline(Value{bound, {}});
}

bool is_typed_limit(double bound) {
  return bound == std::numeric_limits<std::int32_t>::max() || bound == std::numeric_limits<std::int32_t>::min() ||
         bound == std::numeric_limits<std::uint32_t>::max();
}

// "must be at least 1" / "must be 1 to 64"; empty when there is no limit worth naming.
std::string range_text(const Field& field) {
  const Range& r = field.range;
  const bool low = std::isfinite(r.low) && !is_typed_limit(r.low);
  const bool high = std::isfinite(r.high) && !is_typed_limit(r.high);
  if (low && high && !r.low_open && !r.high_open) return bound_text(field, r.low) + " to " + bound_text(field, r.high);
  std::string text;
  if (low) text = (r.low_open ? "greater than " : "at least ") + bound_text(field, r.low);
  if (high)
    text += std::string(low ? " and " : "") + (r.high_open ? "less than " : "at most ") + bound_text(field, r.high);
  return text;
}

bool in_range(const Range& r, double v) {
  return (r.low_open ? v > r.low : v >= r.low) && (r.high_open ? v < r.high : v <= r.high);
}

std::string_view noun(Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return "a boolean (true or false)";
    case Kind::kInteger:
      return "an integer";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
    case Kind::kChoice:
      return "a string";
    case Kind::kDuration:
      return "a duration such as \"30s\" or \"200ms\"";
    case Kind::kBytes:
      return "a size such as \"256MiB\"";
    case Kind::kStrings:
      return "a list of strings";
    case Kind::kIntegers:
      return "a list of integers";
    case Kind::kFloats:
      return "a list of numbers";
    case Kind::kSection:
      return "a table";
    case Kind::kList:
      return "an array of tables";
  }
  return "a value";
}

using Checked = std::variant<Value, LeafProblem>;

LeafProblem wrong_type(const Field& field, const Value& value) {
  std::string message = "must be " + std::string(noun(field.kind)) + ", got " + std::string(value.kind_name());
  if (!value.is_table() && !std::holds_alternative<Date>(value.data)) message += " " + to_toml_inline(value);
  std::string hint;
  if (const auto* text = std::get_if<std::string>(&value.data)) {
    if (field.kind == Kind::kBool && (*text == "true" || *text == "false"))
      hint = "write " + *text + " without quotes";
    else if ((field.kind == Kind::kInteger || field.kind == Kind::kFloat) && !text->empty() &&
             text->find_first_not_of("0123456789.-+e") == std::string::npos)
      hint = "write " + *text + " without quotes";
  } else if (const auto* number = std::get_if<double>(&value.data); number && field.kind == Kind::kInteger) {
    if (*number == std::floor(*number) && std::abs(*number) < 9e15)
      hint = "write " + std::to_string(static_cast<std::int64_t>(*number));
  } else if (field.kind == Kind::kStrings || field.kind == Kind::kIntegers || field.kind == Kind::kFloats) {
    hint = "write it in brackets: [" + to_toml_inline(value) + "]";
  } else if (field.kind == Kind::kDuration && std::holds_alternative<std::int64_t>(value.data)) {
    hint = "add a unit: \"" + to_toml_inline(value) + "s\"";
  }
  return {std::move(message), std::move(hint)};
}

Checked out_of_range(const Field& field, const Value& value) {
  return LeafProblem{"must be " + range_text(field) + ", got " + to_toml_inline(value), {}};
}

Checked check_number(const Field& field, const Value& value) {
  if (field.kind == Kind::kInteger) {
    const auto* integer = std::get_if<std::int64_t>(&value.data);
    if (!integer) return wrong_type(field, value);
    const double number = static_cast<double>(*integer);
    if (in_range(field.range, number)) return value;
    if (number > field.range.high && is_typed_limit(field.range.high))
      return LeafProblem{"must be at most " + bound_text(field, field.range.high) + ", got " + to_toml_inline(value),
                         {}};
    return out_of_range(field, value);
  }
  Value number = value;
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) number.data = static_cast<double>(*integer);
  const auto* real = std::get_if<double>(&number.data);
  if (!real) return wrong_type(field, value);
  if (!std::isfinite(*real)) return LeafProblem{"must be a finite number, got " + to_toml_inline(value), {}};
  if (!in_range(field.range, *real)) return out_of_range(field, value);
  return number;
}

Checked check_quantity(const Field& field, const Value& value) {
  Value text = value;
  if (const auto* integer = std::get_if<std::int64_t>(&value.data);
      integer && field.kind == Kind::kBytes && *integer >= 0)
    text.data = std::to_string(*integer);
  const auto* written = std::get_if<std::string>(&text.data);
  if (!written) return wrong_type(field, value);
  double amount = 0;
  if (field.kind == Kind::kDuration) {
    const auto parsed = parse_duration(*written);
    if (!parsed)
      return LeafProblem{"must be a duration: " + parsed.error().message, "for example \"500ms\", \"30s\", \"5m\""};
    amount = seconds(*parsed);
  } else {
    const auto parsed = parse_bytes(*written);
    if (!parsed) return LeafProblem{"must be a size: " + parsed.error().message, "for example \"64MiB\", \"4GiB\""};
    amount = static_cast<double>(parsed->count);
  }
  if (!in_range(field.range, amount)) return out_of_range(field, value);
  return text;
}

Checked check_choice(const Field& field, const Value& value) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text && std::ranges::find(field.choices, *text) != field.choices.end()) return value;
  if (!text) return wrong_type(field, value);
  std::string names;
  for (const std::string& choice : field.choices) names += (names.empty() ? "" : ", ") + ("\"" + choice + "\"");
  LeafProblem problem{"must be one of " + names + "; got " + to_toml_inline(value), {}};
  // "DR-GRPO" means "dr_grpo", whatever their edit distance
  std::string folded = *text;
  std::ranges::replace(folded, '-', '_');
  std::ranges::transform(folded, folded.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (const auto near = suggestions(folded, field.choices, 1); !near.empty())
    problem.hint = "did you mean \"" + near.front() + "\"?";
  return problem;
}

Checked check_array(const Field& field, const Value& value) {
  if (!value.is_array()) return wrong_type(field, value);
  Field element = field;
  element.kind = field.kind == Kind::kStrings    ? Kind::kString
                 : field.kind == Kind::kIntegers ? Kind::kInteger
                                                 : Kind::kFloat;
  Value out{Value::Array{}, value.origin};
  for (std::size_t i = 0; i < value.array().size(); ++i) {
    Checked checked = check_leaf(element, value.array()[i]);
    if (auto* problem = std::get_if<LeafProblem>(&checked))
      return LeafProblem{"element " + std::to_string(i) + " " + problem->message, problem->hint};
    out.array().push_back(std::get<Value>(std::move(checked)));
  }
  return out;
}

}  // namespace

Field& Section::choice(std::string_view key, std::string& member, std::initializer_list<std::string_view> names,
                       std::string_view doc) {
  Field& f = field(key, member, doc);
  f.kind = Kind::kChoice;
  f.choices.assign(names.begin(), names.end());
  return f;
}

Field& Section::add(std::string_view key, Kind kind, std::string_view doc) {
  for (const Field& other : fields_)
    if (other.key == key) {
      const bool apart =
          !other.variants.empty() && !current_variants_.empty() &&
          std::ranges::none_of(current_variants_, [&](const std::string& v) { return active(other, v); });
      TROUPE_CHECK(apart, "the key " + other.key + " is declared twice");
    }
  Field& f = fields_.emplace_back();
  f.key = key;
  f.kind = kind;
  f.doc = doc;
  f.variants = current_variants_;
  return f;
}

std::string Section::variant_of(const Value& table) const {
  if (variant_key_.empty()) return {};
  if (const Value* given = table.find(variant_key_))
    if (const auto* text = std::get_if<std::string>(&given->data)) return *text;
  return std::get<std::string>(find(variant_key_)->read()->data);
}

const Field* Section::find(std::string_view key, std::string_view variant) const {
  for (const Field& field : fields_)
    if (field.key == key && (variant.empty() || active(field, variant))) return &field;
  return nullptr;
}

bool Section::active(const Field& field, std::string_view variant) {
  return field.variants.empty() || std::ranges::find(field.variants, variant) != field.variants.end();
}

bool Field::takes_bare_words() const {
  return kind == Kind::kString || kind == Kind::kChoice || kind == Kind::kDuration || kind == Kind::kBytes;
}

std::string Field::type_text() const {
  constexpr std::array<std::string_view, 12> kNames = {
      "boolean",          "integer",        "float", "string",         "", "duration", "size", "list of strings",
      "list of integers", "list of floats", "table", "array of tables"};
  std::string text(kNames[static_cast<std::size_t>(kind)]);
  for (const std::string& choice : choices) text += (text.empty() ? "\"" : " | \"") + choice + "\"";
  if (const std::string limits = range_text(*this); !limits.empty()) text += ", " + limits;
  return text;
}

std::string exact_text(Duration duration) {
  constexpr std::array<std::pair<std::int64_t, std::string_view>, 7> kUnits = {{{86'400'000'000'000, "d"},
                                                                                {3'600'000'000'000, "h"},
                                                                                {60'000'000'000, "m"},
                                                                                {1'000'000'000, "s"},
                                                                                {1'000'000, "ms"},
                                                                                {1'000, "us"},
                                                                                {1, "ns"}}};
  if (duration.count() == 0) return "0s";
  for (const auto& [size, name] : kUnits)
    if (duration.count() % size == 0) return std::to_string(duration.count() / size) + std::string(name);
  return std::to_string(duration.count()) + "ns";
}

std::string exact_text(Bytes bytes) {
  constexpr std::array<std::pair<std::uint64_t, std::string_view>, 4> kUnits = {
      {{1ull << 40, "TiB"}, {1ull << 30, "GiB"}, {1ull << 20, "MiB"}, {1ull << 10, "KiB"}}};
  for (const auto& [size, name] : kUnits)
    if (bytes.count != 0 && bytes.count % size == 0) return std::to_string(bytes.count / size) + std::string(name);
  return std::to_string(bytes.count);
}

std::variant<Value, LeafProblem> check_leaf(const Field& field, const Value& value) {
  switch (field.kind) {
    case Kind::kInteger:
    case Kind::kFloat:
      return check_number(field, value);
    case Kind::kDuration:
    case Kind::kBytes:
      return check_quantity(field, value);
    case Kind::kChoice:
      return check_choice(field, value);
    case Kind::kStrings:
    case Kind::kIntegers:
    case Kind::kFloats:
      return check_array(field, value);
    case Kind::kBool:
      if (std::holds_alternative<bool>(value.data)) return value;
      break;
    case Kind::kString:
      if (std::holds_alternative<std::string>(value.data)) return value;
      break;
    case Kind::kSection:
    case Kind::kList:
      break;
  }
  return wrong_type(field, value);
}

}  // namespace troupe::config
