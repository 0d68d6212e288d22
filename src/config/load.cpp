#include "config/load.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/file.h"
#include "base/json.h"
#include "config/merge.h"
#include "config/output.h"
#include "config/toml_parse.h"

namespace troupe::config {
namespace {

constexpr std::uint64_t kFileBytesMax = 4 << 20;  // a config is written by a person
constexpr std::string_view kSweep = "sweep";

// One --set flag, split.
struct Assignment {
  std::vector<std::string> keys;
  std::string text;
  Origin origin;
};

class Loader {
 public:
  Loader(const Section& schema, Diagnostics& diagnostics)
      : schema_(schema), diagnostics_(diagnostics), merger_(schema, diagnostics) {}

  void file(const std::filesystem::path& path) {
    Result<std::string> text = read_file(path, kFileBytesMax);
    if (!text) {
      merged_.syntax_ok = false;
      diagnostics_.error("", {{diagnostics_.sources.add_flag(path.string()), 0, 0, 1}, text.error().message, {}, {}});
      return;
    }
    if (path.extension() == ".json") {
      const int source = diagnostics_.sources.add_flag(path.string());
      const auto document = parse_json(*text, path.string());
      if (!document) {
        merged_.syntax_ok = false;
        diagnostics_.error("", {{source, 0, 0, 1}, "the file " + document.error().message, {}, {}});
        return;
      }
      layer(from_json(*document, {source, 0, 0, 1}));
      return;
    }
    const int source = diagnostics_.sources.add_file(path.string(), *text);
    layer(parse_toml(*text, source, diagnostics_, merged_.syntax_ok));
  }

  void layer(Value overlay) {
    if (!overlay.is_table()) {
      diagnostics_.error(
          "", {overlay.origin, "the document must be a table, got " + std::string(overlay.kind_name()), {}, {}});
      return;
    }
    if (const Value* table = schema_.find(kSweep) == nullptr ? overlay.find(kSweep) : nullptr) {
      if (table->is_table())
        collect_sweep(*table, {});
      else
        diagnostics_.error(
            kSweep, {table->origin, "sweep must be a table of lists, got " + std::string(table->kind_name()), {}, {}});
      overlay.erase(kSweep);
    }
    merger_.merge(schema_, merged_.tree, overlay, {});
  }

  void sets(const std::vector<std::string>& flags) {
    std::vector<Assignment> assignments;
    for (const std::string& flag : flags) {
      const Origin origin{diagnostics_.sources.add_flag("--set " + flag), 0, 0, 1};
      const std::size_t equals = flag.find('=');
      std::vector<std::string> keys = split_path(trimmed(flag.substr(0, equals)));
      if (equals == std::string::npos || std::ranges::any_of(keys, &std::string::empty)) {
        diagnostics_.error("", {origin, "expected key=value", "for example --set optim.lr=1e-4", {}});
        continue;
      }
      assignments.push_back({std::move(keys), trimmed(flag.substr(equals + 1)), origin});
    }
    // A flag that picks a variant acts before those that set the variant's keys, wherever it stands.
    std::stable_partition(assignments.begin(), assignments.end(), [this](const Assignment& a) {
      const Section* owner = nullptr;
      const Field* field = find_field(schema_, a.keys, 0, &owner);
      return field != nullptr && !owner->variant_key().empty() && field->key == owner->variant_key();
    });
    for (const Assignment& a : assignments) set(a);
  }

  Merged finish() {
    std::ranges::stable_sort(
        raw_sweep_, {}, [](const SweepAxis& a) { return std::tuple(a.origin.source, a.origin.line, a.origin.column); });
    std::size_t points = 1;
    for (SweepAxis& axis : raw_sweep_) {
      if (!check_axis(axis)) continue;
      points *= axis.values.size();
      if (points > kSweepPointsMax) {
        diagnostics_.error(
            axis.path, {axis.origin, "the sweep has more than " + std::to_string(kSweepPointsMax) + " points", {}, {}});
        break;
      }
      merged_.sweep.push_back(std::move(axis));
    }
    return std::move(merged_);
  }

 private:
  static std::string trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
  }

  void set(const Assignment& a) {
    if (a.keys.front() == kSweep && a.keys.size() > 1 && schema_.find(kSweep) == nullptr) {
      std::string path;
      for (std::size_t i = 1; i < a.keys.size(); ++i) path = join_path(path, a.keys[i]);
      if (std::optional<Value> value = parse_toml_value(a.text, a.origin)) return axis(path, a.origin, *value);
      diagnostics_.error(path, {a.origin, "not a TOML value: " + a.text, "for example [1e-4, 1e-5]", {}});
      return;
    }
    const std::optional<Target> target = merger_.locate(merged_.tree, a.keys, a.origin);
    if (!target) return;
    const bool quoted = a.text.starts_with('"') || a.text.starts_with('\'');
    std::optional<Value> value;
    if (quoted || !target->field->takes_bare_words()) value = parse_toml_value(a.text, a.origin);
    if (!value) value = Value{a.text, a.origin};  // a bare word, or text whose type the check below refuses
    Value overlay{Value::Table{}, a.origin};
    overlay.set(target->field->key, a.origin, std::move(*value));
    merger_.merge(*target->section, *target->table, overlay, target->table_path);
    set_paths_.emplace_back(target->path, a.origin);
  }

  // Flattens [sweep] into axes: a.b = [..], [sweep.a] b = [..] and "a.b" = [..] are the same.
  void collect_sweep(const Value& table, const std::string& prefix) {
    for (const Member& member : table.table()) {
      const std::string path = join_path(prefix, member.key);
      if (member.value.is_table())
        collect_sweep(member.value, path);
      else
        axis(path, member.key_origin, member.value);
    }
  }

  void axis(const std::string& path, Origin origin, const Value& values) {
    std::erase_if(raw_sweep_, [&](const SweepAxis& other) { return other.path == path; });  // a later layer replaces it
    SweepAxis added{path, origin, {}};
    if (values.is_array())
      added.values = values.array();
    else
      diagnostics_.error("sweep." + path,
                         {values.origin,
                          "sweep." + path + " must be a list of values, got " + std::string(values.kind_name()),
                          {},
                          {}});
    if (values.is_array() && values.array().empty())
      diagnostics_.error("sweep." + path,
                         {values.origin, "sweep." + path + " is empty", "give at least one value", {}});
    if (!added.values.empty()) raw_sweep_.push_back(std::move(added));
  }

  bool check_axis(SweepAxis& axis) {
    const std::optional<Target> target = merger_.locate(merged_.tree, split_path(axis.path), axis.origin);
    if (!target) return false;
    if (!target->field->is_leaf()) {
      diagnostics_.error(axis.path,
                         {axis.origin, "sweep." + axis.path + " is a table; a sweep goes over single keys", {}, {}});
      return false;
    }
    for (const auto& [path, origin] : set_paths_)
      if (path == target->path) {
        diagnostics_.error(axis.path, {axis.origin,
                                       axis.path + " is swept and set by a flag",
                                       "drop one of the two",
                                       {{origin, "it is set here"}}});
        return false;
      }
    bool good = true;
    for (Value& value : axis.values) {
      std::variant<Value, LeafProblem> checked = check_leaf(*target->field, value);
      if (const auto* problem = std::get_if<LeafProblem>(&checked)) {
        diagnostics_.error(
            target->path,
            {value.origin, "sweep." + axis.path + ": " + target->path + " " + problem->message, problem->hint, {}});
        good = false;
      } else {
        value = std::get<Value>(std::move(checked));
      }
    }
    axis.path = target->path;
    return good;
  }

  const Section& schema_;
  Diagnostics& diagnostics_;
  Merger merger_;
  Merged merged_;
  std::vector<SweepAxis> raw_sweep_;
  std::vector<std::pair<std::string, Origin>> set_paths_;
};

void inherit(const Section& schema, Value& tree) {
  Diagnostics silent;  // everything was checked when it was merged
  Merger merger(schema, silent);
  for (const Field& list : schema.fields()) {
    Value* elements = list.kind == Kind::kList ? tree.find(list.key) : nullptr;
    if (elements == nullptr) continue;
    for (Value& element : elements->array())
      for (const Field& field : list.section->fields()) {
        if (field.inherits.empty() || !Section::active(field, list.section->variant_of(element))) continue;
        const Value* parent = tree.at(field.inherits);
        if (parent == nullptr) continue;
        Value whole = *parent;
        if (const Value* own = element.find(field.key)) merger.merge(*field.section, whole, *own, {});
        element.set(field.key, whole.origin, std::move(whole));
      }
  }
}

}  // namespace

Merged merge(const Section& schema, const Layers& layers, Diagnostics& diagnostics) {
  Loader loader(schema, diagnostics);
  for (const auto& path : layers.files) loader.file(path);
  loader.sets(layers.sets);
  return loader.finish();
}

Merged merge_json(const Section& schema, const nlohmann::json& document, const std::string& name,
                  const std::vector<std::string>& sets, Diagnostics& diagnostics) {
  Loader loader(schema, diagnostics);
  loader.layer(from_json(document, {diagnostics.sources.add_flag(name), 0, 0, 1}));
  loader.sets(sets);
  return loader.finish();
}

std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes) {
  std::vector<SweepPoint> points(1);
  for (const SweepAxis& axis : axes) {
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points)
      for (const Value& value : axis.values) {
        longer.push_back(point);
        longer.back().values.emplace_back(axis.path, value);
      }
    points = std::move(longer);
  }
  return points;
}

Value resolve(const Section& schema, Value tree, const SweepPoint& point) {
  Diagnostics silent;
  Merger merger(schema, silent);
  for (const auto& [path, value] : point.values) {
    const std::optional<Target> target = merger.locate(tree, split_path(path), value.origin);
    if (!target) continue;
    Value overlay{Value::Table{}, value.origin};
    overlay.set(target->field->key, value.origin, value);
    merger.merge(*target->section, *target->table, overlay, target->table_path);
  }
  inherit(schema, tree);
  return tree;
}

void assign(const Section& schema, const Value& tree) {
  const std::string variant = schema.variant_of(tree);
  for (const Field& field : schema.fields()) {
    const Value* value = Section::active(field, variant) ? tree.find(field.key) : nullptr;
    if (value == nullptr) continue;
    if (field.is_leaf()) {
      field.write(*value);
    } else if (field.kind == Kind::kSection) {
      assign(*field.section, *value);
    } else {
      field.list_resize(value->array().size());
      for (std::size_t i = 0; i < value->array().size(); ++i) assign(field.list_element(i), value->array()[i]);
    }
  }
}

bool CrossChecks::given(std::string_view path) const {
  const Value* value = tree_.at(path);
  return value != nullptr && value->origin.source >= 0;
}

void CrossChecks::conflict(const std::vector<std::string>& paths, std::string message, std::string hint) {
  Diagnostic diagnostic{{}, std::move(message), std::move(hint), {}};
  for (const std::string& path : paths) {
    if (diagnostics_.is_bad(path)) return;
    if (!given(path))
      diagnostic.notes.push_back({{}, path + " has its default"});
    else if (diagnostic.origin.source < 0)
      diagnostic.origin = tree_.at(path)->origin;
    else
      diagnostic.notes.push_back({tree_.at(path)->origin, path + " is given here"});
  }
  diagnostics_.error({}, std::move(diagnostic));
}

void CrossChecks::problem(const std::vector<std::string>& paths, std::string message, std::string hint) {
  Diagnostic diagnostic{{}, std::move(message), std::move(hint), {}};
  for (const std::string& path : paths) {
    if (diagnostics_.is_bad(path)) return;
    if (given(path) && diagnostic.origin.source < 0) diagnostic.origin = tree_.at(path)->origin;
  }
  diagnostics_.error({}, std::move(diagnostic));
}

}  // namespace troupe::config
