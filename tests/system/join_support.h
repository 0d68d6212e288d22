/// @file
/// Several machines: the head and two nodes in network namespaces of their own, joined by a bridge.
#pragma once

#include <set>
#include <tuple>

#include "actors/runtime/credentials.h"
#include "actors/runtime/network.h"
#include "support.h"

namespace troupe::test {

inline constexpr const char* kHeadAddress = "10.77.0.1";
inline constexpr const char* kListen = "10.77.0.1:7700";

inline bool shell(const std::string& line) { return std::system((line + " >/dev/null 2>&1").c_str()) == 0; }

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
  std::string serving_name(const std::string& node) const {
    for (const json& a : actors())
      if (a["role"] == "rollout" && a["node"] == node && a["state"] == "serving") return a["name"];
    return {};
  }
  // Of each worker that ran on a machine that joined: the run folder has its whole log. How many there were.
  int expect_logs_came_here(const std::string& space) const {
    int count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / space)) {
      if (entry.path().extension() != ".log") continue;
      ++count;
      const fs::path here = fs::path(run_dir()) / "logs" / entry.path().filename();
      EXPECT_EQ(read_file(entry.path()).value_or("?"), read_file(here).value_or("not there")) << here;
    }
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

} // namespace troupe::test
