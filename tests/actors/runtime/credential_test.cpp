// A credential is refused with the reason, before CAF would say that it did not work.
#include <caf/all.hpp>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "actors/messages/all.h"
#include "actors/runtime/credentials.h"
#include "actors/runtime/network.h"
#include "actors/runtime/system.h"
#include "base/file.h"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class CredentialTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  fs::path file(const std::string& run, long seconds = kCredentialSeconds) {
    EXPECT_TRUE(make_credential(folder / run, run, seconds));
    return join_file(folder / run);
  }
  fs::path folder = fs::temp_directory_path() / ("troupe_credential_test." + std::to_string(::getpid()));
};

std::string why_not(const Result<Credential>& credential) { return credential ? "" : credential.error().message; }

TEST_F(CredentialTest, OneFileHoldsAllOfIt) {
  const auto credential = read_credential(file("a"));
  ASSERT_TRUE(credential) << credential.error().message;
  SystemOptions one, other;
  one.credential = *make_credential(folder / "b", "b");
  other.credential = *read_credential(join_file(folder / "b"));
  System head(one), node(other);
  const auto port = head.publish(head.caf().spawn([](caf::event_based_actor*) -> caf::behavior { return {[](const AskTerm&) { return TermIs{3}; }}; }), "127.0.0.1", 0);
  ASSERT_TRUE(port);
  const auto tried = try_credential(other.credential, {"127.0.0.1", *port}, 5s);
  EXPECT_TRUE(tried) << tried.error().message;
  const auto remote = node.connect("127.0.0.1", *port);
  ASSERT_TRUE(remote) << remote.error().message;
  const auto stranger = try_credential(*credential, {"127.0.0.1", *port}, 5s);
  ASSERT_FALSE(stranger);
  EXPECT_NE(stranger.error().message.find("belongs to another run"), std::string::npos) << stranger.error().message;
  // The handshakes left the head in good health.
  std::uint64_t term = 0;
  caf::scoped_actor self{node.caf()};
  self->request(*remote, 5s, AskTerm{}).receive([&](const TermIs& is) { term = is.term; }, [](const caf::error&) {});
  EXPECT_EQ(term, 3u);
}

TEST_F(CredentialTest, SaysWhatIsWrongWithAFile) {
  EXPECT_NE(why_not(read_credential(folder / "none.pem")).find("there is no credential"), std::string::npos);
  const fs::path expired = file("expired", -60);
  EXPECT_NE(why_not(read_credential(expired)).find("expired on"), std::string::npos) << why_not(read_credential(expired));
  const fs::path open = file("open");
  ::chmod(open.c_str(), 0640);
  EXPECT_NE(why_not(read_credential(open)).find("chmod 600"), std::string::npos);
  const fs::path text = folder / "text.pem";
  ASSERT_TRUE(write_file_atomic(text, "hello", 0600));
  EXPECT_NE(why_not(read_credential(text)).find("is not a credential"), std::string::npos);
  // The key of one run with the certificates of another.
  const std::string a = *read_file(file("a")), b = *read_file(file("b"));
  const auto key = [](const std::string& pem) {
    const auto begin = pem.find("-----BEGIN PRIVATE KEY"), end = pem.find("-----BEGIN CERTIFICATE", begin);
    return std::pair(begin, end);
  };
  const auto [a0, a1] = key(a);
  const auto [b0, b1] = key(b);
  const fs::path mixed = folder / "mixed.pem";
  ASSERT_TRUE(write_file_atomic(mixed, a.substr(0, a0) + b.substr(b0, b1 - b0) + a.substr(a1), 0600));
  EXPECT_NE(why_not(read_credential(mixed)).find("do not belong together"), std::string::npos) << why_not(read_credential(mixed));
}

// The server judges an expired certificate too: a node with a wrong clock gets no further.
TEST_F(CredentialTest, AHeadRefusesAnExpiredCertificate) {
  SystemOptions options;
  options.credential = *make_credential(folder / "a", "a", -60);
  System head(options);
  const auto port = head.publish(head.caf().spawn([](caf::event_based_actor*) -> caf::behavior { return {[](const AskTerm&) { return TermIs{}; }}; }), "127.0.0.1", 0);
  ASSERT_TRUE(port);
  const auto tried = try_credential(options.credential, {"127.0.0.1", *port}, 5s);
  ASSERT_FALSE(tried);
  EXPECT_NE(tried.error().message.find("expired"), std::string::npos) << tried.error().message;
}

TEST_F(CredentialTest, APeerOfAnotherBuildIsToldSo) {
  SystemOptions options;
  options.credential = *make_credential(folder / "a", "a");
  System head(options);
  options.build = "troupe-0.0-other";
  System node(options);
  const auto port = head.publish(head.caf().spawn([](caf::event_based_actor*) -> caf::behavior { return {[](const AskTerm&) { return TermIs{}; }}; }), "127.0.0.1", 0);
  ASSERT_TRUE(port);
  const auto remote = node.connect("127.0.0.1", *port);
  ASSERT_FALSE(remote);
  EXPECT_NE(remote.error().message.find("is of another build"), std::string::npos) << remote.error().message;
}

TEST(Endpoint, IsAHostAndAPort) {
  EXPECT_EQ(parse_endpoint("10.0.0.1:7700")->port, 7700);
  EXPECT_EQ(parse_endpoint("head.local:1")->host, "head.local");
  for (const char* wrong : {"", "10.0.0.1", ":7700", "a:", "a:0", "a:65536", "a:77x", "a:-1"}) EXPECT_FALSE(parse_endpoint(wrong)) << wrong;
}

TEST(Network, KnowsItsInterfacesAndListeners) {
  EXPECT_EQ(interface_of("127.0.0.1").value_or("?"), "lo");
  const auto missing = interface_of("192.0.2.1"); // documentation: nobody's
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("127.0.0.1"), std::string::npos) << "it lists what there is";
  EXPECT_EQ(address_towards("127.0.0.1").value_or("?"), "127.0.0.1");
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  socklen_t length = sizeof any;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&any), &length);
  const Endpoint here{"127.0.0.1", ntohs(any.sin_port)};
  EXPECT_FALSE(connect_to(here, 1s)) << "it does not listen yet";
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_TRUE(connect_to(here, 1s));
  const auto mine = listeners_of({::getpid()});
  EXPECT_NE(std::find(mine.begin(), mine.end(), Listener{::getpid(), "127.0.0.1", here.port}), mine.end());
  ::close(fd);
}

} // namespace
} // namespace troupe::actors
