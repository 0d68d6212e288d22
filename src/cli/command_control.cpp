// troupe status | actors | scale | drain | stop | logs
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/common.h"
#include "observe/console.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

int status(const Target& target) {
  const auto answer = ask(target, {{"command", "status"}});
  if (!answer) return report(answer.error(), target.json, exit_code(answer.error()));
  const json& s = (*answer)["status"];
  if (target.json) {
    std::printf("%s\n", s.dump().c_str());
    return kDone;
  }
  const json& p = s["prompts"];
  std::printf("%s: %s, stage %s, step %lld of %lld, %lld actors\nprompts: %lld dispatched = %lld delivered + %lld cancelled + %lld in flight\n",
              s["run"].get<std::string>().c_str(), s["state"].get<std::string>().c_str(), s["stage"].get<std::string>().c_str(), s["step"].get<long long>(),
              s["steps"].get<long long>(), s["actors"].get<long long>(), p["dispatched"].get<long long>(), p["delivered"].get<long long>(),
              p["cancelled"].get<long long>(), p["in_flight"].get<long long>());
  for (const json& n : s["nodes"])
    if (n["name"] != "node1")
      std::printf("%s: %s, %s (%s), %lld workers\n", n["name"].get<std::string>().c_str(), n["state"].get<std::string>().c_str(), n["host"].get<std::string>().c_str(),
                  n["address"].get<std::string>().c_str(), n["workers"].get<long long>());
  std::vector<std::vector<std::string>> rows;
  for (const json& l : s["listeners"])
    rows.push_back({l["node"], l["process"], l["address"].get<std::string>() + ":" + std::to_string(l["port"].get<int>()), l["use"]});
  std::fputs(observe::format_table({"node", "listener", "at", "for"}, rows).c_str(), stdout);
  if (!s["eta_s"].is_null()) std::printf("time left: about %s\n", format_duration(from_seconds(s["eta_s"].get<double>())).c_str());
  return kDone;
}

int list_actors(const Target& target) {
  const auto answer = ask(target, {{"command", "actors"}});
  if (!answer) return report(answer.error(), target.json, exit_code(answer.error()));
  const json& result = (*answer)["result"];
  if (target.json) {
    std::printf("%s\n", result.dump().c_str());
    return kDone;
  }
  std::vector<std::vector<std::string>> rows;
  for (const json& a : result["actors"]) {
    const json& v = a["version"];
    rows.push_back({a["name"], a["node"], a["pid"].is_null() ? "-" : std::to_string(a["pid"].get<long long>()),
                    a["spare"].get<bool>() ? "spare" : a["state"].get<std::string>(),
                    v.is_null() ? "-" : "e" + std::to_string(v["epoch"].get<long long>()) + ".s" + std::to_string(v["step"].get<long long>()),
                    std::to_string(a["restarts"].get<long long>())});
  }
  std::fputs(observe::format_table({"actor", "node", "pid", "state", "version", "restarts"}, rows).c_str(), stdout);
  return kDone;
}

int scale(const Target& target, const std::vector<std::string>& wishes) {
  for (const std::string& wish : wishes) {
    const auto equals = wish.find('=');
    char* end = nullptr;
    const unsigned long long count = equals == std::string::npos ? 0 : std::strtoull(wish.c_str() + equals + 1, &end, 10);
    if (equals == std::string::npos || equals + 1 == wish.size() || *end != '\0' || wish[equals + 1] == '-')
      return report({ErrorCode::kInvalidArgument, "\"" + wish + "\" is not ROLE=COUNT, such as rollout=4", ""}, target.json, kUsage);
    const auto answer = ask(target, {{"command", "scale"}, {"role", wish.substr(0, equals)}, {"count", count}});
    if (!answer) return report(answer.error(), target.json, exit_code(answer.error()));
    if (target.json) std::printf("%s\n", answer->dump().c_str());
    else std::printf("%s: %llu wanted (change %lld)\n", wish.substr(0, equals).c_str(), count, (*answer)["generation"].get<long long>());
  }
  return kDone;
}

int drain(const Target& target, const std::string& node) {
  const auto answer = ask(target, {{"command", "drain"}, {"node", node}});
  if (!answer) return report(answer.error(), target.json, exit_code(answer.error()));
  if (target.json) std::printf("%s\n", answer->dump().c_str());
  else std::printf("%s: draining; it leaves when its workers are done\n", node.c_str());
  return kDone;
}

int stop(const Target& target) {
  const auto answer = ask(target, {{"command", "stop"}});
  if (!answer) return report(answer.error(), target.json, exit_code(answer.error()));
  if (target.json) std::printf("%s\n", answer->dump().c_str());
  else std::printf("stopping: the step is finished and saved first\n");
  return kDone;
}

// Of the newest incarnation: rollout/3 -> logs/rollout-3.<n>.log.
Result<fs::path> log_of(const fs::path& run, const std::string& actor) {
  std::string stem = actor;
  std::replace(stem.begin(), stem.end(), '/', '-');
  fs::path best;
  long newest = -1;
  std::string known;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(run / "logs", ec)) {
    const std::string name = entry.path().filename().string();
    if (name == stem + ".log") return entry.path();
    known += (known.empty() ? "" : ", ") + name;
    if (!name.starts_with(stem + ".") || !name.ends_with(".log")) continue;
    const long incarnation = std::atol(name.c_str() + stem.size() + 1);
    if (incarnation > newest) newest = incarnation, best = entry.path();
  }
  if (best.empty()) return fail(ErrorCode::kNotFound, "no log of \"" + actor + "\" in " + (run / "logs").string() + "; there are: " + (known.empty() ? "none" : known));
  return best;
}

int logs(const Target& target, const std::string& actor, bool follow) {
  fs::path run;
  if (const auto live = find_run(target)) run = live->folder;
  else if (!target.run.empty()) run = fs::exists(target.run) ? fs::path(target.run) : fs::path("runs") / target.run; // logs outlive a run
  else return report(live.error(), target.json, exit_code(live.error()));
  const auto path = log_of(run, actor);
  if (!path) return report(path.error(), target.json, kUsage);
  std::ifstream in(*path);
  for (;;) {
    std::string line;
    while (std::getline(in, line)) std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    if (!follow) return kDone;
    in.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

} // namespace

void add_control(CLI::App& app, int& code) {
  auto target = std::make_shared<Target>();
  const auto command = [&](const char* name, const char* help) {
    auto* c = app.add_subcommand(name, help);
    add_target(*c, *target);
    return c;
  };
  command("status", "Where a live run is")->callback([=, &code] { code = status(*target); });
  command("actors", "The processes of a live run")->callback([=, &code] { code = list_actors(*target); });
  auto wishes = std::make_shared<std::vector<std::string>>();
  auto* s = command("scale", "Change how many workers of a role there are, while the run goes on");
  s->add_option("wanted", *wishes, "ROLE=COUNT, such as rollout=4")->required();
  s->callback([=, &code] { code = scale(*target, *wishes); });
  auto node = std::make_shared<std::string>();
  auto* d = command("drain", "Let a machine leave: its workers finish or hand over, then its agent ends");
  d->add_option("node", *node, "node2, ... as `troupe status` lists them")->required();
  d->callback([=, &code] { code = drain(*target, *node); });
  command("stop", "Finish the step, save and end the run; a second time ends it at once")->callback([=, &code] { code = stop(*target); });
  auto actor = std::make_shared<std::string>();
  auto follow = std::make_shared<bool>(false);
  auto* l = command("logs", "The log of an actor");
  l->add_option("actor", *actor, "rollout/3, rank/0, node1, ...")->required();
  l->add_flag("-f,--follow", *follow, "Go on as the log grows");
  l->callback([=, &code] { code = logs(*target, *actor, *follow); });
}

} // namespace troupe::cli
