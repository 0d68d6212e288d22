// troupe run
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "actors/runtime/frame.h"
#include "actors/runtime/process.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/supervisor.h"
#include "base/endpoint.h"
#include "base/json.h"
#include "cli/casting.h"
#include "cli/common.h"
#include "cli/dry_run.h"
#include "cli/experiment/load.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;
using experiment::Experiment;
using nlohmann::json;

struct RunArguments {
  std::vector<std::string> files, sets;
  std::string from, resume, listen;
  bool dry_run = false, json = false;
};

Status resolve_paths(Experiment& e) {
  TROUPE_TRY(e.model.path, resolve_path(e.model.path));
  TROUPE_TRY(e.tokenizer.file.path, resolve_path(e.tokenizer.file.path));
  return {};
}

// Loads the policy once in a process of its own: a broken model or tokenizer is one sentence, before anything of the run exists.
Status check_policy(const Experiment& e, const data::Tokenizer& tokenizer) {
  std::error_code missing;
  const fs::path temporary = fs::temp_directory_path(missing);
  if (missing) return tl::unexpected(system_error("find", "the temporary folder (TMPDIR)", missing.value()));
  std::string name = (temporary / "troupe-check.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return tl::unexpected(system_error("create", name, errno));
  const fs::path folder = name;
  const auto check = [&]() -> Status {
    TROUPE_TRY_STATUS(save_tokenizer(e, tokenizer, folder / "tokenizer"));
    actors::WorkerFrame frame;
    frame.run_folder = folder.string();
    frame.experiment = experiment::experiment_to_json(e).dump();
    TROUPE_TRY(const FileDescriptor file, actors::frame_file(actors::encode_frame(frame)));
    TROUPE_TRY(const FileDescriptor exe, actors::open_executable(fs::read_symlink("/proc/self/exe").parent_path() / "troupe-worker"));
    std::promise<actors::ExitStatus> ended;
    actors::ProcessKeeper keeper([&](pid_t, actors::ExitStatus status) { ended.set_value(status); });
    actors::ProcessSpec spec;
    spec.executable = exe.get();
    spec.argv = {"troupe-worker", "check"};
    spec.descriptors = {{file.get(), actors::kFrameDescriptor}};
    spec.output = folder / "log";
    spec.new_session = false;
    TROUPE_TRY_STATUS(keeper.start(std::move(spec)).map([](pid_t) {}));
    auto end_of_check = ended.get_future();
    if (end_of_check.wait_for(std::chrono::minutes(5)) != std::future_status::ready)
      return fail(ErrorCode::kTimeout, "the model could not be loaded within 5 minutes");
    const auto status = end_of_check.get();
    if (status.code == 0 && status.signal == 0) return {};
    const auto text = read_file(folder / "log").value_or("");
    const auto end = text.find_last_not_of("\n ");
    if (end == std::string::npos) return fail(ErrorCode::kUnavailable, "the model could not be loaded: " + to_string(status));
    const auto before = text.rfind('\n', end);
    const auto begin = before == std::string::npos ? 0 : before + 1;
    return fail(ErrorCode::kInvalidArgument, text.substr(begin, end + 1 - begin));
  };
  const Status done = check();
  std::error_code ec;
  fs::remove_all(folder, ec);
  return done;
}

int exit_code_of(const actors::HeadOutcome& outcome) {
  if (outcome.exit == protocol::RunExit::kDone) return kDone;
  if (outcome.exit == protocol::RunExit::kFailed) return kRunFailed;
  if (outcome.reason.starts_with("stopped at once")) return kInterruptedTwice;
  return outcome.preempted && outcome.reason.starts_with("stopped on request, saved") ? kPreempted : kDone;
}

Result<int> play(Experiment experiment, const json& provenance) {
  TROUPE_TRY_STATUS(resolve_paths(experiment));
  TROUPE_TRY(auto tokenizer, make_tokenizer(experiment));
  TROUPE_TRY_STATUS(check_policy(experiment, tokenizer));
  actors::SupervisorOptions options = supervisor_options(experiment);
  json run = provenance;
  run["experiment"] = experiment::experiment_to_json(experiment);
  options.run_json = run.dump(2) + "\n";
  options.prepare = [&](const fs::path& folder) -> Status {
    if (fs::exists(folder / "tokenizer" / "tokenizer.json")) return {};
    return save_tokenizer(experiment, tokenizer, folder / "tokenizer");
  };
  TROUPE_TRY(const auto outcome, actors::run_supervisor(options));
  if (outcome.exit != protocol::RunExit::kDone) std::fprintf(stderr, "troupe: %s: %s\n", std::string(to_string(outcome.exit)).c_str(), outcome.reason.c_str());
  return exit_code_of(outcome);
}

// What run.json says besides the experiment.
json provenance(const RunArguments& args) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return {{"troupe", TROUPE_VERSION}, {"host", host_name()}, {"started_unix_s", now}, {"files", args.files}, {"set", args.sets}};
}

Result<experiment::Loaded> load(const RunArguments& args) {
  if (!args.resume.empty() || !args.from.empty()) {
    fs::path file = args.resume.empty() ? fs::path(args.from) : fs::path(args.resume) / "run.json";
    if (!args.resume.empty() && !fs::exists(file)) file = fs::path("runs") / args.resume / "run.json";
    TROUPE_TRY(const auto text, read_file(file));
    const auto run = parse_json(text, file.string());
    if (!run || !run->contains("experiment")) return fail(ErrorCode::kCorrupt, file.string() + " is not the run.json of a run");
    std::vector<std::string> sets;
    if (!args.resume.empty()) { // what was changed while it went on holds
      TROUPE_TRY(const auto control, actors::ControlLog::read(file.parent_path() / "control.log"));
      sets = control.settings;
    }
    sets.insert(sets.end(), args.sets.begin(), args.sets.end());
    return experiment::load_experiment_json((*run)["experiment"], file.string(), sets);
  }
  return experiment::load_experiment({args.files.begin(), args.files.end()}, args.sets);
}

int run_command(const RunArguments& args) {
  const auto loaded = load(args);
  if (!loaded) return report(loaded.error(), args.json, kUsage);
  if (!loaded->ok()) {
    if (args.json) std::printf("%s\n", loaded->diagnostics.json().dump().c_str());
    else std::fputs(loaded->diagnostics.text().c_str(), stderr);
    return kUsage;
  }
  if (args.dry_run) {
    for (const auto& point : loaded->points) std::fputs(dry_run(point.experiment, args.json).c_str(), stdout);
    return kDone;
  }
  int worst = kDone;
  for (const auto& point : loaded->points) {
    Experiment experiment = point.experiment;
    if (!args.resume.empty()) experiment.run.resume = true;
    if (loaded->is_sweep) std::fprintf(stderr, "troupe: %s: %s\n", experiment.run.dir.c_str(), point.label.c_str());
    const auto code = play(std::move(experiment), provenance(args));
    const int result = code ? *code : report(code.error(), args.json, kRunFailed);
    if (result == kInterruptedTwice) return result; // the user wants out, not the next point
    worst = std::max(worst, result);               // a failure does not stop the rest of a sweep
  }
  return worst;
}

} // namespace

void add_run(CLI::App& app, int& code) {
  const auto add = [&](const char* name, const char* help) {
    auto* command = app.add_subcommand(name, help);
    auto args = std::make_shared<RunArguments>();
    command->add_option("config", args->files, "TOML files, merged left to right")->type_name("FILE");
    command->add_option("--set", args->sets, "Override a key: optim.lr=1e-4 (TOML syntax)")->type_name("KEY=VALUE")->take_all();
    command->add_option("--from", args->from, "Repeat the run of this run.json")->type_name("run.json");
    command->add_option("--resume", args->resume, "Continue the run in this folder from its newest checkpoint")->type_name("DIR");
    command->add_option("--listen", args->listen, "Where other machines join: an address of this one and a port (control.listen)")->type_name("HOST:PORT");
    command->add_flag("--dry-run", args->dry_run, "Print the resolved plan and stop");
    command->add_flag("--json", args->json, "Errors and plans as JSON");
    command->callback([args, &code] {
      const int sources = static_cast<int>(!args->files.empty()) + static_cast<int>(!args->from.empty()) + static_cast<int>(!args->resume.empty());
      if (sources != 1) {
        code = report({ErrorCode::kInvalidArgument, "give config files, or --from run.json, or --resume DIR: one of them", ""}, args->json, kUsage);
        return;
      }
      if (!args->listen.empty()) args->sets.push_back("control.listen=" + json(args->listen).dump());
      code = run_command(*args);
    });
  };
  add("run", "Play an experiment on this machine: supervisor, node agent and workers, until it is done");
  add("supervise", "The same, as the head node of a run that other machines join: give --listen");
}

} // namespace troupe::cli
