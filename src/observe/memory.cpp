#include "observe/memory.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>

#include "base/file.h"

namespace troupe::observe {

Result<std::uint64_t> parse_pss(std::string_view text) {
  constexpr std::string_view kKey = "Pss:";
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(kKey)) continue;
    line.remove_prefix(std::min(line.find_first_of("0123456789"), line.size()));
    std::uint64_t kib = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), kib).ec == std::errc{}) return kib * 1024;
  }
  return fail(ErrorCode::kCorrupt, "smaps_rollup has no Pss line");
}

Result<std::uint64_t> process_pss(pid_t pid) {
  const std::filesystem::path path = "/proc/" + std::to_string(pid) + "/smaps_rollup";
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return tl::unexpected(system_error("cannot open", path, errno));
  char text[4096];  // the file has about 25 short lines
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got < 0) {  // ESRCH: the process ended in between
    if (errno == ESRCH) return fail(ErrorCode::kNotFound, "process " + std::to_string(pid) + " is gone");
    return tl::unexpected(system_error("cannot read", path, errno));
  }
  if (got == 0) return fail(ErrorCode::kNotFound, "process " + std::to_string(pid) + " is gone");
  return parse_pss(std::string_view(text, static_cast<std::size_t>(got)));
}

std::uint64_t MemorySampler::sample(std::span<const pid_t> pids) {
  std::uint64_t sum = 0;
  for (const pid_t pid : pids) sum += process_pss(pid).value_or(0);
  peak_ = std::max(peak_, sum);
  return sum;
}

}  // namespace troupe::observe
