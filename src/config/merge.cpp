#include "config/merge.h"

#include <algorithm>
#include <charconv>

namespace troupe::config {
namespace {

std::string one_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : " or \"") + name + "\"";
  return text;
}

std::string as_string(const Value* value) {
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(&value->data);
  return text == nullptr ? std::string() : *text;
}

}  // namespace

std::vector<std::string> all_paths(const Section& schema, std::string_view prefix) {
  std::vector<std::string> paths;
  for (const Field& field : schema.fields()) {
    paths.push_back(join_path(prefix, field.key));
    if (!field.is_leaf() && field.inherits.empty())
      for (std::string& path : all_paths(*field.section, paths.back())) paths.push_back(std::move(path));
  }
  return paths;
}

const Field* find_field(const Section& section, const std::vector<std::string>& keys, std::size_t begin,
                        const Section** owner) {
  for (const Field& field : section.fields()) {
    if (field.key != keys[begin]) continue;
    if (begin + 1 == keys.size()) {
      if (owner != nullptr) *owner = &section;
      return &field;
    }
    if (field.is_leaf()) continue;  // another variant may have a section of that name
    if (const Field* found = find_field(*field.section, keys, begin + 1, owner)) return found;
    if (field.kind == Kind::kList && begin + 2 < keys.size())
      if (const Field* found = find_field(*field.section, keys, begin + 2, owner)) return found;
  }
  return nullptr;
}

std::string did_you_mean(const Section& root, const Section& section, std::string_view variant, std::string_view path,
                         std::string_view key) {
  std::vector<std::string> here;
  for (const Field& field : section.fields())
    if (Section::active(field, variant)) here.push_back(field.key);
  std::vector<std::string> found = suggestions(key, here);
  for (std::string& name : found) name = join_path(path, name);
  if (found.empty())  // the right key in the wrong section
    for (const std::string& candidate : all_paths(root))
      if (candidate != join_path(path, key) && split_path(candidate).back() == key && found.size() < 2)
        found.push_back(candidate);
  if (found.empty()) return {};
  return "did you mean " + found.front() + (found.size() > 1 ? " or " + found[1] : "") + "?";
}

void Merger::unknown(const Section& section, std::string_view variant, std::string_view path, std::string_view key,
                     Origin origin) {
  const std::string full = join_path(path, key);
  if (const Field* other = section.find(key)) {
    diagnostics_.error(full, {origin,
                              full + " does not belong to " + section.variant_key() + " = \"" + std::string(variant) +
                                  "\", only to " + one_of(other->variants),
                              {},
                              {}});
    return;
  }
  std::string message = "unknown key " + full;
  std::string hint;
  if (const std::string near = did_you_mean(root_, section, variant, path, key); !near.empty()) {
    message += "; " + near;
  } else {
    for (const Field& field : section.fields())
      if (Section::active(field, variant)) hint += (hint.empty() ? "keys here: " : ", ") + field.key;
  }
  diagnostics_.error(full, {origin, std::move(message), std::move(hint), {}});
}

void Merger::select_variant(const Section& section, Value& base, const Value& overlay) {
  const Value* given = section.variant_key().empty() ? nullptr : overlay.find(section.variant_key());
  if (given == nullptr || !std::holds_alternative<Value>(check_leaf(*section.find(section.variant_key()), *given)))
    return;
  const std::string before = section.variant_of(base);
  const std::string after = std::get<std::string>(given->data);
  if (before == after) return;
  std::erase_if(base.table(), [&](const Member& m) {
    const Field* field = section.find(m.key, before);
    return field != nullptr && !Section::active(*field, after);
  });
}

void Merger::merge(const Section& section, Value& base, const Value& overlay, std::string_view path) {
  select_variant(section, base, overlay);
  // The variant's own key first: it decides which others exist.
  std::string variant;
  for (const Member& given : overlay.table())
    if (given.key == section.variant_key() && !given.key.empty())
      member(section, *section.find(given.key), base, given, path);
  variant = section.variant_of(base);
  for (const Member& given : overlay.table()) {
    if (given.key == section.variant_key()) continue;
    if (const Field* field = section.find(given.key, variant))
      member(section, *field, base, given, path);
    else
      unknown(section, variant, path, given.key, given.key_origin);
  }
}

void Merger::member(const Section&, const Field& field, Value& base, const Member& given, std::string_view path) {
  const std::string full = join_path(path, field.key);
  if (field.is_leaf()) {
    std::variant<Value, LeafProblem> checked = check_leaf(field, given.value);
    if (auto* problem = std::get_if<LeafProblem>(&checked)) {
      std::string hint = problem->hint.empty() ? "`troupe config explain " + full + "`" : problem->hint;
      diagnostics_.error(full, {given.value.origin, full + " " + problem->message, std::move(hint), {}});
      return;
    }
    base.set(field.key, given.key_origin, std::get<Value>(std::move(checked)));
    return;
  }
  if (field.kind == Kind::kList) return list(field, base, given, full);
  if (!given.value.is_table()) {
    std::string hint = given.value.is_array() ? "write [" + full + "], one pair of brackets"
                                              : "its keys are set one by one, for example " + full + "." +
                                                    field.section->fields().front().key;
    diagnostics_.error(full, {given.value.origin,
                              full + " must be a table, got " + std::string(given.value.kind_name()),
                              std::move(hint),
                              {}});
    return;
  }
  Value* nested = base.find(field.key);
  if (nested == nullptr) nested = &base.set(field.key, given.key_origin, Value{Value::Table{}, given.value.origin});
  merge(*field.section, *nested, given.value, full);
}

void Merger::list(const Field& field, Value& base, const Member& given, const std::string& path) {
  const bool tables =
      given.value.is_array() && std::ranges::all_of(given.value.array(), [](const Value& v) { return v.is_table(); });
  if (!tables) {
    diagnostics_.error(path, {given.value.origin,
                              path + " must be an array of tables, got " + std::string(given.value.kind_name()),
                              "write [[" + path + "]] above each element",
                              {}});
    return;
  }
  Value elements{Value::Array{}, given.value.origin};
  for (std::size_t i = 0; i < given.value.array().size(); ++i) {
    const Value& source = given.value.array()[i];
    const std::string element_path = join_path(path, std::to_string(i));
    Value element{Value::Table{}, source.origin};
    merge(*field.section, element, source, element_path);
    for (const Field& key : field.section->fields())
      if (key.is_required && Section::active(key, field.section->variant_of(element)) &&
          source.find(key.key) == nullptr)
        diagnostics_.error(join_path(element_path, key.key),
                           {source.origin,
                            join_path(element_path, key.key) + " is missing",
                            key.choices.empty() ? key.doc : "one of " + one_of(key.choices),
                            {}});
    elements.array().push_back(std::move(element));
  }
  base.set(field.key, given.key_origin, std::move(elements));
}

Value* Merger::element(const Field& field, Value& table, const std::string& list_path, const std::string& selector,
                       Origin origin, std::string& index) {
  Value* list = table.find(field.key);
  std::string present;
  std::vector<std::size_t> matches;
  for (std::size_t i = 0; list != nullptr && i < list->array().size(); ++i) {
    const Value& candidate = list->array()[i];
    std::string name = as_string(candidate.find("name"));
    if (name.empty() && !field.section->variant_key().empty()) name = field.section->variant_of(candidate);
    present += (present.empty() ? "" : ", ") + std::to_string(i) + (name.empty() ? "" : " (" + name + ")");
    if (selector == std::to_string(i) || selector == name) matches.push_back(i);
  }
  if (matches.size() == 1) {
    index = std::to_string(matches.front());
    return &list->array()[matches.front()];
  }
  const std::string what = matches.empty() ? "there is no " : "there are several ";
  diagnostics_.error(
      list_path,
      {origin, what + list_path + "." + selector, present.empty() ? "the list is empty" : "elements: " + present, {}});
  return nullptr;
}

std::optional<Target> Merger::locate(Value& tree, const std::vector<std::string>& keys, Origin origin) {
  Target at{&root_, nullptr, &tree, {}, {}};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string variant = at.section->variant_of(*at.table);
    at.field = at.section->find(keys[i], variant);
    if (at.field == nullptr) {
      unknown(*at.section, variant, at.table_path, keys[i], origin);
      return {};
    }
    at.path = join_path(at.table_path, keys[i]);
    if (i + 1 == keys.size()) return at;
    if (at.field->is_leaf()) {
      diagnostics_.error(
          at.path, {origin, at.path + " is a " + at.field->type_text() + ", it has no key " + keys[i + 1], {}, {}});
      return {};
    }
    if (at.field->kind == Kind::kSection) {
      Value* nested = at.table->find(keys[i]);
      at.table = nested != nullptr ? nested : &at.table->set(keys[i], origin, Value{Value::Table{}, origin});
    } else {
      std::string index;
      at.table = element(*at.field, *at.table, at.path, keys[++i], origin, index);
      if (at.table == nullptr) return {};
      at.path = join_path(at.path, index);
      if (i + 1 == keys.size()) {
        diagnostics_.error(at.path, {origin, at.path + " is a table; set one of its keys", {}, {}});
        return {};
      }
    }
    at.table_path = at.path;
    at.section = at.field->section.get();
  }
  return {};
}

}  // namespace troupe::config
