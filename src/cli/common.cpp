#include "cli/common.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "actors/supervisor/control_server.h"

namespace troupe::cli {

namespace fs = std::filesystem;
using nlohmann::json;

void add_target(CLI::App& command, Target& target) {
  command.add_option("--run", target.run, "Folder or name of the run; the one live run of this user if left out")->type_name("DIR|NAME");
  command.add_flag("--json", target.json, "Print JSON");
}

int report(const Error& error, bool as_json, int code) {
  if (as_json) std::printf("%s\n", json{{"ok", false}, {"error", error.to_string()}, {"code", std::string(to_string(error.code))}}.dump().c_str());
  else std::fprintf(stderr, "troupe: error: %s\n", error.to_string().c_str());
  return code;
}

Result<actors::ControlPoint> find_run(const Target& target) {
  if (target.run.empty()) {
    const auto runs = actors::live_runs();
    if (runs.size() == 1) return runs.front();
    if (runs.empty()) return fail(ErrorCode::kUnavailable, "no run of this user is going on");
    std::string names;
    for (const auto& run : runs) names += (names.empty() ? "" : ", ") + ("--run " + run.folder.string()) + " (" + run.run_name + ", supervisor pid " + std::to_string(run.pid) + ")";
    return fail(ErrorCode::kInvalidArgument, "several runs are going on; say which one: " + names);
  }
  for (const auto& run : actors::live_runs())
    if (run.run_name == target.run) return run;
  for (const fs::path& folder : {fs::path(target.run), fs::path("runs") / target.run}) {
    const auto point = actors::read_control_point(folder);
    if (point && actors::is_live(*point)) return *point;
    if (fs::exists(folder / "run.json")) return fail(ErrorCode::kUnavailable, "the run in " + folder.string() + " is not going on; continue it with: troupe run --resume " + folder.string());
  }
  return fail(ErrorCode::kUnavailable, "no live run is called \"" + target.run + "\" and no folder of that name holds one");
}

int exit_code(const Error& error) { return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout ? kNoSupervisor : kUsage; }

Result<json> ask(const Target& target, const json& request) {
  TROUPE_TRY(const auto run, find_run(target));
  TROUPE_TRY(const auto line, actors::ask_supervisor(run.socket, request.dump()));
  json answer = json::parse(line, nullptr, false);
  if (answer.is_discarded()) return fail(ErrorCode::kUnavailable, "the supervisor answered something that is not JSON");
  if (!answer.value("ok", false)) return fail(ErrorCode::kInvalidArgument, answer.value("error", "the supervisor refused"));
  return answer;
}

} // namespace troupe::cli
