#include "bench/helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace troupe::bench {
namespace {

constexpr int kReportDescriptor = 3;
constexpr Duration kReadyDeadline = std::chrono::minutes(2);

struct Role {
  std::string_view name;
  Status (*serve)(const std::filesystem::path&);
};
constexpr std::array kRoles = {Role{"serve-weights", serve_weights}, Role{"serve-control", serve_control}};

// One line, or what came until the other end closed.
Result<std::string> read_line(int fd, Duration limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  std::string line;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return fail(ErrorCode::kTimeout, "the second process was not ready in time");
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left.count())) <= 0) continue;
    char c = 0;
    if (::read(fd, &c, 1) != 1) return fail(ErrorCode::kUnavailable, "the second process ended before it was ready");
    if (c == '\n') return line;
    line += c;
  }
}

}  // namespace

Result<TemporaryFolder> TemporaryFolder::create() {
  std::string name = (std::filesystem::temp_directory_path() / "troupe-bench.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return tl::unexpected(system_error("create", name, errno));
  return TemporaryFolder(name);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ec;
  if (!path_.empty()) std::filesystem::remove_all(path_, ec);
}

Child::~Child() {
  if (process_.pid < 0) return;
  ::kill(process_.pid, SIGKILL);
  ::waitpid(process_.pid, nullptr, 0);
}

Result<actors::ExitStatus> Child::wait(Duration limit) {
  pollfd ended{process_.pidfd.get(), POLLIN, 0};
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  if (::poll(&ended, 1, static_cast<int>(milliseconds)) <= 0)
    return fail(ErrorCode::kTimeout, "the program did not end within " + format_duration(limit));
  int status = 0;
  ::waitpid(process_.pid, &status, 0);
  process_.pid = -1;
  if (WIFSIGNALED(status)) return actors::ExitStatus{0, WTERMSIG(status)};
  return actors::ExitStatus{WEXITSTATUS(status), 0};
}

Result<Helper> start_helper(std::string_view role, const std::filesystem::path& folder) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return tl::unexpected(system_error("open", "a pipe", errno));
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  TROUPE_TRY(const FileDescriptor program, actors::open_executable("/proc/self/exe"));
  actors::ProcessSpec spec;
  spec.executable = program.get();
  spec.argv = {"troupe-bench", std::string(role), folder.string()};
  spec.descriptors = {{writer.get(), kReportDescriptor}};
  TROUPE_TRY(auto process, actors::start_process(spec));
  Helper helper{Child(std::move(process)), ""};
  writer.reset();
  TROUPE_TRY(helper.says, read_line(reader.get(), kReadyDeadline));
  return helper;
}

bool is_helper(std::string_view role) {
  for (const Role& r : kRoles)
    if (r.name == role) return true;
  return false;
}

int run_helper(std::string_view role, const std::filesystem::path& folder) {
  for (const Role& r : kRoles) {
    if (r.name != role) continue;
    const Status done = r.serve(folder);
    std::fprintf(stderr, "%s: %s\n", std::string(role).c_str(), done ? "ended" : done.error().to_string().c_str());
  }
  return 1;
}

void serve_until_killed(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const auto n = ::write(kReportDescriptor, text.data(), text.size());
  for (;;) ::pause();
}

}  // namespace troupe::bench
