/// @file
/// What the fuzz targets share: the input as a file, the rules for errors, the bound on memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "base/result.h"

/// Every target defines it: libFuzzer calls it with made-up inputs, replay.cpp with the kept ones. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace troupe::fuzz {

[[nodiscard]] inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file that has no name and goes away with the object.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content);
  [[nodiscard]] std::filesystem::path path() const;

 private:
  FileDescriptor fd_;
};

/// A folder of this process in memory, made once.
[[nodiscard]] const std::filesystem::path& scratch_folder();

/// Aborts unless the error is one of `codes` and reads as one line of text.
void check_error(const Error& error, std::initializer_list<ErrorCode> codes);

/// The value, or nothing after the error was checked.
template <class T>
[[nodiscard]] bool is_good(const Result<T>& result, std::initializer_list<ErrorCode> codes) {
  if (!result) check_error(result.error(), codes);
  return result.has_value();
}

/// Aborts at its end when more memory was taken meanwhile than `base + factor * input` bytes: nobody allocates what a
/// length in the input merely claims.
class MemoryBound {
 public:
  MemoryBound(std::size_t input_bytes, std::size_t base_bytes, std::size_t factor);
  ~MemoryBound();
  MemoryBound(const MemoryBound&) = delete;

 private:
  std::size_t before_, allowed_;
};

}  // namespace troupe::fuzz
