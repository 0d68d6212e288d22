#include "comm/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"

namespace troupe::comm {
namespace {

Result<std::string> this_machine() {
  TROUPE_TRY(std::string id, read_file("/proc/sys/kernel/random/boot_id"));
  char space[64] = "";
  if (::readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) return tl::unexpected(system_error("read", "/proc/self/ns/net", errno));
  return id + space;
}

} // namespace

Result<SharedFile> share_file(int descriptor, std::uint64_t offset, std::uint64_t bytes) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return tl::unexpected(system_error("look at", "a memory file", errno));
  TROUPE_TRY(auto machine, this_machine());
  return SharedFile{std::move(machine), ::getpid(), descriptor, info.st_dev, info.st_ino, offset, bytes};
}

Result<SharedMapping> SharedMapping::open(const SharedFile& file) {
  const auto unavailable = [](const std::string& why) { return fail(ErrorCode::kUnavailable, "the memory file cannot be mapped: " + why); };
  const auto here = this_machine();
  if (!here || *here != file.machine) return unavailable("it is of another machine");
  const std::string path = "/proc/" + std::to_string(file.pid) + "/fd/" + std::to_string(file.descriptor);
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return unavailable(system_error("open", path, errno).message);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_dev != file.device || info.st_ino != file.inode) return unavailable(path + " is another file by now");
  if (file.bytes == 0 || static_cast<std::uint64_t>(info.st_size) < file.offset || static_cast<std::uint64_t>(info.st_size) - file.offset < file.bytes)
    return unavailable(path + " is shorter than that");
  void* data = ::mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), static_cast<off_t>(file.offset));
  if (data == MAP_FAILED) return unavailable(system_error("map", path, errno).message);
  return SharedMapping(static_cast<const std::byte*>(data), file.bytes);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

Result<HugeBuffer> HugeBuffer::create(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return tl::unexpected(system_error("reserve", "memory", errno));
  (void)::madvise(data, size, MADV_HUGEPAGE); // a wish
  return HugeBuffer(static_cast<std::byte*>(data), bytes);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) ::munmap(data_, std::max<std::size_t>(bytes_, 1));
}

} // namespace troupe::comm
