/// @file
/// The log of one worker as it grows, in pieces that fit a message.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troupe::actors {

/// Follows a file that only grows. What is handed out is one stream: `offset` says where in it a piece belongs, so a piece that is sent twice is
/// written once. When the file is far ahead, its middle is left out and a line of the stream says so.
class LogTail {
 public:
  struct Piece {
    std::uint64_t offset = 0;
    std::string text;
  };
  static constexpr std::uint64_t kBehindMax = std::uint64_t{1} << 20;  ///< Bytes unread before the middle is left out.

  /// `where`: for people, named in the line about what was left out.
  LogTail(std::filesystem::path file, std::string where) : file_(std::move(file)), where_(std::move(where)) {}

  /// At most `bytes_max` new bytes; none when there is nothing new or the file cannot be read. Cut at a line's end where there is one.
  [[nodiscard]] std::optional<Piece> next(std::uint64_t bytes_max);
  /// The piece handed out last: for a reader that may have lost it.
  [[nodiscard]] const std::optional<Piece>& last() const { return last_; }

 private:
  std::filesystem::path file_;
  std::string where_;
  std::uint64_t read_ = 0, sent_ = 0;  // of the file, of the stream
  std::optional<Piece> last_;
};

} // namespace troupe::actors
