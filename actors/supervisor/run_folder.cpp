#include "actors/supervisor/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "actors/runtime/process.h"
#include "base/json.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Result<FileDescriptor> lock_folder(const fs::path& folder) {
  FileDescriptor lock(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return tl::unexpected(system_error("open", folder / ".lock", errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  const auto point = read_control_point(folder);
  return fail(ErrorCode::kUnavailable, folder.string() + " belongs to a run that is going on" +
                                           (point ? " (supervisor pid " + std::to_string(point->pid) + ")" : std::string()) +
                                           "; stop it first: troupe stop --run " + folder.string());
}

fs::path socket_root() {
  // A unix socket's path holds at most 107 characters; what follows the folder is /<16 digits>/control.sock.
  constexpr std::size_t kRootMax = 107 - 30;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0')
    if (const fs::path root = fs::path(runtime) / "troupe"; root.string().size() <= kRootMax) return root;
  std::error_code ec;
  fs::path temporary = fs::temp_directory_path(ec);
  if (ec) temporary = "/tmp";
  return temporary / ("troupe-" + std::to_string(::getuid()));
}

// Ours alone: a folder that another user made first is not used.
Status make_private(const fs::path& folder) {
  TROUPE_TRY_STATUS(make_folders(folder.parent_path()));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return tl::unexpected(system_error("create folder", folder, errno));
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return tl::unexpected(system_error("stat", folder, errno));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::getuid())
    return fail(ErrorCode::kUnavailable, folder.string() + " is not a folder of this user; set XDG_RUNTIME_DIR to one that is");
  if (::chmod(folder.c_str(), 0700) != 0) return tl::unexpected(system_error("protect", folder, errno));
  return {};
}

} // namespace

bool is_live(const ControlPoint& point) { return point.pid > 0 && point.start_ticks != 0 && process_start_ticks(point.pid) == point.start_ticks; }

Result<ControlPoint> read_control_point(const fs::path& folder) {
  TROUPE_TRY(const auto text, read_file(folder / "control.json"));
  const auto read = [&]() -> Result<ControlPoint> {
    TROUPE_TRY(const json j, parse_json(text, ""));
    ControlPoint point;
    TROUPE_TRY(point.run_id, json_field<std::string>(j, "run_id"));
    TROUPE_TRY(point.run_name, json_field<std::string>(j, "run"));
    TROUPE_TRY(point.folder, json_field<std::string>(j, "folder"));
    TROUPE_TRY(point.socket, json_field<std::string>(j, "socket"));
    TROUPE_TRY(point.pid, json_field<std::int32_t>(j, "pid"));
    TROUPE_TRY(point.start_ticks, json_field<std::uint64_t>(j, "start_ticks"));
    return point;
  };
  auto point = read();
  if (!point) return fail(ErrorCode::kCorrupt, (folder / "control.json").string() + " is damaged: " + point.error().message);
  return point;
}

Result<RunFolder> RunFolder::create(const fs::path& folder, const std::string& run_json) {
  TROUPE_TRY_STATUS(make_folders(folder));
  TROUPE_TRY(auto lock, lock_folder(folder));
  if (fs::exists(folder / "run.json"))
    return fail(ErrorCode::kAlreadyExists, folder.string() + " holds a run already; nothing was changed. Continue it with --resume, or choose another folder with --set run.dir=...");
  TROUPE_TRY_STATUS(make_folders(folder / "logs"));
  TROUPE_TRY_STATUS(make_folders(folder / "checkpoints"));
  TROUPE_TRY_STATUS(write_file_atomic(folder / "run.json", run_json));
  return RunFolder(folder, std::move(lock));
}

Result<RunFolder> RunFolder::reopen(const fs::path& folder) {
  if (!fs::exists(folder / "run.json")) return fail(ErrorCode::kNotFound, folder.string() + " holds no run to resume (no run.json)");
  TROUPE_TRY(auto lock, lock_folder(folder));
  return RunFolder(folder, std::move(lock));
}

Result<fs::path> socket_folder(const std::string& run_id) {
  const fs::path root = socket_root();
  TROUPE_TRY_STATUS(make_private(root));
  TROUPE_TRY_STATUS(make_private(root / run_id));
  return root / run_id;
}

Status write_control_point(const ControlPoint& point) {
  const json j{{"run_id", point.run_id},          {"run", point.run_name}, {"folder", point.folder.string()},
               {"socket", point.socket.string()}, {"pid", point.pid},      {"start_ticks", point.start_ticks}};
  // Beside the socket too: that is how commands find the live runs of this user.
  TROUPE_TRY_STATUS(write_file_atomic(point.socket.parent_path() / "control.json", j.dump(2) + "\n", 0600));
  return write_file_atomic(point.folder / "control.json", j.dump(2) + "\n", 0600);
}

std::vector<ControlPoint> live_runs() {
  std::vector<ControlPoint> runs;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(socket_root(), ec)) {
    const auto point = read_control_point(entry.path());
    if (point && is_live(*point)) runs.push_back(*point);
  }
  return runs;
}

} // namespace troupe::actors
