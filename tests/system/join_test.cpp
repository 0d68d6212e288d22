// Several machines: the head and two nodes in network namespaces of their own, joined by a bridge.
#include <set>
#include <tuple>

#include "actors/runtime/credentials.h"
#include "actors/runtime/network.h"
#include "support.h"

namespace troupe::test {
namespace {

constexpr const char* kHeadAddress = "10.77.0.1";
constexpr const char* kListen = "10.77.0.1:7700";

bool shell(const std::string& line) { return std::system((line + " >/dev/null 2>&1").c_str()) == 0; }

// The namespaces troupe<pid>h, a, b. In the head's one a bridge 10.77.0.1 with the ports va and vb.
class Network {
 public:
  Network() {
    ready_ = shell("ip netns add " + name("h")) && inside("h", "ip link set lo up") && inside("h", "ip link add br0 type bridge") &&
             inside("h", "ip addr add 10.77.0.1/24 dev br0") && inside("h", "ip link set br0 up");
    int host = 2;
    for (const char* node : {"a", "b"}) {
      const std::string port = std::string("v") + node;
      ready_ = ready_ && shell("ip netns add " + name(node)) &&
               inside("h", "ip link add " + port + " type veth peer name eth0 netns " + name(node)) && inside("h", "ip link set " + port + " master br0 up") &&
               inside(node, "ip link set lo up") && inside(node, "ip addr add 10.77.0." + std::to_string(host++) + "/24 dev eth0") &&
               inside(node, "ip link set eth0 up");
    }
  }
  ~Network() {
    for (const char* space : {"h", "a", "b"}) shell("ip netns del " + name(space));
  }
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] std::vector<std::string> prefix(const std::string& space) const { return {"ip", "netns", "exec", name(space)}; }
  bool inside(const std::string& space, const std::string& line) const { return shell("ip netns exec " + name(space) + " " + line); }

 private:
  static std::string name(const std::string& space) { return "troupe" + std::to_string(::getpid()) + space; }
  bool ready_ = false;
};

class JoinTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    if (!network.ready()) GTEST_SKIP() << "network namespaces cannot be made here (this needs root and iproute2)";
  }
  void TearDown() override {
    for (const auto& [space, pid] : joined) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (HasFailure())
      for (const char* space : {"a", "b"})
        std::fprintf(stderr, "---- join in %s\n%s\n", space, joiner_says(space).c_str());
    RunTest::TearDown();
  }
  void supervise(std::vector<std::string> more = {}) {
    prefix = network.prefix("h");
    std::vector<std::string> arguments = run_arguments(std::move(more));
    arguments[0] = "supervise";
    arguments.insert(arguments.end(), {"--listen", kListen});
    run_pid = spawn(arguments, folder / "run.out", folder / "run.err");
    prefix.clear();
  }
  fs::path credential() const { return fs::path(run_dir()) / "credentials" / "join.pem"; }
  pid_t spawn_join(const std::string& space, const fs::path& with) {
    prefix = network.prefix(space);
    const pid_t pid = spawn({"join", kListen, "--credential", with.string(), "--dir", (folder / space).string()}, folder / ("join." + space + ".out"),
                            folder / ("join." + space + ".err"));
    prefix.clear();
    return pid;
  }
  void join(const std::string& space) { joined[space] = spawn_join(space, credential()); }
  std::string joiner_says(const std::string& space) const { return read_file(folder / ("join." + space + ".err")).value_or(""); }
  static int wait_for(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int leave(const std::string& space) {
    const pid_t pid = joined.at(space);
    joined.erase(space);
    return wait_for(pid);
  }
  std::size_t nodes() const {
    const json s = status();
    return s.is_object() ? s["nodes"].size() : 0;
  }
  int serving_on(const std::string& node) const {
    int count = 0;
    for (const json& a : actors()) count += a["role"] == "rollout" && a["node"] == node && a["state"] == "serving";
    return count;
  }
  // What /proc says of every process of the run, in all namespaces.
  std::set<std::tuple<std::string, int>> listening() const {
    std::vector<std::int32_t> pids_of_run{static_cast<std::int32_t>(run_pid)};
    const json s = status();
    for (const json& n : s["nodes"]) pids_of_run.push_back(n["pid"]);
    for (const json& a : actors())
      if (a["pid"].is_number()) pids_of_run.push_back(a["pid"]);
    std::set<std::tuple<std::string, int>> found;
    for (const auto& l : actors::listeners_of(pids_of_run)) found.insert({l.address, l.port});
    return found;
  }
  std::set<std::tuple<std::string, int>> told() const {
    std::set<std::tuple<std::string, int>> found;
    const json s = status();
    for (const json& l : s["listeners"]) found.insert({l["address"].get<std::string>(), l["port"].get<int>()});
    return found;
  }

  Network network;
  std::map<std::string, pid_t> joined;
};

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

  ::kill(joined.at("a"), SIGTERM);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  ASSERT_EQ(command({"drain", "node3", "--run", run_dir()}).code, 0);
  EXPECT_EQ(leave("b"), 0) << joiner_says("b");
  EXPECT_NE(command({"drain", "node1", "--run", run_dir()}).code, 0);
  EXPECT_TRUE(wait_until([&] { return nodes() == 1 && serving_on("node1") == 4; }, 30s));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
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
  ASSERT_TRUE(network.inside("h", "ip link set va down"));
  ASSERT_TRUE(wait_until([&] { return events("node_lost").size() == 1; }, 15s));
  ASSERT_TRUE(wait_until([&] { return serving_on("node1") == 2; }, 30s)) << "its worker was not replaced";
  ASSERT_TRUE(network.inside("h", "ip link set va up"));
  EXPECT_TRUE(wait_until([&] { return nodes() == 2; }, 60s)) << joiner_says("a");
  EXPECT_NE(joiner_says("a").find("joining anew"), std::string::npos) << joiner_says("a");
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  expect_sound_summary(summary());
}

TEST_F(JoinTest, ASlowLinkSlowsDownNothingElse) {
  if (!network.inside("h", "tc qdisc add dev va root netem delay 20ms") && !network.inside("h", "tc qdisc add dev va root tbf rate 8mbit burst 16k latency 200ms"))
    GTEST_SKIP() << "this kernel has neither netem nor tbf";
  // Steps long enough for a pull over this link: a version older than the age bound is of no use.
  supervise({"--set", "stage.rl.steps=20000", "--set", "checkpoint.every=0", "--set", "rollout.workers=1", "--set", "stage.rl.rl.prompts_per_step=96"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  join("a");
  ASSERT_TRUE(wait_until([&] { return nodes() == 2; })) << joiner_says("a");
  ASSERT_EQ(command({"scale", "rollout=2", "--run", run_dir()}).code, 0);
  ASSERT_TRUE(wait_until([&] { return serving_on("node2") == 1; }, 30s));
  const std::uint64_t before = status()["step"];
  EXPECT_TRUE(wait_until([&] { return status()["step"] >= before + 10; }, 60s));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  expect_sound_summary(summary());
  EXPECT_TRUE(events("node_lost").empty());
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
