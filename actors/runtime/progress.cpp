#include "actors/runtime/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace troupe::actors {

struct WorkProgress::Page {
  std::atomic<std::uint64_t> moves;
  std::atomic<std::uint32_t> busy;
};

namespace {
constexpr std::size_t kBytes = 4096;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");
} // namespace

void WorkProgress::Unmap::operator()(Page* page) const { ::munmap(page, kBytes); }

Result<FileDescriptor> WorkProgress::create_file() {
  FileDescriptor file(::memfd_create("troupe-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return tl::unexpected(system_error("create", "the memory file for progress", errno));
  if (::ftruncate(file.get(), kBytes) != 0 || ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return tl::unexpected(system_error("size", "the memory file for progress", errno));
  return file;
}

Result<WorkProgress> WorkProgress::map(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return tl::unexpected(system_error("look at", "the memory file for progress", errno));
  if (info.st_size != static_cast<off_t>(kBytes)) return fail(ErrorCode::kCorrupt, "the memory file for progress has another size");
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return tl::unexpected(system_error("map", "the memory file for progress", errno));
  return WorkProgress(static_cast<Page*>(memory)); // all zero: the file is new, or in use and right
}

void WorkProgress::begin() {
  page_->moves.fetch_add(1, std::memory_order_relaxed);
  page_->busy.store(1, std::memory_order_release);
}

void WorkProgress::move() { page_->moves.fetch_add(1, std::memory_order_relaxed); }

void WorkProgress::end() { page_->busy.store(0, std::memory_order_release); }

WorkReading WorkProgress::read() const {
  const bool busy = page_->busy.load(std::memory_order_acquire) != 0;
  return {page_->moves.load(std::memory_order_relaxed), busy};
}

} // namespace troupe::actors
