#include "config/output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/merge.h"

namespace troupe::config {
namespace {

constexpr int kJsonDepthMax = 32;  // deeper than any schema

Value dump_all(const Section& schema) {
  Value out;
  const std::string variant = schema.variant_of(out);
  for (const Field& field : schema.fields()) {
    if (!Section::active(field, variant)) continue;
    if (field.is_leaf()) {
      if (std::optional<Value> value = field.read()) out.set(field.key, {}, *std::move(value));
    } else if (field.kind == Kind::kSection) {
      out.set(field.key, {}, dump_all(*field.section));
    } else {
      Value elements{Value::Array{}, {}};
      for (std::size_t i = 0; i < field.list_size(); ++i) elements.array().push_back(dump_all(field.list_element(i)));
      out.set(field.key, {}, std::move(elements));
    }
  }
  return out;
}

// Removes from `own` what `parent` says as well.
void prune(Value& own, const Value& parent) {
  std::erase_if(own.table(), [&parent](Member& member) {
    const Value* same = parent.find(member.key);
    if (same == nullptr) return false;
    if (member.value.is_table() && same->is_table()) {
      prune(member.value, *same);
      return member.value.table().empty();
    }
    return member.value.same_data(*same);
  });
}

bool is_section(const Value& value) {
  return value.is_table() || (value.is_array() && !value.array().empty() && value.array().front().is_table());
}

// Prints dumped tables; `resolved` and `sources` are null without origins.
class TomlPrinter {
 public:
  TomlPrinter(const Value* resolved, const Sources* sources) : resolved_(resolved), sources_(sources) {}

  std::string run(const Value& root) {
    table(root, "", "");
    return std::move(out_);
  }

 private:
  // `header` is the path as TOML has it ("stage.optim"), `path` the one with indices ("stage.0.optim").
  void table(const Value& table_value, const std::string& header, const std::string& path) {
    for (const Member& member : table_value.table()) {
      if (is_section(member.value)) continue;
      out_ += member.key + " = " + to_toml_inline(member.value);
      if (sources_ != nullptr) {
        const Value* given = resolved_->at(join_path(path, member.key));
        out_ += "  # " + (given == nullptr ? "default" : sources_->provenance(given->origin));
      }
      out_ += "\n";
    }
    for (const Member& member : table_value.table()) {
      const std::string name = join_path(header, member.key);
      const std::string place = join_path(path, member.key);
      if (member.value.is_table()) {
        if (member.value.table().empty()) continue;
        out_ += (out_.empty() ? "[" : "\n[") + name + "]\n";
        table(member.value, name, place);
      } else if (is_section(member.value)) {
        for (std::size_t i = 0; i < member.value.array().size(); ++i) {
          out_ += (out_.empty() ? "[[" : "\n[[") + name + "]]\n";
          table(member.value.array()[i], name, join_path(place, std::to_string(i)));
        }
      }
    }
  }

  const Value* resolved_;
  const Sources* sources_;
  std::string out_;
};

std::string wrapped(std::string_view text, std::string_view prefix, std::size_t columns) {
  std::string out, line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!line.empty() && prefix.size() + line.size() + 1 + end > columns) {
      out += std::string(prefix) + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + std::string(prefix) + line + "\n";
}

// type = "sft" or "rl"
std::string variants_text(const Section& owner, const Field& field) {
  std::string text = owner.variant_key() + " = ";
  for (const std::string& name : field.variants)
    text += (&name == &field.variants.front() ? "\"" : " or \"") + name + "\"";
  return text;
}

void reference_of(const Section& schema, const std::string& header, bool commented, std::string& out) {
  constexpr std::size_t kColumns = 120;
  const std::string mark = commented ? "# " : "";
  const std::string variant = schema.variant_of({});
  for (const Field& field : schema.fields()) {
    if (!field.is_leaf()) continue;
    const bool active = Section::active(field, variant);
    std::string doc = field.doc + " (" + field.type_text() + (field.is_required ? "; required" : "") +
                      (field.is_hot ? "; hot" : "") + ")";
    if (!field.variants.empty()) doc += " Only with " + variants_text(schema, field) + ".";
    out += wrapped(doc, "# ", kColumns);
    const std::optional<Value> value = field.read();
    out += (active && value ? mark : "# ") + field.key + " = " + (value ? to_toml_inline(*value) : "") + "\n";
  }
  for (const Field& field : schema.fields()) {
    if (field.is_leaf()) continue;
    const std::string name = join_path(header, field.key);
    const bool hidden = commented || field.kind == Kind::kList || !Section::active(field, variant);
    std::string doc = field.doc;
    if (!field.inherits.empty()) doc += " Any key of [" + field.inherits + "], for this element alone.";
    if (!field.variants.empty()) doc += " Only with " + variants_text(schema, field) + ".";
    out += "\n" + wrapped(doc, "# ", kColumns);
    out += std::string(hidden ? "# " : "") + (field.kind == Kind::kList ? "[[" + name + "]]" : "[" + name + "]") + "\n";
    if (field.inherits.empty()) reference_of(*field.section, name, hidden, out);
  }
}

std::string explain_field(const Section& owner, const Field& field, const std::string& path) {
  std::string out = path + "\n" + wrapped(field.doc, "  ", 100);
  out += "  type: " + field.type_text() + "\n";
  const std::optional<Value> value = field.is_leaf() ? field.read() : std::nullopt;
  if (field.is_leaf())
    out += "  default: " + (value ? to_toml_inline(*value) : "unset") + (field.is_required ? " (must be given)" : "") +
           "\n";
  if (field.is_leaf())
    out += std::string("  ") +
           (field.is_hot ? "hot: may be changed while a run is live" : "fixed when the run starts") + "\n";
  if (!field.variants.empty()) out += "  only with " + variants_text(owner, field) + "\n";
  if (!field.inherits.empty()) out += "  keys not given here come from [" + field.inherits + "]\n";
  if (!field.is_leaf()) {
    out += "  keys:";
    for (const Field& key : field.section->fields()) out += " " + key.key;
    out += "\n";
  }
  return out;
}

}  // namespace

Value dump(const Section& schema) {
  Value out = dump_all(schema);
  for (const Field& list : schema.fields()) {
    if (list.kind != Kind::kList || out.find(list.key) == nullptr) continue;
    for (Value& element : out.find(list.key)->array())
      for (const Field& field : list.section->fields()) {
        Value* own = field.inherits.empty() ? nullptr : element.find(field.key);
        const Value* parent = own == nullptr ? nullptr : out.at(field.inherits);
        if (parent == nullptr) continue;
        prune(*own, *parent);
        if (own->table().empty()) element.erase(field.key);
      }
  }
  return out;
}

std::string to_toml(const Value& dumped) { return TomlPrinter(nullptr, nullptr).run(dumped); }

std::string to_toml_with_origins(const Value& dumped, const Value& resolved, const Sources& sources) {
  return TomlPrinter(&resolved, &sources).run(dumped);
}

nlohmann::json to_json(const Value& value) {
  struct Printer {
    nlohmann::json operator()(bool v) const { return v; }
    nlohmann::json operator()(std::int64_t v) const { return v; }
    nlohmann::json operator()(double v) const { return v; }
    nlohmann::json operator()(const std::string& v) const { return v; }
    nlohmann::json operator()(const Date&) const { return nullptr; }
    nlohmann::json operator()(const Value::Array& array) const {
      nlohmann::json out = nlohmann::json::array();
      for (const Value& element : array) out.push_back(to_json(element));
      return out;
    }
    nlohmann::json operator()(const Value::Table& table) const {
      nlohmann::json out = nlohmann::json::object();
      for (const Member& member : table) out[member.key] = to_json(member.value);
      return out;
    }
  };
  return std::visit(Printer{}, value.data);
}

Value from_json(const nlohmann::json& document, Origin origin) {
  struct Reader {
    Origin origin;
    Value operator()(const nlohmann::json& json, int depth) const {
      if (depth > kJsonDepthMax) return {Date{}, origin};
      if (json.is_boolean()) return {json.get<bool>(), origin};
      if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX)
        return {static_cast<double>(json.get<std::uint64_t>()), origin};
      if (json.is_number_integer()) return {json.get<std::int64_t>(), origin};
      if (json.is_number_float()) return {json.get<double>(), origin};
      if (json.is_string()) return {json.get<std::string>(), origin};
      if (json.is_array()) {
        Value out{Value::Array{}, origin};
        for (const nlohmann::json& element : json) out.array().push_back((*this)(element, depth + 1));
        return out;
      }
      if (!json.is_object()) return {Date{}, origin};
      Value out{Value::Table{}, origin};
      for (const auto& [key, child] : json.items()) out.table().push_back({key, origin, (*this)(child, depth + 1)});
      return out;
    }
  };
  return Reader{origin}(document, 0);
}

std::string reference(const Section& schema) {
  std::string out =
      "# Every key of a troupe experiment, with its default. Written by `troupe config reference`.\n"
      "# A key marked hot may be changed while a run is live.\n\n";
  reference_of(schema, {}, false, out);
  return out;
}

std::optional<bool> is_hot(const Section& schema, std::string_view path) {
  const Section* owner = nullptr;
  const Field* field = find_field(schema, split_path(path), 0, &owner);
  return field == nullptr ? std::nullopt : std::optional(field->is_hot);
}

std::optional<std::string> explain(const Section& schema, std::string_view path, std::string* nearest) {
  const Section* owner = nullptr;
  const std::vector<std::string> keys = split_path(path);
  const Field* field = find_field(schema, keys, 0, &owner);
  if (field == nullptr) {
    if (nearest == nullptr) return {};
    *nearest = did_you_mean(schema, schema, {}, {}, keys.back());
    if (nearest->empty())
      if (const auto near = suggestions(path, all_paths(schema)); !near.empty())
        *nearest = "did you mean " + near.front() + "?";
    return {};
  }
  std::string out;
  for (const Field& same : owner->fields())  // a key may mean different things in different variants
    if (same.key == field->key) out += (out.empty() ? "" : "\n") + explain_field(*owner, same, std::string(path));
  return out;
}

}  // namespace troupe::config
