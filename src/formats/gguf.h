/// @file
/// Reads GGUF files (versions 2 and 3, little-endian): metadata, tensor table, dequantisation to float32.
/// Safe against hostile files: every length is checked against the bytes that are there before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace troupe::formats {

/// The storage types that `dequantise` knows; values are those of the file.
enum class GgufType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30
};

/// "Q4_K"; "type 99" for one this reader does not know.
[[nodiscard]] std::string gguf_type_name(std::uint32_t type);

/// One entry of the tensor table. `bytes` points into the mapping of the file.
struct GgufTensor {
  std::string name;
  std::uint32_t type = 0;  ///< A GgufType, or a number this reader does not know (then `bytes` is empty).
  std::vector<std::int64_t>
      shape;  ///< Row-major, outermost first (the file stores the reverse): a matrix is [out, in].
  std::span<const std::byte> bytes;
  [[nodiscard]] std::int64_t elements() const;
};

/// A metadata value. Integers of every width (and bools in arrays) widen to int64, floats to double; string arrays are
/// views into the mapping.
using GgufValue = std::variant<bool, std::int64_t, double, std::string_view, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string_view>>;

/// An open file. Views stay valid as long as this object lives (moving it keeps them valid).
class GgufFile {
 public:
  /// Errors: as system_error; kCorrupt naming the file and what is wrong (magic, version, truncated, duplicate key or
  /// tensor, overlap, ...).
  [[nodiscard]] static Result<GgufFile> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::uint32_t version() const { return version_; }

  /// Metadata by key; nothing when the key is absent or of another kind.
  [[nodiscard]] const GgufValue* value(std::string_view key) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  /// Integers count as numbers.
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> string(std::string_view key) const;
  [[nodiscard]] std::span<const std::string_view> strings(std::string_view key) const;
  [[nodiscard]] std::span<const std::int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::span<const double> numbers(std::string_view key) const;
  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find(std::string_view name) const;

 private:
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}
  friend class GgufParser;
  MappedFile file_;
  std::filesystem::path path_;
  std::uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// Writes the tensor's `elements()` values as float32, in row-major order.
/// Errors: kInvalidArgument naming the tensor and its storage type when the type is unknown or `out` has another size.
[[nodiscard]] Status dequantise(const GgufTensor& tensor, std::span<float> out);

}  // namespace troupe::formats
