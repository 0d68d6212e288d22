#include "actors/supervisor/control_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

namespace troupe::actors {
namespace {

constexpr std::size_t kLineMax = 1 << 20;   // a longer request is a mistake
constexpr std::size_t kClientsMax = 64;     // connections at a time

Result<sockaddr_un> address_of(const std::filesystem::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = socket.string();
  if (text.size() >= sizeof address.sun_path)
    return fail(ErrorCode::kInvalidArgument, "the socket's path " + text + " is longer than " + std::to_string(sizeof address.sun_path - 1) +
                                                 " characters; set XDG_RUNTIME_DIR to a shorter folder");
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  return address;
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

struct Client {
  FileDescriptor fd;
  std::string pending;
};

} // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(const std::filesystem::path& socket, Answer answer) {
  TROUPE_TRY(const sockaddr_un address, address_of(socket));
  FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return tl::unexpected(system_error("create", socket, errno));
  ::unlink(socket.c_str());
  const mode_t old = ::umask(0177);
  const int bound = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int why = errno;
  ::umask(old);
  if (bound != 0) return tl::unexpected(system_error("bind", socket, why));
  if (::listen(listener.get(), 16) != 0) return tl::unexpected(system_error("listen on", socket, errno));
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(listener), std::move(wake), socket, std::move(answer)));
}

ControlServer::ControlServer(FileDescriptor listener, FileDescriptor wake, std::filesystem::path socket, Answer answer)
    : listener_(std::move(listener)), wake_(std::move(wake)), socket_(std::move(socket)), answer_(std::move(answer)) {
  thread_ = std::thread([this] { run(); });
}

ControlServer::~ControlServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
  ::unlink(socket_.c_str());
}

void ControlServer::run() {
  std::map<int, Client> clients;
  for (;;) {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& [fd, client] : clients) fds.push_back({fd, POLLIN, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) {
      FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.valid() && clients.size() < kClientsMax && same_user(fd.get())) {
        const int number = fd.get();
        clients[number] = {std::move(fd), {}};
      }
    }
    for (std::size_t i = 2; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      Client& client = clients.at(fds[i].fd);
      char chunk[4096];
      const ssize_t n = ::recv(client.fd.get(), chunk, sizeof chunk, MSG_DONTWAIT);
      bool alive = n > 0 && client.pending.size() + static_cast<std::size_t>(n) <= kLineMax;
      if (alive) client.pending.append(chunk, static_cast<std::size_t>(n));
      for (std::size_t end; alive && (end = client.pending.find('\n')) != std::string::npos;) {
        const std::string line = client.pending.substr(0, end);
        client.pending.erase(0, end + 1);
        alive = send_all(client.fd.get(), answer_(line) + "\n");
      }
      if (!alive) clients.erase(fds[i].fd);
    }
  }
}

Result<std::string> ask_supervisor(const std::filesystem::path& socket, const std::string& line, int timeout_ms) {
  TROUPE_TRY(const sockaddr_un address, address_of(socket));
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(ErrorCode::kUnavailable, "no supervisor listens on " + socket.string());
  if (!send_all(fd.get(), line + "\n")) return fail(ErrorCode::kUnavailable, "the supervisor closed the connection");
  std::string answer;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd p{fd.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) return fail(ErrorCode::kTimeout, "the supervisor did not answer within " + std::to_string(timeout_ms) + " ms");
    char chunk[65536];
    const ssize_t n = ::recv(fd.get(), chunk, sizeof chunk, 0);
    if (n <= 0) return fail(ErrorCode::kUnavailable, "the supervisor closed the connection without an answer");
    answer.append(chunk, static_cast<std::size_t>(n));
    if (const auto end = answer.find('\n'); end != std::string::npos) return answer.substr(0, end);
  }
}

} // namespace troupe::actors
