#include "actors/node/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/units.h"

namespace troupe::actors {

std::optional<LogTail::Piece> LogTail::next(std::uint64_t bytes_max) {
  const FileDescriptor file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return std::nullopt;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  Piece piece{sent_, {}};
  if (size > read_ + kBehindMax) {
    const std::uint64_t left_out = size - bytes_max - read_;
    piece.text = "\n[" + format_bytes(left_out) + " left out here; the whole log: " + where_ + "]\n";
    read_ += left_out;
  }
  const std::size_t note = piece.text.size();
  piece.text.resize(note + std::min(bytes_max, size > read_ ? size - read_ : 0));
  const ssize_t got = ::pread(file.get(), piece.text.data() + note, piece.text.size() - note, static_cast<off_t>(read_));
  piece.text.resize(note + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (read_ + static_cast<std::uint64_t>(std::max<ssize_t>(got, 0)) < size)
    if (const auto end = piece.text.rfind('\n'); end != std::string::npos && end + 1 > note) piece.text.resize(end + 1);
  if (piece.text.empty()) return std::nullopt;
  read_ += piece.text.size() - note;
  sent_ += piece.text.size();
  last_ = piece;
  return piece;
}

} // namespace troupe::actors
