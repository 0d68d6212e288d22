#include "observe/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

namespace troupe::observe {
namespace {

// Length of the first `size` bytes of the file up to and with their last newline.
Result<off_t> whole_lines(int fd, off_t size, const std::filesystem::path& path) {
  char block[4096];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    const ssize_t got = ::pread(fd, block, static_cast<std::size_t>(end - begin), begin);
    if (got < 0) return tl::unexpected(system_error("cannot read", path, errno));
    for (ssize_t i = got; i > 0; --i)
      if (block[i - 1] == '\n') return begin + i;
    end = begin;
  }
  return 0;
}

double finite(double value) { return std::isfinite(value) ? value : std::nan(""); }  // dumped as null

}  // namespace

Result<JsonlWriter> JsonlWriter::open(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return tl::unexpected(system_error("cannot open", path, errno));
  TROUPE_TRY(const off_t length, whole_lines(file.get(), info.st_size, path));
  if (length != info.st_size && ::ftruncate(file.get(), length) != 0)
    return tl::unexpected(system_error("cannot cut the torn line of", path, errno));
  return JsonlWriter(std::move(file), path);
}

Result<std::string> JsonlWriter::last_line() const {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return tl::unexpected(system_error("cannot read", path_, errno));
  if (info.st_size == 0) return std::string();
  TROUPE_TRY(const off_t begin, whole_lines(file_.get(), info.st_size - 1, path_));
  std::string line(static_cast<std::size_t>(info.st_size - 1 - begin), '\0');
  if (::pread(file_.get(), line.data(), line.size(), begin) != static_cast<ssize_t>(line.size()))
    return tl::unexpected(system_error("cannot read", path_, errno));
  return line;
}

Status JsonlWriter::write(const nlohmann::json& line) {
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text += '\n';
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return tl::unexpected(system_error("cannot write", path_, errno));
  ssize_t written = 0;
  do written = ::write(file_.get(), text.data(), text.size());
  while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return {};
  const int error = written < 0 ? errno : ENOSPC;  // a short write to a file: the disk or the quota ended in the middle
  if (written > 0 && ::ftruncate(file_.get(), info.st_size) != 0)
    return tl::unexpected(system_error("cannot take back a torn line of", path_, errno));
  return tl::unexpected(system_error("cannot write", path_, error));
}

nlohmann::json metrics_line(const MetricBatch& batch) {
  nlohmann::json line = {{"step", batch.step}, {"stage", batch.stage}, {"time", finite(batch.time_s)}};
  for (const Metric& metric : batch.metrics) line[metric.name] = finite(metric.value);
  return line;
}

nlohmann::json sample_line(const SampleRecord& sample) {
  return {{"step", sample.step},
          {"prompt_id", sample.prompt_id},
          {"sample", sample.sample_index},
          {"prompt", sample.prompt},
          {"completion", sample.completion},
          {"reward", finite(sample.reward)},
          {"finish", sample.finish},
          {"tokens", sample.tokens},
          {"version_oldest", sample.version_oldest}};
}

nlohmann::json event_line(std::int64_t unix_ms, std::string_view event, std::string_view actor,
                          const nlohmann::json& fields) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
  const std::string millis = std::to_string(1000 + unix_ms % 1000).substr(1);
  nlohmann::json line = fields.is_object() ? fields : nlohmann::json::object();
  line["time"] = std::string(day) + "." + millis + "Z";
  line["event"] = event;
  line["actor"] = actor;
  return line;
}

}  // namespace troupe::observe
