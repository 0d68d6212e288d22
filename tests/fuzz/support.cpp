#include "fuzz/support.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#if __has_include(<sanitizer/allocator_interface.h>)
#include <sanitizer/allocator_interface.h>
#else // gcc has the functions in its runtime and does not install the header
extern "C" {
std::size_t __sanitizer_get_allocated_size(const volatile void* pointer);
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, std::size_t), void (*free_hook)(const volatile void*));
}
#endif
#endif

namespace {

// Bytes that were given out and did not come back, and the most there were.
std::atomic<std::size_t> live{std::size_t{1} << 40}, most{0};  // what was there before does not make it negative

void taken(std::size_t bytes) {
  const std::size_t now = live += bytes;
  if (now > most) most = now;
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__

namespace {

void on_malloc(const volatile void*, std::size_t size) { taken(size); }
void on_free(const volatile void* pointer) { live -= __sanitizer_get_allocated_size(pointer); }
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

}  // namespace

#else

namespace {

void* counted(void* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  taken(::malloc_usable_size(pointer));
  return pointer;
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  live -= ::malloc_usable_size(pointer);
  std::free(pointer);
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(std::max<std::size_t>(size, 1))); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(step, (std::max<std::size_t>(size, 1) + step - 1) / step * step));
}
void operator delete(void* pointer) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { give_back(pointer); }

#endif

namespace troupe::fuzz {

namespace fs = std::filesystem;

MemoryFile::MemoryFile(std::string_view content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  TROUPE_CHECK(fd_.valid() && write_all(fd_.get(), std::as_bytes(std::span(content)), "memory file"), "out of memory");
}

fs::path MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

const fs::path& scratch_folder() {
  struct Folder {
    fs::path path = fs::path(fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()) /
                    ("troupe-fuzz." + std::to_string(::getpid()));
    Folder() { TROUPE_CHECK(make_folders(path), "no place for files"); }
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path;
}

void check_error(const Error& error, std::initializer_list<ErrorCode> codes) {
  const std::string text = error.to_string();
  TROUPE_CHECK(std::find(codes.begin(), codes.end(), error.code) != codes.end(), "an error of an unexpected kind: " + text);
  TROUPE_CHECK(!error.message.empty(), "an error without a word");
  TROUPE_CHECK(std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }) && text.size() < 10'000,
               "an error is one line");
}

MemoryBound::MemoryBound(std::size_t input_bytes, std::size_t base_bytes, std::size_t factor)
    : before_(live), allowed_(base_bytes + factor * input_bytes) {
  most = before_;
}

MemoryBound::~MemoryBound() {
  const std::size_t bytes = most - before_;
  TROUPE_CHECK(bytes <= allowed_, "took " + std::to_string(bytes) + " bytes of memory, " + std::to_string(allowed_) + " are allowed");
}

}  // namespace troupe::fuzz
