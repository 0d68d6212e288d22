/// @file
/// Whole runs through the real programs: a small experiment in a folder of its own, watched through the command line.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"

namespace troupe::test {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using nlohmann::json;

inline const std::string kTroupe = std::string(TROUPE_BINARY_DIR) + "/bin/troupe";

// A run of some seconds: tiny model, a few supervised steps, asynchronous GRPO, evaluation, export. The reward is one that an untrained model
// earns now and then: without, no weight would move, and a wrong one would not show.
inline constexpr const char* kExperiment = R"(
numerics = "invariant"
[run]
name = "small"
seed = 3
[model]
family = "qwen3"
width = 64
layers = 2
heads = 4
kv_heads = 2
head_dim = 16
ffn_width = 128
context = 32
[tokenizer]
type = "characters"
alphabet = "0123456789+="
format = "plain"
[task]
type = "arithmetic"
kind = "sums"
reward = { type = "regex", pattern = "7$" }
[rollout]
workers = 2
kv_cache = "8MiB"
sampling = { max_new_tokens = 5 }
[eval]
problems = 50
[checkpoint]
every = 5
[control]
head_wait = "8s"
[[stage]]
type = "sft"
steps = 20
optim = { lr = 2e-3 }
data = { task_examples = 500, context_tokens = 16, tokens_per_batch = 256 }
[[stage]]
type = "rl"
steps = 12
optim = { lr = 5e-4 }
rl = { algorithm = "grpo", group_size = 4, prompts_per_step = 4, staleness = 1, advantage = { drop_zero_signal = false } }
[[stage]]
type = "export"
)";

struct Output {
  int code = -1;
  std::string out, err;
};

/// A folder with small.toml, and the program run in it; everything that was started is gone at the end.
class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("troupe_run." + std::to_string(::getpid())); // short: a socket's path is limited
    place = folder / "run";
    fs::create_directories(folder / "xdg");
    ::setenv("XDG_RUNTIME_DIR", (folder / "xdg").c_str(), 1);
    std::ofstream(folder / "small.toml") << kExperiment;
  }
  void TearDown() override {
    if (run_pid > 0) {
      ::kill(run_pid, SIGKILL);
      ::waitpid(run_pid, nullptr, 0);
    }
    for (const pid_t agent : agents()) ::kill(agent, SIGKILL); // one outlives its supervisor for a while
    if (HasFailure()) dump_logs();
    fs::remove_all(folder);
  }
  void dump_logs() const {
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(place / "logs", ec))
      std::fprintf(stderr, "---- %s\n%s\n", entry.path().c_str(), read_file(entry.path()).value_or("").c_str());
    std::fprintf(stderr, "---- stderr of the run\n%s\n", read_file(folder / "run.err").value_or("").c_str());
  }

  Output command(const std::vector<std::string>& arguments) const {
    const fs::path out = folder / "cmd.out", err = folder / "cmd.err";
    const pid_t pid = spawn(arguments, out, err);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out).value_or(""), read_file(err).value_or("")};
  }
  pid_t spawn(std::vector<std::string> arguments, const fs::path& out, const fs::path& err) const {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    arguments.insert(arguments.begin(), kTroupe);
    arguments.insert(arguments.begin(), prefix.begin(), prefix.end());
    std::vector<char*> argv;
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  std::string run_dir() const { return place.string(); }
  std::vector<std::string> run_arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> a{"run", (folder / "small.toml").string(), "--set", "run.dir=\"" + run_dir() + "\""};
    a.insert(a.end(), more.begin(), more.end());
    return a;
  }
  void start(std::vector<std::string> more = {}) { run_pid = spawn(run_arguments(std::move(more)), folder / "run.out", folder / "run.err"); }
  int finish() {
    int status = 0;
    ::waitpid(run_pid, &status, 0);
    run_pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool ended() const { // the run's process; `finish` still says how
    siginfo_t info{};
    return run_pid > 0 && ::waitid(P_PID, static_cast<id_t>(run_pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == run_pid;
  }
  bool wait_until(const std::function<bool()>& condition, std::chrono::seconds limit = 90s) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < until) {
      if (condition()) return true;
      if (ended()) return condition(); // nothing more will change
      std::this_thread::sleep_for(100ms);
    }
    return false;
  }
  json status() const {
    const Output o = command({"status", "--run", run_dir(), "--json"});
    return o.code == 0 ? json::parse(o.out, nullptr, false) : json();
  }
  json actors() const {
    const Output o = command({"actors", "--run", run_dir(), "--json"});
    return o.code == 0 ? json::parse(o.out, nullptr, false)["actors"] : json::array();
  }
  bool training_rl(std::uint64_t step) const {
    const json s = status();
    return s.is_object() && s["stage"] == "rl" && s["step"] >= step;
  }
  // The pids of every node agent the run ever had.
  std::vector<pid_t> agents() const {
    std::vector<pid_t> pids;
    for (const json& e : events("node_joined")) pids.push_back(e["pid"].get<pid_t>());
    return pids;
  }
  std::vector<json> events(const std::string& kind) const {
    std::vector<json> found;
    std::ifstream file(fs::path(run_dir()) / "events.jsonl");
    for (std::string line; std::getline(file, line);)
      if (json e = json::parse(line, nullptr, false); e.is_object() && e["event"] == kind) found.push_back(std::move(e));
    return found;
  }
  std::map<std::string, pid_t> pids() const {
    std::map<std::string, pid_t> all;
    for (const json& a : actors())
      if (a["pid"].is_number()) all[a["name"]] = a["pid"].get<pid_t>();
    return all;
  }
  json summary() const { return json::parse(read_file(fs::path(run_dir()) / "summary.json").value_or("null"), nullptr, false); }

  // dispatched = delivered + cancelled at the end, and nothing that was compared differed in a bit.
  void expect_sound_summary(const json& s) const {
    ASSERT_TRUE(s.is_object());
    EXPECT_EQ(s["prompts"]["dispatched"], s["prompts"]["delivered"].get<std::uint64_t>() + s["prompts"]["cancelled"].get<std::uint64_t>());
    EXPECT_GT(s["logprob_tokens_compared"], 0);
    EXPECT_EQ(s["logprob_diff_max"], 0.0);
    EXPECT_LE(s["policy_age_max"], 2);
  }

  fs::path folder, place; ///< Of the test; of the run.
  pid_t run_pid = -1;
  std::vector<std::string> prefix; ///< What the program is run with, such as `ip netns exec <name>`.
};

} // namespace troupe::test
