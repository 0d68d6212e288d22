#include "join_support.h"

namespace troupe::test {
namespace {

TEST_F(JoinTest, TwoMachinesJoinServeAndLeave) {
  supervise({"--set", "stage.rl.steps=3000", "--set", "checkpoint.every=0"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  EXPECT_NE(read_file(folder / "run.err").value_or("").find("troupe join 10.77.0.1:7700 --credential " + credential().string()), std::string::npos);
  join("a");
  ASSERT_TRUE(wait_until([&] { return nodes() == 2; })) << joiner_says("a");
  join("b");
  ASSERT_TRUE(wait_until([&] { return nodes() == 3; })) << joiner_says("b");
  ASSERT_EQ(command({"scale", "rollout=4", "--run", run_dir()}).code, 0);
  ASSERT_TRUE(wait_until([&] { return serving_on("node2") == 1 && serving_on("node3") == 1; }, 30s));

  EXPECT_TRUE(wait_until([&] { return told() == listening(); }, 30s)) << json(told()).dump() + "\n" + json(listening()).dump();
  for (const auto& [address, port] : told()) EXPECT_TRUE(address == "127.0.0.1" || address.starts_with("10.77.0.")) << address << ":" << port;
  EXPECT_TRUE(told().contains({kHeadAddress, 7700}));

  const std::string remote = serving_name("node2");
  const Output logs = command({"logs", remote, "--run", run_dir()});
  EXPECT_EQ(logs.code, 0) << remote << " runs elsewhere: " << logs.err;

  ::kill(joined.at("a"), SIGTERM);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  ASSERT_EQ(command({"drain", "node3", "--run", run_dir()}).code, 0);
  EXPECT_EQ(leave("b"), 0) << joiner_says("b");
  EXPECT_NE(command({"drain", "node1", "--run", run_dir()}).code, 0);
  EXPECT_TRUE(wait_until([&] { return nodes() == 1 && serving_on("node1") == 4; }, 30s));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  EXPECT_GE(expect_logs_came_here("a") + expect_logs_came_here("b"), 2);
  expect_sound_summary(summary());
  EXPECT_EQ(summary()["restarts"], 0);
}

TEST_F(JoinTest, ACutLinkIsNoticedAndTheMachineComesBackAsAnother) {
  supervise({"--set", "stage.rl.steps=20000", "--set", "checkpoint.every=0", "--set", "rollout.workers=1"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  join("a");
  ASSERT_TRUE(wait_until([&] { return nodes() == 2; })) << joiner_says("a");
  ASSERT_EQ(command({"scale", "rollout=2", "--run", run_dir()}).code, 0);
  ASSERT_TRUE(wait_until([&] { return serving_on("node2") == 1; }, 30s));
  const auto cut = std::chrono::steady_clock::now();
  ASSERT_TRUE(network.inside("h", "ip link set va down"));
  ASSERT_TRUE(wait_until([&] { return events("node_lost").size() == 1; }, 15s));
  std::printf("the cut link was noticed after %.2f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - cut).count());
  ASSERT_TRUE(wait_until([&] { return serving_on("node1") == 2; }, 30s)) << "its worker was not replaced";
  ASSERT_TRUE(network.inside("h", "ip link set va up"));
  EXPECT_TRUE(wait_until([&] { return nodes() == 2; }, 60s)) << joiner_says("a");
  EXPECT_NE(joiner_says("a").find("joining anew"), std::string::npos) << joiner_says("a");
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  expect_sound_summary(summary());
}

TEST_F(JoinTest, SaysWhyAMachineIsNotTaken) {
  const auto join_says = [&](const fs::path& with) {
    const int code = wait_for(spawn_join("a", with));
    return std::to_string(code) + " " + joiner_says("a");
  };
  ASSERT_TRUE(actors::make_credential(folder / "other", "other"));
  EXPECT_NE(join_says(folder / "other" / "join.pem").find("1 troupe: error: 10.77.0.1:7700 cannot be reached"), std::string::npos) << joiner_says("a");
  supervise({"--set", "stage.rl.steps=20000", "--set", "checkpoint.every=0"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  EXPECT_NE(join_says(folder / "nowhere.pem").find("there is no credential"), std::string::npos) << joiner_says("a");
  EXPECT_NE(join_says(folder / "other" / "join.pem").find("belongs to another run"), std::string::npos) << joiner_says("a");
  ::chmod(credential().c_str(), 0644);
  EXPECT_NE(join_says(credential()).find("chmod 600"), std::string::npos) << joiner_says("a");
  EXPECT_EQ(nodes(), 1u) << "nobody was taken";

  prefix = network.prefix("h");
  const Output second = command({"supervise", (folder / "small.toml").string(), "--set", "run.dir=\"" + (folder / "second").string() + "\"", "--listen", kListen});
  prefix.clear();
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("cannot listen on 10.77.0.1:7700"), std::string::npos) << second.err;
  EXPECT_EQ(command({"supervise", (folder / "small.toml").string(), "--listen", "10.77.0.1"}).code, 2);
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
}

} // namespace
} // namespace troupe::test
