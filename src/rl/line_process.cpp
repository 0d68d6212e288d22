#include "rl/line_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::rl {
namespace {

struct Pipe {
  FileDescriptor read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return tl::unexpected(system_error("make a pipe for", "a task program", errno));
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void set_nonblocking(const FileDescriptor& fd) { ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK); }

/// What the child needs between fork and exec, prepared before: only async-signal-safe calls are left.
struct ChildPlan {
  std::vector<char*> argv;
  const char* folder = nullptr;
  int in = -1, out = -1, err = -1, failure = -1;
  pid_t parent = 0;
};

[[noreturn]] void run_child(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  const bool ready = ::getppid() == plan.parent && ::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 && ::dup2(plan.err, 2) >= 0 &&
                     (plan.folder == nullptr || ::chdir(plan.folder) == 0);
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); // nothing of this process leaks into the program
  if (ready) ::execvp(plan.argv[0], plan.argv.data());
  const int error = errno;
  if (::write(plan.failure, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

/// write(2) that reports a closed pipe as EPIPE instead of killing this process, whatever it does with SIGPIPE.
ssize_t write_quietly(int fd, std::string_view bytes) {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t n = ::write(fd, bytes.data(), bytes.size());
  const int error = errno;
  if (n < 0 && error == EPIPE) {
    const timespec now{};
    ::sigtimedwait(&pipe, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return n;
}

std::string describe(int status) {
  if (WIFEXITED(status)) return "exit status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "ended";
}

int milliseconds_until(TimePoint end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

/// Whether the child has ended; its number stays reserved until it is reaped.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/// A program that exits closes its pipes a moment before it can be waited for.
void await_end(pid_t pid) {
  for (int i = 0; i < 50 && !has_ended(pid); ++i) ::poll(nullptr, 0, 2);
}

} // namespace

Result<LineProcess> LineProcess::start(const LineProcessOptions& options) {
  if (options.command.empty()) return fail(ErrorCode::kInvalidConfig, "the program task has no command");
  TROUPE_TRY(Pipe in, make_pipe());
  TROUPE_TRY(Pipe out, make_pipe());
  TROUPE_TRY(Pipe err, make_pipe());
  TROUPE_TRY(Pipe failure, make_pipe());
  LineProcess process(options);
  ChildPlan plan;
  for (std::string& word : process.options_.command) plan.argv.push_back(word.data());
  plan.argv.push_back(nullptr);
  if (!options.folder.empty()) plan.folder = process.options_.folder.c_str();
  plan.in = in.read.get(), plan.out = out.write.get(), plan.err = err.write.get(), plan.failure = failure.write.get();
  plan.parent = ::getpid();

  const pid_t pid = ::fork();
  if (pid < 0) return tl::unexpected(system_error("start", options.command[0], errno));
  if (pid == 0) run_child(plan);
  ::setpgid(pid, pid); // in both processes, so that it holds whoever runs first
  process.pid_ = pid;
  in.read.reset(), out.write.reset(), err.write.reset(), failure.write.reset();
  int error = 0;
  ssize_t n;
  while ((n = ::read(failure.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (n > 0) {
    await_end(pid);
    process.stop();
    return fail(ErrorCode::kUnavailable, "cannot start \"" + options.command[0] + "\"" +
                                             (options.folder.empty() ? "" : " in " + options.folder) + ": " + std::strerror(error));
  }
  process.stdin_ = std::move(in.write), process.stdout_ = std::move(out.read), process.stderr_ = std::move(err.read);
  set_nonblocking(process.stdin_), set_nonblocking(process.stdout_), set_nonblocking(process.stderr_);
  return process;
}

LineProcess::LineProcess(LineProcess&& other) noexcept
    : options_(std::move(other.options_)), pid_(std::exchange(other.pid_, -1)), stdin_(std::move(other.stdin_)),
      stdout_(std::move(other.stdout_)), stderr_(std::move(other.stderr_)), pending_(std::move(other.pending_)), tail_(std::move(other.tail_)) {}

LineProcess& LineProcess::operator=(LineProcess&& other) noexcept {
  if (this == &other) return *this;
  stop();
  options_ = std::move(other.options_);
  pid_ = std::exchange(other.pid_, -1);
  stdin_ = std::move(other.stdin_), stdout_ = std::move(other.stdout_), stderr_ = std::move(other.stderr_);
  pending_ = std::move(other.pending_), tail_ = std::move(other.tail_);
  return *this;
}

LineProcess::~LineProcess() { stop(); }

std::string LineProcess::stop() {
  if (pid_ <= 0) return "not running";
  ::kill(-pid_, SIGKILL); // the whole group; a leader that has ended keeps its status, and its number until it is reaped
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  drain_stderr();
  stdin_.reset(), stdout_.reset(), stderr_.reset();
  pending_.clear();
  return describe(status);
}

void LineProcess::drain_stderr() {
  std::array<char, 4096> chunk;
  // Bounded, so that a program that only writes to stderr cannot hold this thread: its deadline is checked between drains.
  for (int i = 0; i < 64 && stderr_.valid(); ++i) {
    const ssize_t n = ::read(stderr_.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) stderr_.reset();
    if (n <= 0) return;
    tail_.append(chunk.data(), static_cast<std::size_t>(n));
    const auto keep = static_cast<std::size_t>(options_.stderr_tail.count);
    if (tail_.size() > keep) tail_.erase(0, tail_.size() - keep);
  }
}

std::string LineProcess::stderr_tail() const {
  std::string_view text = tail_;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  std::string line;
  for (char c : text) line += c == '\n' ? std::string(" | ") : static_cast<unsigned char>(c) < 0x20 ? std::string(" ") : std::string(1, c);
  return line;
}

Result<std::string> LineProcess::call(std::string_view line, Duration deadline) {
  if (!running()) return fail(ErrorCode::kUnavailable, "the task program is not running");
  const TimePoint end = std::chrono::steady_clock::now() + deadline;
  std::string request = std::string(line) + "\n";
  std::size_t sent = 0, searched = 0;
  const auto failed = [&](ErrorCode code, const std::string& why) {
    stop();
    const std::string said = stderr_tail();
    return fail(code, why + (said.empty() ? "" : "; its stderr ends: " + said));
  };
  for (;;) {
    if (const std::size_t newline = pending_.find('\n', searched); newline != std::string::npos) {
      std::string answer = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return answer;
    }
    searched = pending_.size();
    if (pending_.size() > options_.line_limit.count)
      return failed(ErrorCode::kResourceExhausted, "the task program wrote more than " + format_bytes(options_.line_limit.count) + " without a line end");
    const int wait = milliseconds_until(end);
    if (wait == 0) return failed(ErrorCode::kTimeout, "the task program did not answer within " + format_duration(deadline));

    std::array<pollfd, 3> polled = {{{stdout_.get(), POLLIN, 0}, {stderr_.get(), POLLIN, 0}, {sent < request.size() ? stdin_.get() : -1, POLLOUT, 0}}};
    if (::poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR)
      return failed(ErrorCode::kUnavailable, std::string("cannot wait for the task program: ") + std::strerror(errno));
    if (polled[1].revents != 0) drain_stderr();
    if ((polled[2].revents & (POLLOUT | POLLERR)) != 0) {
      const ssize_t n = write_quietly(stdin_.get(), std::string_view(request).substr(sent));
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n < 0 && errno == EPIPE) sent = request.size(); // it reads no more; its end or its silence will tell
    }
    if (polled[0].revents == 0) continue;
    std::array<char, 65536> chunk;
    const ssize_t n = ::read(stdout_.get(), chunk.data(), chunk.size());
    if (n > 0) pending_.append(chunk.data(), static_cast<std::size_t>(n));
    if (n == 0) {
      await_end(pid_);
      const std::string how = stop();
      const std::string said = stderr_tail();
      return fail(ErrorCode::kUnavailable, "the task program ended (" + how + ")" + (said.empty() ? "" : "; its stderr ends: " + said));
    }
  }
}

} // namespace troupe::rl
