#include "cli/experiment/load.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/experiment/bindings.h"
#include "cli/experiment/checks.h"
#include "config/load.h"
#include "config/output.h"
#include "rl/algorithm.h"

namespace troupe::experiment {
namespace {

using config::Value;
using protocol::StageKind;

config::Section schema_of(Experiment& e) {
  config::Section section;
  bind_experiment(section, e);
  return section;
}

// Gives `table` what it lacks of `defaults`; the origin "default" stays.
void fill(Value& table, const Value& defaults) {
  for (const config::Member& member : defaults.table()) {
    Value* own = table.find(member.key);
    if (own == nullptr)
      table.set(member.key, {}, member.value);
    else if (own->is_table() && member.value.is_table())
      fill(*own, member.value);
  }
}

// The algorithm named in an [rl] table decides the defaults of its conventions.
void apply_algorithm(Value& owner) {
  const Value* name = owner.at("rl.algorithm");
  if (name == nullptr) return;
  Result<rl::AlgorithmOptions> options = rl::algorithm_defaults(std::get<std::string>(name->data));
  if (!options) return;  // bind_rl's choices are those names
  config::Section section;
  bind_algorithm(section, *options);
  fill(*owner.find("rl"), config::dump(section));
}

void name_stages(std::vector<Stage>& stages) {
  const auto taken = [&](const std::string& name) {
    return std::ranges::any_of(stages, [&](const Stage& s) { return s.name == name; });
  };
  for (Stage& stage : stages) {
    if (!stage.name.empty()) continue;
    const std::string type(protocol::to_string(stage.kind));
    std::string name = type;
    for (int n = 2; taken(name); ++n) name = type + "-" + std::to_string(n);
    stage.name = name;
  }
}

// What follows from other keys and is written nowhere else. `index`: of the sweep's point, or negative.
void fill_in(Experiment& e, const std::string& default_name, int index) {
  if (e.run.name.empty()) e.run.name = default_name;
  if (e.run.dir.empty()) e.run.dir = "runs/" + e.run.name;
  if (index >= 0) {
    char number[16];
    std::snprintf(number, sizeof number, "%03d", index);
    e.run.dir += std::string("/") + number;
    e.run.name += std::string(".") + number;
  }
  if (e.tokenizer.source() == TokenizerSource::kVocabulary) e.tokenizer.vocabulary.kind = e.tokenizer.type;
  if (e.model.path.empty() && e.model.sizes.kv_heads == 0) e.model.sizes.kv_heads = e.model.sizes.heads;
  e.task.seed = e.run.seed;
  e.checkpoint.commit.keep = static_cast<std::uint32_t>(e.checkpoint.options.keep);
  e.control.membership.drain_deadline = e.rollout.drain_deadline;
  e.data.dataset.format = e.tokenizer.format;
  name_stages(e.stages);
  for (Stage& stage : e.stages) {
    stage.data.dataset.format = e.tokenizer.format;
    stage.rl.plan.steps = stage.steps;
    stage.rl.plan.drop_zero_signal = stage.rl.options.advantage.drop_zero_signal;
    if (stage.kind == StageKind::kEval || stage.kind == StageKind::kExport) stage.steps = 0;
  }
}

std::string label_of(const config::SweepPoint& point) {
  std::string label;
  for (const auto& [path, value] : point.values)
    label += (label.empty() ? "" : " ") + path + "=" + config::to_toml_inline(value);
  return label;
}

Loaded finish(const config::Merged& merged, config::Diagnostics diagnostics, const std::string& default_name) {
  Loaded loaded;
  loaded.diagnostics = std::move(diagnostics);
  loaded.is_sweep = !merged.sweep.empty();
  int index = 0;
  for (const config::SweepPoint& values : config::sweep_points(merged.sweep)) {
    Point& point = loaded.points.emplace_back();
    const config::Section schema = schema_of(point.experiment);
    point.label = label_of(values);
    point.tree = config::resolve(schema, merged.tree, values);
    apply_algorithm(point.tree);
    if (Value* stages = point.tree.find("stage"))
      for (Value& stage : stages->array()) apply_algorithm(stage);
    config::assign(schema, point.tree);
    fill_in(point.experiment, default_name, loaded.is_sweep ? index : -1);
    ++index;
    if (!merged.syntax_ok) continue;  // what is missing may stand in the lines that could not be read
    config::CrossChecks checks(point.tree, loaded.diagnostics);
    check_experiment(point.experiment, checks);
    if (!loaded.ok() && loaded.is_sweep) break;  // the other points would mostly repeat it
  }
  if (!loaded.ok()) loaded.points.clear();
  return loaded;
}

}  // namespace

Loaded load_experiment(const std::vector<std::filesystem::path>& files, const std::vector<std::string>& sets) {
  Experiment defaults;
  const config::Section schema = schema_of(defaults);
  config::Diagnostics diagnostics;
  const config::Merged merged = config::merge(schema, {files, sets}, diagnostics);
  const std::string stem = files.empty() ? std::string() : files.front().stem().string();
  return finish(merged, std::move(diagnostics), stem.empty() ? "run" : stem);
}

Loaded load_experiment_json(const nlohmann::json& document, const std::string& name,
                            const std::vector<std::string>& sets) {
  Experiment defaults;
  const config::Section schema = schema_of(defaults);
  config::Diagnostics diagnostics;
  const config::Merged merged = config::merge_json(schema, document, name, sets, diagnostics);
  return finish(merged, std::move(diagnostics), "run");
}

namespace {

// What a file would say to give this experiment: a model that comes from files has no sizes of its own.
Value dump_of(Experiment& experiment) {
  Value tree = config::dump(schema_of(experiment));
  Value* model = tree.find("model");
  if (model == nullptr || experiment.model.path.empty()) return tree;
  std::vector<std::string> fresh;
  for (const config::Member& member : model->table())
    if (member.key != "path" && member.key != "dtype") fresh.push_back(member.key);
  for (const std::string& key : fresh) model->erase(key);
  return tree;
}

}  // namespace

nlohmann::json experiment_to_json(const Experiment& experiment) {
  Experiment copy = experiment;  // a schema binds to objects it may write
  return config::to_json(dump_of(copy));
}

Result<Experiment> experiment_from_json(const nlohmann::json& document) {
  Loaded loaded = load_experiment_json(document, "config");
  if (loaded.ok()) return std::move(loaded.points.front().experiment);
  return fail(ErrorCode::kInvalidConfig, loaded.diagnostics.sorted().front().message, "config");
}

std::string experiment_toml(const Experiment& experiment) {
  Experiment copy = experiment;
  return config::to_toml(dump_of(copy));
}

std::string experiment_toml_with_origins(const Loaded& loaded, const Point& point) {
  Experiment copy = point.experiment;
  return config::to_toml_with_origins(dump_of(copy), point.tree, loaded.diagnostics.sources);
}

std::string config_reference() {
  Experiment defaults;
  return config::reference(schema_of(defaults));
}

Status check_hot(std::string_view key) {
  Experiment defaults;
  std::string path(key);
  constexpr std::string_view kStage = "stage.";
  if (path.starts_with(kStage))  // stage.<name or type>.<key>
    if (const auto dot = path.find('.', kStage.size()); dot != std::string::npos) path.erase(kStage.size(), dot + 1 - kStage.size());
  std::optional<bool> hot = config::is_hot(schema_of(defaults), path);
  if (!hot && path.starts_with(kStage)) hot = config::is_hot(schema_of(defaults), path.substr(kStage.size()));  // inherited
  if (!hot) return tl::unexpected(explain(path).error());
  if (*hot) return {};
  return fail(ErrorCode::kInvalidArgument,
              std::string(key) + " is fixed when a run starts; rollout.workers, optim.lr, checkpoint.every, eval.every "
                                 "and output.samples_per_step can be changed while it goes on");
}

Result<std::string> explain(std::string_view key) {
  Experiment defaults;
  std::string nearest;
  if (std::optional<std::string> text = config::explain(schema_of(defaults), key, &nearest)) return *std::move(text);
  return fail(ErrorCode::kNotFound, "unknown key " + std::string(key) + (nearest.empty() ? "" : "; " + nearest));
}

}  // namespace troupe::experiment
