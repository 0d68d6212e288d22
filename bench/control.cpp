// control: one small request and its answer between two processes, over the link the actors use and over CAF's own.
#include <caf/all.hpp>
#include <caf/io/all.hpp>

#include <chrono>
#include <fstream>

#include "actors/messages/all.h"
#include "actors/runtime/credentials.h"
#include "actors/runtime/system.h"
#include "bench/helper.h"
#include "bench/registry.h"

namespace troupe::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 300, kRequests = 3000;
constexpr Duration kDeadline = std::chrono::seconds(10);

/// A CAF system with nothing of ours: no TLS, CAF's own heartbeat (none), the same number of scheduler threads.
struct RawConfig : caf::actor_system_config {
  RawConfig() {
    load<caf::io::middleman>();
    set("caf.scheduler.max-threads", 2);
  }
};

caf::behavior echo() {
  return {[](const actors::LeaseEnded& message) { return message; }};
}

actors::SystemOptions our_options(const fs::path& folder) {
  actors::SystemOptions options;
  options.credential = {(folder / "node.crt").string(), (folder / "node.key").string(),
                        (folder / "authority.crt").string()};
  return options;
}

struct Latency {
  double p50_us = 0, p99_us = 0;
};

Result<Latency> measure(caf::actor_system& system, const caf::actor& remote, int requests) {
  caf::scoped_actor self{system};
  const actors::LeaseEnded message{"rollout/0", 0, 42, false};
  std::vector<double> took;
  std::string error;
  for (int i = 0; i < kWarmUp + requests && error.empty(); ++i) {
    const auto start = Clock::now();
    self->request(remote, kDeadline, message)
        .receive([](const actors::LeaseEnded&) {}, [&](const caf::error& e) { error = caf::to_string(e); });
    if (i >= kWarmUp) took.push_back(seconds(Clock::now() - start) * 1e6);
  }
  if (!error.empty()) return fail(ErrorCode::kUnavailable, "a request failed: " + error);
  return Latency{percentile(took, 0.5), percentile(took, 0.99)};
}

}  // namespace

Status serve_control(const fs::path& folder) {
  actors::SystemOptions options = our_options(folder);
  actors::System ours(options);
  TROUPE_TRY(const auto port, ours.publish(ours.caf().spawn(echo), "127.0.0.1", 0));
  RawConfig config;
  caf::actor_system raw(config);
  const auto raw_port = raw.middleman().publish(raw.spawn(echo), 0, "127.0.0.1");
  if (!raw_port) return fail(ErrorCode::kUnavailable, caf::to_string(raw_port.error()));
  serve_until_killed(std::to_string(port) + " " + std::to_string(*raw_port));
}

Status run_control(Context& context) {
  TROUPE_TRY(const auto folder, TemporaryFolder::create());
  TROUPE_TRY(const auto credential, actors::make_credential(folder.path(), "bench"));
  TROUPE_TRY(const auto helper, start_helper("serve-control", folder.path()));
  const auto space = helper.says.find(' ');
  const auto port = static_cast<std::uint16_t>(std::stoi(helper.says));
  const auto raw_port = static_cast<std::uint16_t>(std::stoi(helper.says.substr(space)));

  actors::SystemOptions options;
  options.credential = credential;
  actors::System ours(options);
  TROUPE_TRY(const auto remote, ours.connect("127.0.0.1", port));
  RawConfig config;
  caf::actor_system raw(config);
  const auto raw_remote = raw.middleman().remote_actor("127.0.0.1", raw_port);
  if (!raw_remote)
    return fail(ErrorCode::kUnavailable, "raw CAF cannot connect: " + caf::to_string(raw_remote.error()));

  // In turn, so that whatever else the machine does hits both.
  std::vector<double> p50, p99, raw_p50, raw_p99;
  const int repeats = context.repeats(5);
  for (int i = 0; i < repeats; ++i) {
    TROUPE_TRY(const Latency a, measure(ours.caf(), remote, kRequests));
    TROUPE_TRY(const Latency b, measure(raw, *raw_remote, kRequests));
    p50.push_back(a.p50_us), p99.push_back(a.p99_us), raw_p50.push_back(b.p50_us), raw_p99.push_back(b.p99_us);
  }
  const nlohmann::json conditions = {
      {"link", "loopback, mutual TLS"}, {"requests", kRequests}, {"repeats", repeats}, {"message", "LeaseEnded"}};
  context.add({"control.request_p50", median(p50), "us", Peer{"raw CAF, no TLS", median(raw_p50)}, conditions});
  context.add({"control.request_p99", median(p99), "us", Peer{"raw CAF, no TLS", median(raw_p99)}, conditions});
  return {};
}

}  // namespace troupe::bench
