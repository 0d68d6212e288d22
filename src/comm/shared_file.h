/// @file
/// Memory of another process of this machine, mapped instead of transferred: the owner names an open memory file, the reader opens it through
/// /proc. Nothing is asked of the owner's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace troupe::comm {

/// A range of a memory file that process `pid` holds open.
struct SharedFile {
  std::string machine;          ///< Boot id and network namespace: a path of another machine or container is never opened.
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t device = 0, inode = 0; ///< Of the file, so that a reused pid or descriptor is noticed.
  std::uint64_t offset = 0, bytes = 0; ///< `offset` is a multiple of the page size.
  friend bool operator==(const SharedFile&, const SharedFile&) = default;
};
/// Names a range of an open file of this process. Errors: as system_error.
[[nodiscard]] Result<SharedFile> share_file(int descriptor, std::uint64_t offset, std::uint64_t bytes);

/// Bytes mapped for reading. The owner may change them at any time: whoever reads compares checksums.
class SharedMapping {
 public:
  /// Errors: kUnavailable when the file is of another machine, its owner is gone, or this user may not open it.
  [[nodiscard]] static Result<SharedMapping> open(const SharedFile& file);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  SharedMapping(const std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  const std::byte* data_;
  std::size_t bytes_;
};

/// Memory of its own, in huge pages where the kernel gives them.
class HugeBuffer {
 public:
  /// Errors: as system_error.
  [[nodiscard]] static Result<HugeBuffer> create(std::size_t bytes);
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();
  [[nodiscard]] std::span<std::byte> bytes() { return {data_, bytes_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  HugeBuffer(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  std::size_t bytes_;
};

} // namespace troupe::comm
