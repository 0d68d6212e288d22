// troupe config check | show | explain | reference | set
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/experiment/load.h"

namespace troupe::cli {
namespace {

struct ConfigArguments {
  std::vector<std::string> files, sets;
  std::string key;
  bool origin = false, json = false;
};

// Loads, or prints what is wrong.
std::optional<experiment::Loaded> load(const ConfigArguments& args) {
  auto loaded = experiment::load_experiment({args.files.begin(), args.files.end()}, args.sets);
  if (loaded.ok()) return loaded;
  if (args.json) std::printf("%s\n", loaded.diagnostics.json().dump().c_str());
  else std::fputs(loaded.diagnostics.text().c_str(), stderr);
  return std::nullopt;
}

int check(const ConfigArguments& args) {
  const auto loaded = load(args);
  if (!loaded) return kUsage;
  if (args.json) std::printf("[]\n");
  else std::printf("%zu %s, no errors\n", loaded->points.size(), loaded->points.size() == 1 ? "run" : "runs of a sweep");
  return kDone;
}

int show(const ConfigArguments& args) {
  const auto loaded = load(args);
  if (!loaded) return kUsage;
  for (const auto& point : loaded->points) {
    if (args.json) std::printf("%s\n", experiment::experiment_to_json(point.experiment).dump(2).c_str());
    else if (args.origin) std::fputs(experiment::experiment_toml_with_origins(*loaded, point).c_str(), stdout);
    else std::fputs(experiment::experiment_toml(point.experiment).c_str(), stdout);
  }
  return kDone;
}

int explain(const ConfigArguments& args) {
  const auto text = experiment::explain(args.key);
  if (!text) return report(text.error(), args.json, kUsage);
  std::fputs(text->c_str(), stdout);
  return kDone;
}

// Checked here, against the experiment as it is by now, and applied by the supervisor.
int set(const Target& target, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) return report({ErrorCode::kInvalidArgument, "\"" + setting + "\" is not KEY=VALUE, such as optim.lr=1e-4", ""}, target.json, kUsage);
    if (const auto hot = experiment::check_hot(setting.substr(0, equals)); !hot) return report(hot.error(), target.json, kUsage);
    const auto now = ask(target, {{"command", "experiment"}});
    if (!now) return report(now.error(), target.json, exit_code(now.error()));
    const auto current = nlohmann::json::parse((*now)["experiment"].get<std::string>(), nullptr, false);
    const auto changed = experiment::load_experiment_json(current, "the run", {setting});
    if (!changed.ok()) {
      if (target.json) std::printf("%s\n", changed.diagnostics.json().dump().c_str());
      else std::fputs(changed.diagnostics.text().c_str(), stderr);
      return kUsage;
    }
    const auto done = ask(target, {{"command", "set"}, {"setting", setting}, {"experiment", experiment::experiment_to_json(changed.points.front().experiment).dump()}});
    if (!done) return report(done.error(), target.json, exit_code(done.error()));
    if (target.json) std::printf("%s\n", done->dump().c_str());
    else std::printf("%s\n", setting.c_str());
  }
  return kDone;
}

} // namespace

void add_config(CLI::App& app, int& code) {
  auto* config = app.add_subcommand("config", "Check, show and explain experiments");
  config->require_subcommand(1);
  auto args = std::make_shared<ConfigArguments>();
  const auto with_files = [&](CLI::App* command) {
    command->add_option("config", args->files, "TOML files, merged left to right")->type_name("FILE")->required();
    command->add_option("--set", args->sets, "Override a key")->type_name("KEY=VALUE")->take_all();
    command->add_flag("--json", args->json, "Print JSON");
    return command;
  };
  with_files(config->add_subcommand("check", "Report everything that is wrong; nothing is started"))->callback([=, &code] { code = check(*args); });
  auto* s = with_files(config->add_subcommand("show", "The resolved experiment"));
  s->add_flag("--origin", args->origin, "Say where each value comes from");
  s->callback([=, &code] { code = show(*args); });
  auto* e = config->add_subcommand("explain", "What a key means");
  e->add_option("key", args->key, "optim.lr, stage.type, ...")->required();
  e->callback([=, &code] { code = explain(*args); });
  auto target = std::make_shared<Target>();
  auto settings = std::make_shared<std::vector<std::string>>();
  auto* change = config->add_subcommand("set", "Change a hot key of a live run, from its next step on");
  add_target(*change, *target);
  change->add_option("setting", *settings, "KEY=VALUE, such as optim.lr=1e-4")->required();
  change->callback([=, &code] { code = set(*target, *settings); });
  config->add_subcommand("reference", "All keys with types, ranges and defaults, as TOML")->callback([&code] {
    std::fputs(experiment::config_reference().c_str(), stdout);
    code = kDone;
  });
}

} // namespace troupe::cli
