// A long quickstart under 200 random kills: it ends, nothing is lost or counted twice, and it has learned what an undisturbed run learns.
// TROUPE_SOAK_KILLS and TROUPE_SOAK_SEED choose another number and another order of them.
#include <cinttypes>
#include <random>

#include "death_support.h"

namespace troupe::test {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

class SoakTest : public DeathTest {
 protected:
  void start_quickstart(std::uint64_t steps) {
    std::vector<std::string> arguments{"run", std::string(TROUPE_SOURCE_DIR) + "/configs/quickstart.toml"};
    for (const std::string& set : {"run.dir=\"" + run_dir() + "\"", "stage.rl.steps=" + std::to_string(steps), std::string("checkpoint.every=50"),
                                   std::string("rollout.spares=1"),
                                   std::string("stage.rl.rl.advantage={drop_zero_signal=false}"), // it learns all there is to learn before it ends
                                   std::string("control.restart={restarts_max=1000,backoff_max=\"1s\"}"),
                                   std::string("control.rollbacks_max=1000")})
      arguments.insert(arguments.end(), {"--set", set});
    run_pid = spawn(arguments, folder / "run.out", folder / "run.err");
  }

  // Somebody dies, or freezes until he is found out. False when nobody was there.
  bool strike(std::mt19937_64& random) {
    const auto dice = random() % 100;
    if (dice < 8) {
      kill_supervisor();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 2000));
      resume();
      return true;
    }
    if (dice < 14) {
      const auto all = agents();
      return !all.empty() && ::kill(all.back(), SIGKILL) == 0;
    }
    const std::string role = dice < 22 ? "rank/" : dice < 32 ? "checkpoint_writer/" : dice < 45 ? "environment/" : "rollout/";
    std::vector<pid_t> there;
    for (const auto& [name, pid] : pids())
      if (name.starts_with(role)) there.push_back(pid);
    return !there.empty() && ::kill(there[random() % there.size()], dice >= 90 ? SIGSTOP : SIGKILL) == 0;
  }
};

TEST_F(SoakTest, TwoHundredKillsLoseNothing) {
  const std::uint64_t seed = from_environment("TROUPE_SOAK_SEED", 1), kills = from_environment("TROUPE_SOAK_KILLS", 200);
  std::mt19937_64 random(seed);
  start_quickstart(1200 + 25 * kills);
  ASSERT_TRUE(wait_until([&] { return training_rl(10); }));
  std::uint64_t struck = 0;
  while (struck < kills) {
    // Some steps further, or in the middle of what the last one has left.
    const auto reported = steps_reported().size();
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 500));
    const auto enough = reported + random() % 20;
    (void)wait_until([&] { return steps_reported().size() >= enough; }, 2s);
    struck += strike(random) ? 1 : 0;
    ASSERT_FALSE(ended()) << "the run is over after " << struck << " kills (seed " << seed << ")\n" << read_file(folder / "run.err").value_or("");
  }
  const auto at_last_kill = steps_reported().back();
  ASSERT_EQ(finish(), 0) << "seed " << seed;
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["steps"], 240 + 1200 + 25 * kills);
  EXPECT_GT(s["eval"]["after"].get<double>(), 0.85) << "an undisturbed run reaches more";
  std::printf("%" PRIu64 " kills (seed %" PRIu64 "), %zu rollbacks, %zu adoptions, the last kill at step %" PRIu64 ", accuracy %.4f, %s\n", kills, seed,
              events("rollback").size(), events("adopted").size(), at_last_kill, s["eval"]["after"].get<double>(), s["prompts"].dump().c_str());
}

} // namespace
} // namespace troupe::test
