#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe {

namespace fs = std::filesystem;

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Error system_error(std::string_view action, const fs::path& path, int error_number) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (error_number == ENOENT) code = ErrorCode::kNotFound;
  if (error_number == EEXIST) code = ErrorCode::kAlreadyExists;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == ENOMEM || error_number == EFBIG) code = ErrorCode::kResourceExhausted;
  return Error{code, "cannot " + std::string(action) + " " + path.string() + ": " + std::strerror(error_number), ""};
}

Result<std::string> read_file(const fs::path& path, std::uint64_t bytes_max) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(system_error("open", path, errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return tl::unexpected(system_error("stat", path, errno));
  if (S_ISDIR(info.st_mode)) return tl::unexpected(system_error("read", path, EISDIR));
  std::string content;
  char chunk[65536];
  for (;;) {
    const ssize_t n = ::read(fd.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected(system_error("read", path, errno));
    if (n == 0) return content;
    content.append(chunk, static_cast<std::size_t>(n));
    if (content.size() > bytes_max)
      return fail(ErrorCode::kInvalidArgument, path.string() + " is longer than " + std::to_string(bytes_max) + " bytes");
  }
}

Status write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected(system_error("write", path, errno));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status sync_folder(const fs::path& folder) {
  const FileDescriptor fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(system_error("open", folder, errno));
  if (::fsync(fd.get()) != 0) return tl::unexpected(system_error("fsync", folder, errno));
  return {};
}

Status write_file_atomic(const fs::path& path, std::string_view content, int mode) {
  const fs::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd.valid()) return tl::unexpected(system_error("create", temporary, errno));
  Status status = write_all(fd.get(), std::as_bytes(std::span(content)), temporary);
  if (status && ::fsync(fd.get()) != 0) status = tl::unexpected(system_error("fsync", temporary, errno));
  fd.reset();
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0) status = tl::unexpected(system_error("rename to", path, errno));
  if (!status) {
    ::unlink(temporary.c_str());
    return status;
  }
  return sync_folder(path.parent_path());
}

Status make_folders(const fs::path& folder) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) return tl::unexpected(system_error("create folder", folder, ec.value()));
  return {};
}

Result<MappedFile> MappedFile::open(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(system_error("open", path, errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return tl::unexpected(system_error("stat", path, errno));
  if (!S_ISREG(info.st_mode)) return tl::unexpected(system_error("map", path, S_ISDIR(info.st_mode) ? EISDIR : EINVAL));
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return tl::unexpected(system_error("map", path, errno));
  return MappedFile(data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

} // namespace troupe
