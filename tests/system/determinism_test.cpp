// With staleness 0 a run is a function of its config and seed: run again, or stopped and resumed, it leaves the same bits.
#include "compared.h"

#include <algorithm>

namespace troupe::test {
namespace {

class DeterminismTest : public ComparedRunTest {
 protected:
  static std::vector<std::string> settings() {
    std::vector<std::string> out;
    for (const char* set : {"stage.rl.rl.staleness=0", "stage.rl.steps=110", "checkpoint.every=40", "output.samples_per_step=4",
                            "task.reward={type=\"regex\",pattern=\"7$\"}", "stage.rl.optim.lr=5e-5"})
      out.insert(out.end(), {"--set", set});
    return out;
  }
};

TEST_F(DeterminismTest, TwoRunsAreEqualAndSoIsOneThatWasStoppedAndResumed) {
  start(settings());
  ASSERT_EQ(finish(), 0);
  const Left first = take();
  ASSERT_EQ(first.metrics.size(), 130u);
  EXPECT_GT(std::count_if(first.metrics.begin(), first.metrics.end(), [](const auto& m) { return m.second.value("actor/grad_norm", 0.0) > 0; }), 50)
      << "there is something to learn all the time";

  start(settings());
  ASSERT_EQ(finish(), 0);
  {
    SCOPED_TRACE("the same again");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(8); }));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  ASSERT_EQ(summary()["exit"], "stopped");
  ASSERT_EQ(command({"run", "--resume", run_dir()}).code, 0);
  {
    SCOPED_TRACE("stopped and resumed");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(20); }));
  ASSERT_EQ(::kill(pids().at("rank/0"), SIGKILL), 0);
  ASSERT_EQ(finish(), 0);
  {
    SCOPED_TRACE("the rank was killed");
    expect_equal(first, take());
  }

  start(settings());
  ASSERT_TRUE(wait_until([&] { return training_rl(20); }));
  ASSERT_EQ(::kill(run_pid, SIGKILL), 0);
  finish();
  run_pid = spawn({"run", "--resume", run_dir()}, folder / "run2.out", folder / "run.err");
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(events("adopted").size(), 1u);
  EXPECT_TRUE(first.weights == take().weights) << "the supervisor was killed and another one went on with its rank";
}

} // namespace
} // namespace troupe::test
