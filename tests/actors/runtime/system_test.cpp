// Two CAF systems in one process, over real sockets with mutual TLS.
#include "actors/runtime/system.h"

#include <caf/all.hpp>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "actors/messages/all.h"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class SystemTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  SystemOptions options(const std::string& run) {
    SystemOptions result;
    result.credential = *make_credential(folder / run, run);
    return result;
  }
  fs::path folder = fs::temp_directory_path() / ("troupe_system_test." + std::to_string(::getpid()));
};

caf::behavior echo(caf::event_based_actor*) {
  return {[](const SamplesDone& done) { return done; }};
}

TEST_F(SystemTest, CarriesMessagesUnderMutualTls) {
  const auto opts = options("a");
  System head(opts), worker(opts);
  const auto port = head.publish(head.caf().spawn(echo), "127.0.0.1", 0);
  ASSERT_TRUE(port) << port.error().to_string();
  const auto remote = worker.connect("127.0.0.1", *port);
  ASSERT_TRUE(remote) << remote.error().to_string();
  SamplesDone sent;
  sent.worker = "rollout/0";
  sent.prompt = 42;
  sent.eval = true;
  sent.samples.push_back({{42, 1}, 2, {1, 2, 3}, {1, 0, 1}, {2}, {-0.5f, -0.25f, -1.f}, {{1, 2}, {1, 2}, {1, 3}}, {1, 2}, 1, 0.5, "text"});
  caf::scoped_actor self{worker.caf()};
  self->request(*remote, 10s, sent).receive(
      [&](const SamplesDone& got) {
        EXPECT_EQ(got.prompt, 42u);
        EXPECT_TRUE(got.eval);
        ASSERT_EQ(got.samples.size(), 1u);
        EXPECT_EQ(got.samples[0].logprobs, sent.samples[0].logprobs);
        EXPECT_EQ(got.samples[0].versions.back(), (PolicyVersion{1, 3}));
      },
      [](const caf::error& error) { FAIL() << caf::to_string(error); });
}

TEST_F(SystemTest, RefusesTheCredentialOfAnotherRun) {
  System head(options("a")), stranger(options("b"));
  const auto port = head.publish(head.caf().spawn(echo), "127.0.0.1", 0);
  ASSERT_TRUE(port);
  const auto remote = stranger.connect("127.0.0.1", *port);
  ASSERT_FALSE(remote);
  EXPECT_NE(remote.error().message.find("credential"), std::string::npos);
}

TEST_F(SystemTest, SaysThatAPortIsInUse) {
  const auto opts = options("a");
  System one(opts), two(opts);
  const auto port = one.publish(one.caf().spawn(echo), "127.0.0.1", 0);
  const auto again = two.publish(two.caf().spawn(echo), "127.0.0.1", *port);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find(std::to_string(*port)), std::string::npos);
}

TEST_F(SystemTest, KeepsTheKeyToTheUser) {
  const auto opts = options("a");
  struct stat info {};
  ASSERT_EQ(::stat(opts.credential.key.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

} // namespace
} // namespace troupe::actors
