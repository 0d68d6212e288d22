#include "serve/http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::serve {

namespace {

using Clock = std::chrono::steady_clock;

thread_local int current_socket = -1;    // of the request that this thread answers
thread_local bool close_connection = false;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd wanted{socket, events, 0};
    const int n = ::poll(&wanted, 1, milliseconds_until(deadline));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

// A connection with one deadline for everything that is read and one for each thing that is written.
class Connection final : public httplib::Stream {
 public:
  Connection(int socket, Duration read_deadline, Duration write_deadline)
      : socket_(socket), read_until_(Clock::now() + read_deadline), write_deadline_(write_deadline) {}

  bool is_readable() const override { return position_ < size_ || wait_for(socket_, POLLIN, read_until_); }
  bool is_writable() const override { return !HttpServer::client_gone() && wait_for(socket_, POLLOUT, Clock::now() + write_deadline_); }

  ssize_t read(char* to, std::size_t size) override {
    if (position_ == size_) {
      if (!wait_for(socket_, POLLIN, read_until_)) return -1;
      const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
      if (n <= 0) return n;
      position_ = 0;
      size_ = static_cast<std::size_t>(n);
    }
    const std::size_t n = std::min(size, size_ - position_);
    std::memcpy(to, buffer_.data() + position_, n);
    position_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* from, std::size_t size) override {
    const auto deadline = Clock::now() + write_deadline_;
    for (std::size_t sent = 0; sent < size;) {
      if (!wait_for(socket_, POLLOUT, deadline)) return -1;
      const ssize_t n = ::send(socket_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return -1;
      sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { address(&::getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { address(&::getsockname, ip, port); }
  socket_t socket() const override { return socket_; }
  [[nodiscard]] bool has_more() const { return position_ < size_; }
  void next_request(Duration read_deadline) { read_until_ = Clock::now() + read_deadline; }

 private:
  void address(int (*get)(int, sockaddr*, socklen_t*), std::string& ip, int& port) const {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (get(socket_, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return;
    std::array<char, NI_MAXHOST> name{};
    if (::getnameinfo(reinterpret_cast<sockaddr*>(&storage), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) == 0) ip = name.data();
    port = ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  }

  int socket_;
  Clock::time_point read_until_;
  Duration write_deadline_;
  std::array<char, 8192> buffer_{};
  std::size_t position_ = 0, size_ = 0;
};

// As many threads as connections may be served; who comes when all are busy waits, and the thread that accepts waits with them.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(int count) : free_(count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ > 0; });
    --free_;
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void shutdown() override {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
      const std::scoped_lock lock(mutex_);
      ++free_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  int free_;
  bool ending_ = false;
};

} // namespace

HttpServer::HttpServer(const ServeOptions& options) : options_(options) {
  new_task_queue = [count = options.connections_max] { return new ConnectionThreads(count); }; // httplib deletes it
  set_payload_max_length(options.body_max.count);
  set_tcp_nodelay(true);
  // Not httplib's own: with SO_REUSEPORT a second server would share the port and take every other connection.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
}

Result<int> HttpServer::bind() {
  errno = 0;
  const int port = options_.port == 0 ? bind_to_any_port(options_.host) : bind_to_port(options_.host, options_.port) ? options_.port : -1;
  if (port > 0) return port;
  const int why = errno;
  const std::string place = options_.host + ":" + std::to_string(options_.port);
  if (why == EADDRINUSE) return fail(ErrorCode::kUnavailable, "another program listens on " + place + " already; end it, or choose another --port");
  return fail(ErrorCode::kInvalidArgument, "cannot listen on " + place + (why != 0 ? std::string(": ") + std::strerror(why) : ": no address of this machine"));
}

void HttpServer::serve() { listen_after_bind(); }

void HttpServer::stop_serving() {
  stopping_ = true;
  stop();
}

bool HttpServer::client_gone() {
  if (current_socket < 0) return false;
  pollfd seen{current_socket, POLLRDHUP, 0};
  return ::poll(&seen, 1, 0) > 0 && (seen.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpServer::close_after(httplib::Response& response) {
  response.set_header("Connection", "close");
  close_connection = true;
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  current_socket = socket;
  close_connection = false;
  Connection connection(socket, options_.read_deadline, options_.write_deadline);
  const auto waits = [&] { // for the next request, looking out for the end of the server
    for (const auto until = Clock::now() + options_.idle_deadline; !stopping_ && Clock::now() < until;)
      if (connection.has_more() || wait_for(socket, POLLIN, std::min(until, Clock::now() + std::chrono::milliseconds(200)))) return true;
    return false;
  };
  bool closed = false, good = true;
  while (good && !closed && !close_connection && waits()) {
    connection.next_request(options_.read_deadline);
    good = process_request(connection, stopping_, closed, nullptr);
  }
  current_socket = -1;
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  return good;
}

} // namespace troupe::serve
