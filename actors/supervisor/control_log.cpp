#include "actors/supervisor/control_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

using nlohmann::json;

// "<16 hexadecimal digits of XXH3> <JSON>\n"
std::string encode(const protocol::control::Record& record) {
  const std::string text = protocol::to_json(record).dump();
  return hex64(hash64(std::string_view(text))) + " " + text + "\n";
}

Result<protocol::control::Record> decode(std::string_view line) {
  if (line.size() < 18 || line[16] != ' ') return fail(ErrorCode::kCorrupt, "it is no record");
  const std::string_view text = line.substr(17);
  if (hex64(hash64(text)) != line.substr(0, 16)) return fail(ErrorCode::kCorrupt, "its checksum is wrong");
  const json record = json::parse(text, nullptr, false);
  if (record.is_discarded()) return fail(ErrorCode::kCorrupt, "it is not JSON");
  return protocol::record_from_json(record);
}

struct Replayed {
  protocol::control::State state;
  std::size_t good = 0, bytes = 0; // whole records, of the file
};

Result<Replayed> replay(const std::filesystem::path& path) {
  Replayed replayed;
  std::string content;
  if (std::filesystem::exists(path)) {
    TROUPE_TRY(content, read_file(path));
  }
  std::size_t& good = replayed.good;
  for (std::size_t line = 1; good < content.size(); ++line) {
    const auto end = content.find('\n', good);
    if (end == std::string::npos) break; // torn by a crash: cut off below
    const auto record = decode(std::string_view(content).substr(good, end - good));
    const bool last = end + 1 == content.size();
    if (!record && last) break;
    if (!record) return fail(ErrorCode::kCorrupt, path.string() + ":" + std::to_string(line) + ": the control log is damaged: " + record.error().message);
    if (const auto applied = protocol::apply(replayed.state, *record); !applied)
      return fail(ErrorCode::kCorrupt, path.string() + ":" + std::to_string(line) + ": the control log is damaged: " + applied.error().message);
    good = end + 1;
  }
  replayed.bytes = content.size();
  return replayed;
}

} // namespace

Result<protocol::control::State> ControlLog::read(const std::filesystem::path& path) {
  return replay(path).map([](Replayed replayed) { return std::move(replayed.state); });
}

Result<ControlLog::Opened> ControlLog::open(const std::filesystem::path& path) {
  TROUPE_TRY(Replayed replayed, replay(path));
  Opened opened;
  opened.state = std::move(replayed.state);
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return tl::unexpected(system_error("open", path, errno));
  if (replayed.good < replayed.bytes && ::ftruncate(file.get(), static_cast<off_t>(replayed.good)) != 0) return tl::unexpected(system_error("repair", path, errno));
  opened.log.reset(new ControlLog(std::move(file), path));
  opened.log->state_ = opened.state;
  opened.log->bytes_ = replayed.good;
  return opened;
}

Status ControlLog::write(const protocol::control::Record& record) {
  protocol::control::State next = state_;
  if (const auto applied = protocol::apply(next, record); !applied) // it would make the log unreadable
    return fail(ErrorCode::kInvalidArgument, "the control log does not take a record: " + applied.error().message);
  const std::string line = encode(record);
  Status done = write_all(file_.get(), std::as_bytes(std::span(line)), path_);
  if (done && protocol::must_be_durable(record) && ::fdatasync(file_.get()) != 0) done = tl::unexpected(system_error("fsync", path_, errno));
  if (!done) { // half a line would spoil the next one
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) log_error(system_error("repair", path_, errno).to_string());
    return done;
  }
  state_ = std::move(next);
  bytes_ += line.size();
  if (bytes_ >= compact_at_) compact();
  return {};
}

void ControlLog::append(const protocol::control::Record& record) {
  const Status done = write(record);
  if (done || std::exchange(complained_, true)) return;
  log_error(done.error().to_string() + "; a restart of the supervisor may not know of what follows");
}

Status ControlLog::append_or_fail(const protocol::control::Record& record) {
  auto done = write(record);
  if (!done) return fail(done.error().code, done.error().message + "; make room in the run folder and continue it with --resume");
  return {};
}

void ControlLog::compact() {
  std::string text;
  for (const auto& record : protocol::records_of(state_)) text += encode(record);
  compact_at_ = text.size() + kCompactBytes;
  if (const auto written = write_file_atomic(path_, text, 0644); !written) return log_warning("the control log grows on: " + written.error().to_string());
  FileDescriptor file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.valid()) return log_error(system_error("open", path_, errno).to_string() + "; a restart of the supervisor may not know of what follows");
  file_ = std::move(file);
  bytes_ = text.size();
}

} // namespace troupe::actors
