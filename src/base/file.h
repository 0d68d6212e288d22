/// @file
/// Files: whole reads, atomic durable writes, read-only mappings, owned descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

/// The error of the last failed system call: "cannot open runs/a.json: No such file or directory".
/// kNotFound for ENOENT, kAlreadyExists for EEXIST, kResourceExhausted for ENOSPC/EDQUOT/EFBIG/ENOMEM, else kUnavailable.
[[nodiscard]] Error system_error(std::string_view action, const std::filesystem::path& path, int error_number);

/// The whole file. Errors: as system_error; kInvalidArgument when it is longer than `bytes_max`.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t bytes_max = std::uint64_t{1} << 32);

/// Replaces `path` by `content`: previous or new after a crash, never a mixture. Writes a temporary neighbour, fsyncs it,
/// renames, fsyncs the folder. Errors: as system_error; the temporary file is removed.
[[nodiscard]] Status write_file_atomic(const std::filesystem::path& path, std::string_view content, int mode = 0644);

/// Writes all bytes at the descriptor's position, across short writes and EINTR.
[[nodiscard]] Status write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path_for_errors);

/// Makes the names inside a folder durable.
[[nodiscard]] Status sync_folder(const std::filesystem::path& folder);

/// mkdir -p. Errors: as system_error.
[[nodiscard]] Status make_folders(const std::filesystem::path& folder);

/// A read-only mapping of a whole file; empty files map to an empty span.
class MappedFile {
 public:
  [[nodiscard]] static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  [[nodiscard]] std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  MappedFile(void* data, std::size_t size) : data_(data), size_(size) {}
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace troupe
