// The real programs: a whole small run in processes of their own, watched, scaled, hurt and resumed through the command line.
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
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using nlohmann::json;

const std::string kTroupe = std::string(TROUPE_BINARY_DIR) + "/bin/troupe";

// A run of some seconds: tiny model, a few supervised steps, asynchronous GRPO, evaluation, export.
constexpr const char* kExperiment = R"(
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
reward = { type = "exact" }
[rollout]
workers = 2
kv_cache = "8MiB"
sampling = { max_new_tokens = 5 }
[eval]
problems = 50
[checkpoint]
every = 5
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

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("troupe_run." + std::to_string(::getpid())); // short: a socket's path is limited
    fs::create_directories(folder / "xdg");
    ::setenv("XDG_RUNTIME_DIR", (folder / "xdg").c_str(), 1);
    std::ofstream(folder / "small.toml") << kExperiment;
  }
  void TearDown() override {
    if (run_pid > 0) {
      ::kill(run_pid, SIGKILL);
      ::waitpid(run_pid, nullptr, 0);
    }
    if (HasFailure()) dump_logs();
    fs::remove_all(folder);
  }
  void dump_logs() const {
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(folder / "run" / "logs", ec))
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
    std::vector<char*> argv;
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    ::execv(kTroupe.c_str(), argv.data());
    ::_exit(127);
  }
  std::string run_dir() const { return (folder / "run").string(); }
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
  bool wait_until(const std::function<bool()>& condition, std::chrono::seconds limit = 90s) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < until) {
      if (condition()) return true;
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
  json summary() const { return json::parse(read_file(fs::path(run_dir()) / "summary.json").value_or("null"), nullptr, false); }

  // dispatched = delivered + cancelled at the end, and nothing that was compared differed in a bit.
  void expect_sound_summary(const json& s) const {
    ASSERT_TRUE(s.is_object());
    EXPECT_EQ(s["prompts"]["dispatched"], s["prompts"]["delivered"].get<std::uint64_t>() + s["prompts"]["cancelled"].get<std::uint64_t>());
    EXPECT_GT(s["logprob_tokens_compared"], 0);
    EXPECT_EQ(s["logprob_diff_max"], 0.0);
    EXPECT_LE(s["policy_age_max"], 2);
  }

  fs::path folder;
  pid_t run_pid = -1;
};

TEST_F(RunTest, PlaysAnExperimentToItsEnd) {
  start();
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["steps"], 32);
  EXPECT_EQ(s["prompts"]["delivered"], 48);
  EXPECT_EQ(s["restarts"], 0);
  for (const char* file : {"run.json", "metrics.jsonl", "samples.jsonl", "events.jsonl", "export/config.json", "export/tokenizer.json", "export/model.safetensors"})
    EXPECT_TRUE(fs::exists(fs::path(run_dir()) / file)) << file;
  std::ifstream metrics(fs::path(run_dir()) / "metrics.jsonl");
  std::string line;
  bool saw_parity = false;
  while (std::getline(metrics, line)) saw_parity = saw_parity || json::parse(line).contains("bit_wise/logprob_diff/max");
  EXPECT_TRUE(saw_parity);
  EXPECT_EQ(command({"checkpoint", "verify", "--run", run_dir()}).code, 0);
  const std::string deps = std::string(TROUPE_SOURCE_DIR) + "/.deps/oracle/";
  const std::string read = "PYTHONPATH=" + deps + "safetensors:" + deps + "numpy:" + deps + "tokenizers:" + deps + "huggingface_hub python3 " +
                           TROUPE_SOURCE_DIR + "/tests/system/read_export.py " + run_dir() + "/export";
  EXPECT_EQ(std::system(read.c_str()), 0) << "PyPI safetensors and tokenizers must read the export";
  // Refused, never overwritten.
  const Output again = command(run_arguments());
  EXPECT_NE(again.code, 0);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_EQ(command({"status", "--run", run_dir()}).code, 3);
}

TEST_F(RunTest, ReplacesKilledWorkersAndLosesNothing) {
  start({"--set", "stage.rl.steps=1500", "--set", "checkpoint.every=200"});
  ASSERT_TRUE(wait_until([&] { return training_rl(1); }));
  for (const std::string victim : {"rollout/0", "environment/0"}) {
    const json before = actors();
    for (const json& a : before)
      if (a["name"] == victim) ::kill(a["pid"].get<int>(), SIGKILL);
    EXPECT_TRUE(wait_until([&] {
      for (const json& a : actors())
        if (a["name"] == victim && a["state"] == "serving" && a["restarts"] == 1) return true;
      return run_pid > 0 && ::waitpid(run_pid, nullptr, WNOHANG | WNOWAIT) != 0;
    })) << victim;
  }
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["restarts"], 2);
  EXPECT_EQ(s["prompts"]["delivered"], 6000);
}

TEST_F(RunTest, ScalesWhileItRuns) {
  start({"--set", "stage.rl.steps=1500", "--set", "checkpoint.every=200"});
  ASSERT_TRUE(wait_until([&] { return training_rl(1); }));
  const auto serving = [&] {
    int count = 0;
    for (const json& a : actors()) count += a["role"] == "rollout" && a["state"] == "serving";
    return count;
  };
  ASSERT_EQ(command({"scale", "rollout=3", "--run", run_dir()}).code, 0);
  EXPECT_TRUE(wait_until([&] { return serving() == 3; }, 30s));
  ASSERT_EQ(command({"scale", "rollout=1", "--run", run_dir()}).code, 0);
  EXPECT_TRUE(wait_until([&] { return serving() == 1; }, 30s));
  EXPECT_NE(command({"scale", "rank=2", "--run", run_dir()}).code, 0);
  EXPECT_EQ(command({"scale", "rollout=-1", "--run", run_dir()}).code, 2);
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["prompts"]["delivered"], 6000);
}

TEST_F(RunTest, StopsSavesAndResumes) {
  start({"--set", "stage.rl.steps=1000", "--set", "checkpoint.every=200"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  EXPECT_EQ(finish(), 0);
  const json stopped = summary();
  EXPECT_EQ(stopped["exit"], "stopped");
  ASSERT_GE(stopped["steps"], 23);
  const Output resumed = command({"run", "--resume", run_dir()});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["steps"], 1020);
}

TEST_F(RunTest, ADeadNodeAgentEndsTheRunAndLeavesNoProcess) {
  start({"--set", "stage.rl.steps=100000", "--set", "checkpoint.every=0"});
  ASSERT_TRUE(wait_until([&] { return training_rl(1); }));
  std::vector<pid_t> pids;
  for (const json& a : actors()) pids.push_back(a["pid"].get<int>());
  ASSERT_EQ(pids.size(), 5u);
  std::ifstream events(fs::path(run_dir()) / "events.jsonl");
  pid_t agent = -1;
  for (std::string line; std::getline(events, line);)
    if (const json e = json::parse(line, nullptr, false); e.is_object() && e["event"] == "node_joined") agent = e["pid"].get<int>();
  ASSERT_GT(agent, 0);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(finish(), 1);
  EXPECT_EQ(summary()["exit"], "failed");
  EXPECT_NE(read_file(folder / "run.err").value_or("").find("node agent"), std::string::npos);
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return ::kill(pid, 0) != 0; }, 5s)) << pid;
}

TEST_F(RunTest, SaysWhatIsWrongBeforeAnythingStarts) {
  const struct {
    std::string set, expected;
    int code;
  } cases[] = {
      {"rollout.workers=0", "rollout.workers", 2},
      {"optim.lr=-1", "optim.lr", 2},
      {"rollout.sampling.top_p=0.9", "top_p", 2},
      {"no.such.key=1", "no", 2},
  };
  for (const auto& c : cases) {
    const Output o = command(run_arguments({"--set", c.set}));
    EXPECT_EQ(o.code, c.code) << c.set << "\n" << o.err;
    EXPECT_NE(o.err.find(c.expected), std::string::npos) << c.set << "\n" << o.err;
    EXPECT_FALSE(fs::exists(run_dir())) << c.set;
  }
}

TEST_F(RunTest, ABrokenModelIsOneSentenceAndLeavesNothing) {
  const std::string text = kExperiment;
  const auto begin = text.find("[model]"), end = text.find("[tokenizer]");
  std::ofstream(folder / "small.toml") << text.substr(0, begin) << "[model]\npath = \"" << (folder / "model").string() << "\"\n" << text.substr(end);
  const auto expect = [&](const std::string& words) {
    const Output o = command(run_arguments());
    EXPECT_EQ(o.code, 1) << o.err;
    EXPECT_NE(o.err.find(words), std::string::npos) << "expected \"" << words << "\" in: " << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_FALSE(fs::exists(run_dir()));
  };
  expect("config.json"); // nothing is there
  fs::create_directories(folder / "model");
  const fs::path golden = fs::path(TROUPE_GOLDEN_DIR) / "model" / "qwen3" / "base";
  fs::copy_file(golden / "config.json", folder / "model" / "config.json");
  expect("safetensors");
  const auto weights = read_file(golden / "model.safetensors");
  ASSERT_TRUE(weights);
  std::ofstream(folder / "model" / "model.safetensors") << weights->substr(0, weights->size() / 2);
  expect("model.safetensors"); // truncated
}

} // namespace
} // namespace troupe
