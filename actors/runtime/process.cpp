#include "actors/runtime/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

namespace troupe::actors {
namespace {

// Runs in the child between fork and exec: only async-signal-safe calls. Writes errno to `report` when it fails.
[[noreturn]] void become(const ProcessSpec& spec, char* const* argv, const char* output, pid_t parent, int report) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const auto n = ::write(report, &error, sizeof error);
    ::_exit(127);
  };
  if (!spec.outlives) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127); // the parent died before the line above
  }
  if (spec.new_session) ::setsid();
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (*output != '\0') {
    const int log = ::open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0 || ::dup2(log, STDOUT_FILENO) < 0 || ::dup2(log, STDERR_FILENO) < 0) give_up();
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) give_up();
  }
  // Move what the child keeps out of the way first, so that the numbers cannot collide.
  constexpr int kBase = 200;
  const int report_fd = ::fcntl(report, F_DUPFD_CLOEXEC, kBase);
  const int exe = ::fcntl(spec.executable, F_DUPFD_CLOEXEC, kBase);
  if (report_fd < 0 || exe < 0) give_up();
  int kept[16];
  std::size_t count = 0;
  for (const auto& [ours, theirs] : spec.descriptors) kept[count++] = ::fcntl(ours, F_DUPFD, kBase);
  count = 0;
  int top = STDERR_FILENO;
  for (const auto& [ours, theirs] : spec.descriptors) {
    if (kept[count] < 0 || ::dup2(kept[count], theirs) < 0) give_up();
    ++count;
    top = std::max(top, theirs);
  }
  ::syscall(SYS_close_range, static_cast<unsigned>(top + 1), ~0U, CLOSE_RANGE_CLOEXEC);
  ::syscall(SYS_execveat, exe, "", argv, environ, AT_EMPTY_PATH);
  give_up();
  ::_exit(127);
}

ExitStatus status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {info.si_status, 0};
  return {0, info.si_status};
}

} // namespace

std::string to_string(ExitStatus status) {
  if (status.signal == 0) return "exit code " + std::to_string(status.code);
  const char* name = ::sigabbrev_np(status.signal);
  return std::string("killed by SIG") + (name != nullptr ? name : std::to_string(status.signal).c_str());
}

Result<FileDescriptor> open_executable(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(system_error("open", path, errno));
  return fd;
}

Result<ChildProcess> start_process(const ProcessSpec& spec) {
  if (spec.descriptors.size() > 16) return fail(ErrorCode::kInvalidArgument, "a child process can be given at most 16 descriptors");
  std::vector<std::string> arguments = spec.argv;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string output = spec.output.string();
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return tl::unexpected(system_error("create", "pipe", errno));
  const FileDescriptor read_end(report[0]);
  FileDescriptor write_end(report[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return tl::unexpected(system_error("fork for", arguments.front(), errno));
  if (pid == 0) become(spec, argv.data(), output.c_str(), parent, report[1]);
  write_end.reset();
  int error = 0;
  if (::read(read_end.get(), &error, sizeof error) == static_cast<ssize_t>(sizeof error)) {
    ::waitpid(pid, nullptr, 0);
    return tl::unexpected(system_error("start", arguments.front(), error));
  }
  FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const int why = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return tl::unexpected(system_error("watch", arguments.front(), why));
  }
  return ChildProcess{pid, std::move(pidfd)};
}

struct ProcessKeeper::State {
  OnExit on_exit;
  std::mutex mutex;
  std::deque<std::function<void()>> queue;
  bool stopping = false;
  FileDescriptor wake{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::map<pid_t, FileDescriptor> children; // guarded by mutex
  std::thread thread;

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake.get(), &one, sizeof one);
  }

  void reap(pid_t pid, int pidfd) {
    siginfo_t info{};
    if (::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED) != 0) return;
    {
      const std::lock_guard lock(mutex);
      children.erase(pid);
    }
    on_exit(pid, status_of(info));
  }

  void run() {
    for (;;) {
      std::vector<pollfd> fds{{wake.get(), POLLIN, 0}};
      std::vector<pid_t> pids;
      std::deque<std::function<void()>> tasks;
      {
        const std::lock_guard lock(mutex);
        if (stopping && queue.empty()) break;
        tasks.swap(queue);
        if (tasks.empty())
          for (const auto& [pid, fd] : children) fds.push_back({fd.get(), POLLIN, 0}), pids.push_back(pid);
      }
      for (auto& task : tasks) task();
      if (!tasks.empty()) continue;
      ::poll(fds.data(), fds.size(), -1);
      std::uint64_t count = 0;
      [[maybe_unused]] const auto n = ::read(wake.get(), &count, sizeof count);
      for (std::size_t i = 0; i < pids.size(); ++i)
        if (fds[i + 1].revents != 0) reap(pids[i], fds[i + 1].fd);
    }
    for (auto& [pid, fd] : children) {
      ::kill(pid, SIGKILL);
      siginfo_t info{};
      ::waitid(P_PIDFD, static_cast<id_t>(fd.get()), &info, WEXITED);
    }
  }
};

ProcessKeeper::ProcessKeeper(OnExit on_exit) : state_(std::make_unique<State>()) {
  state_->on_exit = std::move(on_exit);
  state_->thread = std::thread([s = state_.get()] { s->run(); });
}

ProcessKeeper::~ProcessKeeper() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->post([] {});
  state_->thread.join();
}

Result<pid_t> ProcessKeeper::start(ProcessSpec spec) {
  // Shared: set_value may still be running when the waiter has gone on.
  auto promise = std::make_shared<std::promise<Result<pid_t>>>();
  auto future = promise->get_future();
  state_->post([this, promise, spec = std::move(spec)] {
    auto child = start_process(spec);
    if (!child) return promise->set_value(tl::unexpected(child.error()));
    {
      const std::lock_guard lock(state_->mutex);
      state_->children.emplace(child->pid, std::move(child->pidfd));
    }
    promise->set_value(child->pid);
  });
  return future.get();
}

bool ProcessKeeper::signal(pid_t pid, int signal_number) {
  const std::lock_guard lock(state_->mutex);
  const auto it = state_->children.find(pid);
  if (it == state_->children.end()) return false;
  return ::syscall(SYS_pidfd_send_signal, it->second.get(), signal_number, nullptr, 0) == 0;
}

std::uint64_t process_start_ticks(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return 0;
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream rest(line.substr(end_of_name + 2));
  std::string field;
  for (int i = 3; i <= 22 && rest >> field; ++i) {
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

} // namespace troupe::actors
