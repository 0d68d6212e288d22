// The real programs: a whole small run in processes of their own, watched, scaled, hurt and resumed through the command line.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "support.h"

namespace troupe::test {
namespace {

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

// Trainer and rollouts round alike: not one compared token differs in a bit.
TEST_F(RunTest, PlaysTheSameWithProductsInBfloat16) {
  start({"--set", "model.dtype=\"bfloat16\""});
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["steps"], 32);
  const json record = json::parse(read_file(fs::path(run_dir()) / "run.json").value_or("null"), nullptr, false);
  EXPECT_NE(record.dump().find("bfloat16"), std::string::npos) << "the run says what it computed in";
}

TEST_F(RunTest, ReplacesKilledWorkersAndLosesNothing) {
  start({"--set", "stage.rl.steps=700", "--set", "checkpoint.every=200"});
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
  EXPECT_EQ(s["prompts"]["delivered"], 2800);
}

// Episodes of several turns, with a task in Python that dies in the middle: its episodes are played again, no sample is given up.
TEST_F(RunTest, PlaysTurnsAndReplaysThemWhenTheTaskDies) {
  const std::string task = std::string("task={type=\"program\",command=[\"python3\",\"") + TROUPE_SOURCE_DIR + "/examples/program_task/guess.py\"]}";
  start({"--set", task, "--set", "tokenizer={type=\"bytes\",format=\"chatml\"}", "--set", "model.context=400", "--set", "rollout.sampling.max_new_tokens=6",
         "--set", "stage=[{type=\"rl\",steps=40,rl={algorithm=\"dr_grpo\",group_size=4,prompts_per_step=2,advantage={drop_zero_signal=false}}}]"});
  ASSERT_TRUE(wait_until([&] { return training_rl(2); }));
  for (const json& a : actors())
    if (a["name"] == "environment/0") ::kill(a["pid"].get<int>(), SIGKILL);
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["restarts"], 1);
  EXPECT_EQ(s["prompts"]["delivered"], 80);
  const std::string samples = read_file(fs::path(run_dir()) / "samples.jsonl").value_or("");
  EXPECT_NE(samples.find("That is no number."), std::string::npos) << "what the task said between two turns";
  EXPECT_EQ(read_file(fs::path(run_dir()) / "events.jsonl").value_or("").find("samples_failed"), std::string::npos);
}

TEST_F(RunTest, ScalesWhileItRuns) {
  start({"--set", "stage.rl.steps=700", "--set", "checkpoint.every=200"});
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
  EXPECT_EQ(s["prompts"]["delivered"], 2800);
}

// One line to the control socket, as any process of this user can send it.
std::string told(const fs::path& socket, const std::string& line) {
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket.c_str(), sizeof address.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "nobody is there";
  (void)!::write(fd.get(), (line + "\n").data(), line.size() + 1);
  char answer[4096];
  const ssize_t n = ::read(fd.get(), answer, sizeof answer);
  return n > 0 ? std::string(answer, static_cast<std::size_t>(n)) : "no answer";
}

TEST_F(RunTest, NeitherASecondSupervisorNorNonsenseOnItsSocketDisturbsIt) {
  start({"--set", "stage.rl.steps=300", "--set", "checkpoint.every=100"});
  ASSERT_TRUE(wait_until([&] { return training_rl(1); }));
  const Output second = command({"run", "--resume", run_dir()});
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("belongs to a run that is going on"), std::string::npos) << second.err;
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
  const auto control = read_file(fs::path(run_dir()) / "control.json");
  ASSERT_TRUE(control);
  const fs::path socket = json::parse(*control).at("socket").get<std::string>();
  for (const std::string line : {R"({"command":7})", R"({"command":"scale","role":[1],"count":1})", "[]", "\xFF", ""})
    EXPECT_NE(told(socket, line).find("\"ok\":false"), std::string::npos) << line;
  EXPECT_NE(told(socket, std::string(200'000, '[')).find("nested deeper"), std::string::npos);
  ASSERT_EQ(finish(), 0);
  expect_sound_summary(summary());
}

TEST_F(RunTest, APreemptedRunSavesSaysSoAndGoesOnLater) {
  start({"--set", "stage.rl.steps=400", "--set", "checkpoint.every=0"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  ASSERT_EQ(::kill(run_pid, SIGTERM), 0);
  EXPECT_EQ(finish(), 75);
  EXPECT_EQ(summary()["exit"], "stopped");
  EXPECT_EQ(command({"run", "--resume", run_dir()}).code, 0);
  EXPECT_EQ(summary()["steps"], 420);
}

TEST_F(RunTest, StopsSavesAndResumes) {
  start({"--set", "stage.rl.steps=500", "--set", "checkpoint.every=200"});
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
  EXPECT_EQ(s["steps"], 520);
}

TEST_F(RunTest, HotKeysAreChangedWhileItRunsAndAResumeKeepsThem) {
  const auto rate_of_last_step = [&] {
    double rate = -1;
    std::ifstream file(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const json m = json::parse(line, nullptr, false); m.is_object() && m.contains("optim/lr")) rate = m["optim/lr"].get<double>();
    return rate;
  };
  const auto set = [&](const std::string& setting) { return command({"config", "set", setting, "--run", run_dir()}); };
  start({"--set", "stage.rl.steps=900", "--set", "checkpoint.every=0"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  EXPECT_EQ(rate_of_last_step(), 5e-4);
  const Output fixed = set("model.width=32"), wrong = set("stage.rl.optim.lr=-1"), unknown = set("optim.rl=1");
  EXPECT_EQ(fixed.code, 2);
  EXPECT_NE(fixed.err.find("model.width is fixed when a run starts"), std::string::npos) << fixed.err;
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("must be greater than 0"), std::string::npos) << wrong.err;
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("unknown key optim.rl"), std::string::npos) << unknown.err;
  const Output done = set("stage.rl.optim.lr=1e-5");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(wait_until([&] { return rate_of_last_step() == 1e-5; }, 20s));
  EXPECT_EQ(set("checkpoint.every=10").code, 0);
  const auto checkpoints = [&] {
    std::size_t count = 0;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(fs::path(run_dir()) / "checkpoints", ec)) count += entry.is_directory();
    return count;
  };
  EXPECT_TRUE(wait_until([&] { return checkpoints() >= 2; }, 20s));
  ASSERT_EQ(events("setting").size(), 2u);
  EXPECT_EQ(events("setting")[0]["setting"], "stage.rl.optim.lr=1e-5");
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  EXPECT_EQ(finish(), 0);
  run_pid = spawn({"run", "--resume", run_dir()}, folder / "run2.out", folder / "run.err");
  EXPECT_TRUE(wait_until([&] { return training_rl(1); }));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  EXPECT_EQ(finish(), 0);
  EXPECT_EQ(rate_of_last_step(), 1e-5) << "a resume forgot what was set";
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
} // namespace troupe::test
