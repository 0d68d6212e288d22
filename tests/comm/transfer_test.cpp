// Two real processes: the child exposes memory and writes its descriptor down a pipe, the parent reads and writes through UCX.
#include "comm/transfer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/hash.h"

namespace troupe::comm {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t kBytes = 8u << 20;

void write_text(int fd, const std::string& text) {
  const std::uint64_t n = text.size();
  ASSERT_EQ(::write(fd, &n, sizeof n), static_cast<ssize_t>(sizeof n));
  ASSERT_EQ(::write(fd, text.data(), n), static_cast<ssize_t>(n));
}

std::string read_text(int fd) {
  std::uint64_t n = 0;
  if (::read(fd, &n, sizeof n) != static_cast<ssize_t>(sizeof n)) return {};
  std::string text(n, '\0');
  for (std::size_t at = 0; at < n;) {
    const ssize_t got = ::read(fd, text.data() + at, n - at);
    if (got <= 0) return {};
    at += static_cast<std::size_t>(got);
  }
  return text;
}

// A child that exposes kBytes of 7s until its stdin pipe closes; then reports the hash of what it holds.
struct Server {
  pid_t pid = -1;
  int from_child = -1, to_child = -1;
  RemoteRegion region;

  Server() {
    int up[2], down[2];
    if (::pipe(up) != 0 || ::pipe(down) != 0) abort();
    pid = ::fork();
    if (pid == 0) {
      ::close(up[0]), ::close(down[1]);
      serve(up[1], down[0]);
      ::_exit(0);
    }
    ::close(up[1]), ::close(down[0]);
    from_child = up[0], to_child = down[1];
    region.worker = read_text(from_child);
    region.key = read_text(from_child);
    const std::string numbers = read_text(from_child);
    std::memcpy(&region.address, numbers.data(), 8);
    region.bytes = kBytes;
  }
  ~Server() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(from_child), ::close(to_child);
  }
  std::uint64_t final_hash() {
    ::close(to_child);
    to_child = -1;
    const std::string text = read_text(from_child);
    std::uint64_t hash = 0;
    std::memcpy(&hash, text.data(), 8);
    return hash;
  }

  static void serve(int up, int down) {
    std::vector<std::byte> data(kBytes, std::byte{7});
    auto engine = TransferEngine::start({});
    auto region = (*engine)->expose(data.data(), data.size());
    write_text(up, region->descriptor().worker);
    write_text(up, region->descriptor().key);
    const std::uint64_t address = region->descriptor().address;
    write_text(up, std::string(reinterpret_cast<const char*>(&address), 8));
    char c;
    while (::read(down, &c, 1) > 0) {
    }
    const std::uint64_t hash = hash64(data);
    write_text(up, std::string(reinterpret_cast<const char*>(&hash), 8));
    ::sleep(5);
  }
};

TEST(Transfer, ReadsAndWritesAPeersMemory) {
  Server server;
  auto engine = TransferEngine::start({});
  ASSERT_TRUE(engine) << engine.error().to_string();
  std::vector<std::byte> mine(kBytes);
  auto got = (*engine)->get_blocking(server.region, 0, mine.data(), mine.size(), 10s);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(mine, std::vector<std::byte>(kBytes, std::byte{7}));
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::byte>(i * 31);
  auto sent = (*engine)->put_blocking(server.region, 0, mine.data(), mine.size(), 10s);
  ASSERT_TRUE(sent) << sent.error().to_string();
  EXPECT_EQ(server.final_hash(), hash64(mine));
}

TEST(Transfer, ReadsASliceOnly) {
  Server server;
  auto engine = TransferEngine::start({});
  std::vector<std::byte> mine(64, std::byte{1});
  ASSERT_TRUE((*engine)->get_blocking(server.region, kBytes - 32, mine.data() + 16, 32, 10s));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(mine[i], i >= 16 && i < 48 ? std::byte{7} : std::byte{1});
}

TEST(Transfer, RefusesARangeOutsideTheRegion) {
  Server server;
  auto engine = TransferEngine::start({});
  std::byte mine[16];
  for (auto [offset, bytes] : {std::pair<std::uint64_t, std::size_t>{kBytes - 8, 16}, {~std::uint64_t{0}, 16}, {kBytes + 1, 0}}) {
    const auto got = (*engine)->get_blocking(server.region, offset, mine, bytes, 1s);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Transfer, ADeadPeerEndsTheWait) {
  Server server;
  auto engine = TransferEngine::start({});
  std::vector<std::byte> mine(kBytes);
  ASSERT_TRUE((*engine)->get_blocking(server.region, 0, mine.data(), 64, 10s));
  ::kill(server.pid, SIGKILL);
  ::waitpid(server.pid, nullptr, 0);
  const auto start = std::chrono::steady_clock::now();
  // Shared memory of a dead process may still be mapped: a read either gives its bytes or fails, but it ends.
  (void)(*engine)->get_blocking(server.region, 0, mine.data(), mine.size(), 3s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST(Transfer, AnEngineThatStopsFailsLaterCalls) {
  Server server;
  std::vector<std::byte> mine(64);
  {
    auto engine = TransferEngine::start({});
    auto region = (*engine)->expose(mine.data(), mine.size());
    ASSERT_TRUE(region);
    engine->reset(); // the region outlives the engine
  }
}

} // namespace
} // namespace troupe::comm
