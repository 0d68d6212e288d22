#include "bench/live_run.h"

#include <signal.h>

#include <fstream>
#include <thread>

#include "actors/supervisor/control_server.h"
#include "actors/supervisor/run_folder.h"

namespace troupe::bench {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path program_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

namespace {

Result<actors::ChildProcess> start_troupe(std::vector<std::string> arguments, const fs::path& output) {
  TROUPE_TRY(const FileDescriptor program, actors::open_executable(program_folder() / "troupe"));
  actors::ProcessSpec spec;
  spec.executable = program.get();
  spec.argv = {"troupe", "run"};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.output = output;
  return actors::start_process(spec);
}

}  // namespace

Result<LiveRun> LiveRun::start(const std::string& config, const std::vector<std::string>& sets) {
  TROUPE_TRY(auto folder, TemporaryFolder::create());
  std::vector<std::string> arguments{(fs::path(TROUPE_SOURCE_DIR) / config).string(), "--set",
                                     "run.dir=\"" + (folder.path() / "run").string() + "\""};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const auto before = std::chrono::steady_clock::now();
  TROUPE_TRY(auto process, start_troupe(std::move(arguments), folder.path() / "output"));
  LiveRun run(std::move(folder), Child(std::move(process)));
  run.start_ = before;
  return run;
}

Status LiveRun::replace_supervisor() {
  ::kill(child_.pid(), SIGKILL);
  TROUPE_TRY_STATUS(child_.wait(std::chrono::seconds(10)).map([](const actors::ExitStatus&) {}));
  TROUPE_TRY(auto process, start_troupe({"--resume", folder().string()}, folder_.path() / "output"));
  child_ = Child(std::move(process));
  return {};
}

std::string LiveRun::last_words() const {
  const std::string text = read_file(folder_.path() / "output").value_or("");
  return text.size() > 600 ? text.substr(text.size() - 600) : text;
}

Status LiveRun::finish(Duration limit) {
  TROUPE_TRY(const auto status, child_.wait(limit));
  if (status.code == 0 && status.signal == 0) return {};
  return fail(ErrorCode::kUnavailable, "the run failed (" + to_string(status) + "): " + last_words());
}

Status LiveRun::wait_until(const std::string& what, Duration limit, const std::function<bool()>& condition,
                           Duration pause) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until)
      return fail(ErrorCode::kTimeout, what + " did not come within " + format_duration(limit));
    if (child_.wait(pause)) return fail(ErrorCode::kUnavailable, "the run ended before " + what + ": " + last_words());
  }
  return {};
}

Result<json> LiveRun::ask(const json& request) const {
  TROUPE_TRY(const auto point, actors::read_control_point(folder()));
  TROUPE_TRY(const auto line, actors::ask_supervisor(point.socket, request.dump()));
  json answer = json::parse(line, nullptr, false);
  if (answer.is_discarded() || !answer.value("ok", false))
    return fail(ErrorCode::kInvalidArgument, "the supervisor answered: " + line);
  return answer;
}

json LiveRun::actor(const std::string& name) const {
  const auto answer = ask({{"command", "actors"}});
  if (!answer) return nullptr;
  for (const json& a : (*answer)["result"]["actors"])
    if (a["name"] == name) return a;
  return nullptr;
}

std::uint64_t LiveRun::rl_step() const {
  const auto answer = ask({{"command", "status"}});
  return answer && (*answer)["status"]["stage"] == "rl" ? (*answer)["status"]["step"].get<std::uint64_t>() : 0;
}

std::vector<json> LiveRun::records(std::string_view file) const {
  std::vector<json> lines;
  std::ifstream in(folder() / file);
  for (std::string line; std::getline(in, line);)
    if (json record = json::parse(line, nullptr, false); record.is_object()) lines.push_back(std::move(record));
  return lines;
}

Result<json> LiveRun::summary() const {
  TROUPE_TRY(const auto text, read_file(folder() / "summary.json"));
  json summary = json::parse(text, nullptr, false);
  if (!summary.is_object()) return fail(ErrorCode::kCorrupt, "summary.json of the run is not an object");
  return summary;
}

}  // namespace troupe::bench
