#include "actors/runtime/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "base/deleter.h"


namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

std::string text_of(const in_addr& address) {
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &address, text, sizeof text);
  return text;
}

Result<sockaddr_in> resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &found); error != 0)
    return fail(ErrorCode::kUnavailable, "there is no host \"" + endpoint.host + "\" (" + ::gai_strerror(error) + ")");
  const std::unique_ptr<addrinfo, Deleter<::freeaddrinfo>> list(found);
  sockaddr_in address{};
  std::memcpy(&address, list->ai_addr, sizeof address);
  address.sin_port = htons(endpoint.port);
  return address;
}

// One line of /proc/<pid>/net/tcp or tcp6: "sl local rem st ... inode".
struct Row {
  std::string address;
  std::uint16_t port = 0;
  std::uint64_t inode = 0;
};

std::string address_of_hex(const std::string& hex) {
  in6_addr six{};
  auto* words = reinterpret_cast<std::uint32_t*>(&six);
  for (std::size_t i = 0; i < hex.size() / 8; ++i) words[i] = static_cast<std::uint32_t>(std::stoul(hex.substr(8 * i, 8), nullptr, 16)); // host order
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(hex.size() == 8 ? AF_INET : AF_INET6, &six, text, sizeof text);
  return text;
}

void read_listening(const fs::path& table, std::vector<Row>& rows) {
  std::ifstream in(table);
  std::string line;
  std::getline(in, line); // the heading
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    const auto colon = local.find(':');
    if (state != "0A" || inode.empty() || colon == std::string::npos) continue;
    rows.push_back({address_of_hex(local.substr(0, colon)), static_cast<std::uint16_t>(std::stoul(local.substr(colon + 1), nullptr, 16)), std::stoull(inode)});
  }
}

} // namespace

Result<std::string> interface_of(const std::string& address) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return tl::unexpected(system_error("list", "the network interfaces", errno));
  const std::unique_ptr<ifaddrs, Deleter<::freeifaddrs>> list(found);
  std::string known;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in own{};
    std::memcpy(&own, entry->ifa_addr, sizeof own);
    const std::string text = text_of(own.sin_addr);
    if (text == address) return std::string(entry->ifa_name);
    known += (known.empty() ? "" : ", ") + text;
  }
  return fail(ErrorCode::kNotFound, address + " is not an address of this machine; it has " + known);
}

Result<std::string> address_towards(const std::string& host) {
  TROUPE_TRY(const sockaddr_in to, resolve({host, 9}));
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return tl::unexpected(Error{ErrorCode::kUnavailable, "no route to " + host + ": " + std::strerror(errno), ""});
  sockaddr_in own{};
  socklen_t length = sizeof own;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return tl::unexpected(system_error("ask for", "the own address", errno));
  return text_of(own.sin_addr);
}

Result<FileDescriptor> connect_to(const Endpoint& endpoint, Duration deadline) {
  TROUPE_TRY(const sockaddr_in to, resolve(endpoint));
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return tl::unexpected(system_error("open", "a socket", errno));
  int error = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wait{socket.get(), POLLOUT, 0};
    if (::poll(&wait, 1, static_cast<int>(deadline / std::chrono::milliseconds(1))) == 0)
      return fail(ErrorCode::kTimeout, to_string(endpoint) + " did not answer within " + format_duration(deadline));
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) return fail(ErrorCode::kUnavailable, to_string(endpoint) + " cannot be reached: " + std::strerror(error));
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  return socket;
}

std::vector<Listener> listeners_of(const std::vector<std::int32_t>& pids) {
  std::vector<Listener> found;
  for (const std::int32_t pid : pids) {
    const fs::path process = fs::path("/proc") / std::to_string(pid);
    std::vector<Row> rows;
    read_listening(process / "net" / "tcp", rows);
    read_listening(process / "net" / "tcp6", rows);
    std::map<std::uint64_t, const Row*> by_inode;
    for (const Row& row : rows) by_inode[row.inode] = &row;
    std::error_code ec;
    for (fs::directory_iterator it(process / "fd", ec), end; !ec && it != end; it.increment(ec)) {
      std::error_code gone;
      const std::string target = fs::read_symlink(it->path(), gone).string(); // "socket:[12345]"
      if (gone || !target.starts_with("socket:[")) continue;
      const auto row = by_inode.find(std::strtoull(target.c_str() + 8, nullptr, 10));
      if (row != by_inode.end()) found.push_back({pid, row->second->address, row->second->port});
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

} // namespace troupe::actors
