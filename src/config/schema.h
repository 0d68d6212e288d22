/// @file
/// Binds plain option structs to keys. One line per field:
///
///     void bind(config::Section& s, AdamOptions& o) {
///       s.field("lr", o.lr, "Peak learning rate.").above(0).hot();
///       s.choice("decay", o.decay, {{"cosine", Decay::kCosine}, {"linear", Decay::kLinear}}, "Shape after the
///       warm-up.");
///     }
///
/// A `Section` bound to a live object is the only schema there is: loading, `show`, `reference`, `explain`, JSON for
/// the workers and cross-field checks all walk it. It borrows the object, which must outlive it and stay where it is.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/units.h"
#include "config/value.h"

namespace troupe::config {

/// What a key holds.
enum class Kind {
  kBool,
  kInteger,
  kFloat,
  kString,
  kChoice,
  kDuration,
  kBytes,
  kStrings,
  kIntegers,
  kFloats,
  kSection,
  kList
};

/// Numbers a key accepts; for durations in seconds, for sizes in bytes, for lists and strings each element or length is
/// free.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

class Section;

/// One key of a section, bound to a member of a live struct.
struct Field {
  std::string key;
  std::string doc;
  Kind kind = Kind::kString;
  Range range;
  std::vector<std::string> choices;   ///< kChoice: the names accepted.
  std::vector<std::string> variants;  ///< Variants of the section that have this key; empty = all.
  bool is_hot = false;                ///< May be changed while a run is live.
  bool is_required = false;           ///< Every element of the list must give it.
  std::string inherits;               ///< kSection inside a list: keys not given here come from this top-level section.

  std::function<std::optional<Value>()>
      read;  ///< Leaves: the member as a value (durations and sizes as strings); nothing when it is an unset optional.
  std::function<void(const Value&)> write;           ///< Leaves: takes a value that `check_leaf` accepted.
  std::shared_ptr<Section> section;                  ///< kSection: the nested keys. kList: a prototype element.
  std::function<std::size_t()> list_size;            ///< kList.
  std::function<void(std::size_t)> list_resize;      ///< kList: to this many default elements.
  std::function<Section(std::size_t)> list_element;  ///< kList: bound to element i.

  Field& min(double v) {
    range.low = v, range.low_open = false;
    return *this;
  }
  Field& above(double v) {
    range.low = v, range.low_open = true;
    return *this;
  }
  Field& max(double v) {
    range.high = v, range.high_open = false;
    return *this;
  }
  Field& below(double v) {
    range.high = v, range.high_open = true;
    return *this;
  }
  Field& hot() {
    is_hot = true;
    return *this;
  }
  Field& required() {
    is_required = true;
    return *this;
  }
  Field& inherit(std::string_view path) {
    inherits = path;
    return *this;
  }

  [[nodiscard]] bool is_leaf() const { return kind != Kind::kSection && kind != Kind::kList; }
  /// Whether the value is text even without quotes (`--set run.name=abc`).
  [[nodiscard]] bool takes_bare_words() const;
  /// "integer, 1 to 64", "duration, at least 100ms", "\"a\" or \"b\"".
  [[nodiscard]] std::string type_text() const;
};

/// Exact text of a duration or size, as `parse_duration` / `parse_bytes` read it back: "90s", "256MiB".
[[nodiscard]] std::string exact_text(Duration duration);
[[nodiscard]] std::string exact_text(Bytes bytes);

namespace detail {

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};
template <class T>
constexpr bool kIsOptional = !std::is_same_v<typename Unwrapped<T>::type, T>;

template <class T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Kind::kBool;
  else if constexpr (std::is_integral_v<T>)
    return Kind::kInteger;
  else if constexpr (std::is_floating_point_v<T>)
    return Kind::kFloat;
  else if constexpr (std::is_same_v<T, Duration>)
    return Kind::kDuration;
  else if constexpr (std::is_same_v<T, Bytes>)
    return Kind::kBytes;
  else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>)
    return Kind::kString;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return Kind::kStrings;
  else if constexpr (std::is_same_v<T, std::vector<double>>)
    return Kind::kFloats;
  else {
    static_assert(std::is_same_v<T, std::vector<std::int32_t>> || std::is_same_v<T, std::vector<std::int64_t>>,
                  "no config type for this member");
    return Kind::kIntegers;
  }
}

template <class T>
Value read_member(const T& member) {
  Value value;
  if constexpr (std::is_same_v<T, bool>)
    value.data = member;
  else if constexpr (std::is_integral_v<T>)
    value.data = static_cast<std::int64_t>(member);
  else if constexpr (std::is_same_v<T, float>)
    value.data = std::stod(to_toml_inline(Value{static_cast<double>(member), {}}));
  else if constexpr (std::is_floating_point_v<T>)
    value.data = static_cast<double>(member);
  else if constexpr (std::is_same_v<T, Duration> || std::is_same_v<T, Bytes>)
    value.data = exact_text(member);
  else if constexpr (std::is_same_v<T, std::string>)
    value.data = member;
  else if constexpr (std::is_same_v<T, std::filesystem::path>)
    value.data = member.string();
  else {
    Value::Array array;
    for (const auto& element : member) array.push_back(read_member(element));
    value.data = std::move(array);
  }
  return value;
}

template <class T>
void write_member(T& member, const Value& value) {
  if constexpr (std::is_same_v<T, bool>)
    member = std::get<bool>(value.data);
  else if constexpr (std::is_integral_v<T>)
    member = static_cast<T>(std::get<std::int64_t>(value.data));
  else if constexpr (std::is_floating_point_v<T>)
    member = static_cast<T>(std::get<double>(value.data));
  else if constexpr (std::is_same_v<T, Duration>)
    member = *parse_duration(std::get<std::string>(value.data));
  else if constexpr (std::is_same_v<T, Bytes>)
    member = *parse_bytes(std::get<std::string>(value.data));
  else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>)
    member = std::get<std::string>(value.data);
  else {
    member.clear();
    for (const Value& element : value.array()) write_member(member.emplace_back(), element);
  }
}

}  // namespace detail

/// The keys of one table.
class Section {
 public:
  template <class T>
  using Bind = std::type_identity_t<void (*)(Section&, T&)>;

  /// A leaf; a std::optional of one may stay unset. Integers are limited to what the member can hold.
  template <class T>
  Field& field(std::string_view key, T& member, std::string_view doc) {
    using Plain = typename detail::Unwrapped<T>::type;
    Field& f = add(key, detail::kind_of<Plain>(), doc);
    if constexpr (std::is_integral_v<Plain> && !std::is_same_v<Plain, bool> && sizeof(Plain) < 8)
      f.range = {static_cast<double>(std::numeric_limits<Plain>::min()),
                 static_cast<double>(std::numeric_limits<Plain>::max())};
    else if constexpr (std::is_unsigned_v<Plain> && !std::is_same_v<Plain, bool>)
      f.range.low = 0;
    if constexpr (detail::kIsOptional<T>) {
      f.read = [&member]() -> std::optional<Value> {
        return member ? std::optional(detail::read_member(*member)) : std::nullopt;
      };
      f.write = [&member](const Value& value) { detail::write_member(member.emplace(), value); };
    } else {
      f.read = [&member]() -> std::optional<Value> { return detail::read_member(member); };
      f.write = [&member](const Value& value) { detail::write_member(member, value); };
    }
    return f;
  }

  /// A leaf that takes one of the names.
  template <class E>
  requires std::is_enum_v<E> Field& choice(std::string_view key, E& member,
                                           std::initializer_list<std::pair<std::string_view, E>> names,
                                           std::string_view doc) {
    Field& f = add(key, Kind::kChoice, doc);
    std::vector<std::pair<std::string, E>> table(names.begin(), names.end());
    for (const auto& [name, _] : table) f.choices.push_back(name);
    f.read = [&member, table]() -> std::optional<Value> {
      Value value;
      for (const auto& [name, e] : table)
        if (e == member) value.data = name;
      return value;
    };
    f.write = [&member, table](const Value& value) {
      for (const auto& [name, e] : table)
        if (name == std::get<std::string>(value.data)) member = e;
    };
    return f;
  }
  Field& choice(std::string_view key, std::string& member, std::initializer_list<std::string_view> names,
                std::string_view doc);

  /// A nested table.
  template <class T>
  Field& section(std::string_view key, T& member, Bind<T> bind, std::string_view doc) {
    Field& f = add(key, Kind::kSection, doc);
    f.section = std::make_shared<Section>();
    bind(*f.section, member);
    return f;
  }

  /// An array of tables, replaced whole by a later layer.
  template <class T>
  Field& list(std::string_view key, std::vector<T>& member, Bind<T> bind, std::string_view doc) {
    Field& f = add(key, Kind::kList, doc);
    auto prototype = std::make_shared<T>();  // shared: every copy of the schema refers to this default element
    f.section = std::make_shared<Section>();
    f.section->owned_ = prototype;
    bind(*f.section, *prototype);
    f.list_size = [&member] { return member.size(); };
    f.list_resize = [&member](std::size_t n) { member.assign(n, T{}); };
    f.list_element = [&member, bind](std::size_t i) {
      Section s;
      bind(s, member.at(i));
      return s;
    };
    return f;
  }

  /// Makes `key`, a choice declared before, the variant of this section: keys declared inside `variant` exist for some
  /// of its values only, and a layer that changes it drops what older layers gave to the old variant.
  void variant_key(std::string_view key) { variant_key_ = key; }
  template <class F>
  void variant(std::initializer_list<std::string_view> names, F&& declare) {
    current_variants_.assign(names.begin(), names.end());
    declare();
    current_variants_.clear();
  }

  [[nodiscard]] const std::vector<Field>& fields() const { return fields_; }
  /// "" when the section has no variants.
  [[nodiscard]] const std::string& variant_key() const { return variant_key_; }
  /// The variant that `table` selects, or the bound object's when it does not say.
  [[nodiscard]] std::string variant_of(const Value& table) const;
  /// The key as it exists in that variant, or null. An empty variant finds the first key of that name.
  [[nodiscard]] const Field* find(std::string_view key, std::string_view variant = {}) const;
  /// Whether the key exists in that variant.
  [[nodiscard]] static bool active(const Field& field, std::string_view variant);

 private:
  Field& add(std::string_view key, Kind kind, std::string_view doc);

  std::vector<Field> fields_;
  std::string variant_key_;
  std::vector<std::string> current_variants_;
  std::shared_ptr<void> owned_;  // the prototype element of a list
};

/// Checks one leaf value. Returns it in the field's own type (an integer for a float key becomes a float), or why it is
/// wrong: {"must be greater than 0, got -1", hint}.
struct LeafProblem {
  std::string message;
  std::string hint;
};
[[nodiscard]] std::variant<Value, LeafProblem> check_leaf(const Field& field, const Value& value);

}  // namespace troupe::config
