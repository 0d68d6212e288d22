/// @file
/// Reads and writes safetensors: one file, or shards with a model.safetensors.index.json.
/// The reader is safe against hostile files: lengths, ranges, shapes, types and names are checked before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/units.h"
#include "formats/dtype.h"

namespace troupe::formats {

/// A named array of bytes: what a file holds, or what is to be written.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;   ///< Row-major, outermost first; empty for a scalar.
  std::span<const std::byte> bytes;  ///< Not owned: points into the mapping, or at the caller's memory.
  [[nodiscard]] std::int64_t elements() const;
};

/// An open file. Views stay valid as long as this object lives (moving it keeps them valid).
class SafetensorsFile {
 public:
  /// Errors: as system_error; kCorrupt naming the file and what is wrong (header beyond the file, not JSON, nested,
  /// duplicate name, unknown type, range that leaves the file, overlaps another or disagrees with shape x type, bytes
  /// that belong to no tensor).
  [[nodiscard]] static Result<SafetensorsFile> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In the order of their bytes.
  [[nodiscard]] std::span<const TensorView> tensors() const { return tensors_; }
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  /// The file's "__metadata__".
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  friend class SafetensorsParser;
  MappedFile file_;
  std::filesystem::path path_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

/// The weights of a model folder: model.safetensors, or the shards that model.safetensors.index.json names.
class SafetensorsFolder {
 public:
  /// Errors: kNotFound when the folder holds neither; kCorrupt when the index is not what it should be, names a file
  /// outside the folder, or places a tensor in a shard that does not hold it; what SafetensorsFile::open says of a
  /// shard.
  [[nodiscard]] static Result<SafetensorsFolder> open(const std::filesystem::path& folder);

  [[nodiscard]] const TensorView* find(std::string_view name) const;
  /// Every tensor, sorted by name.
  [[nodiscard]] std::vector<const TensorView*> tensors() const;

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*, std::less<>> index_;
};

/// Longest header that is read, here and by the format's own library; none longer is written.
inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

/// Writes one file: previous or new after a crash, never a mixture. Tensors keep their order.
/// Errors: kInvalidArgument for a duplicate name or bytes that disagree with shape x type, or a header
/// that no reader takes; as system_error.
[[nodiscard]] Status write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                                       const std::map<std::string, std::string>& metadata = {});

/// Writes `folder`/model.safetensors when everything fits into `shard_max` bytes, otherwise
/// model-00001-of-000NN.safetensors and so on, and the index last. A tensor is never split. Errors: as
/// write_safetensors.
[[nodiscard]] Status write_safetensors_folder(const std::filesystem::path& folder, std::span<const TensorView> tensors,
                                              Bytes shard_max);

}  // namespace troupe::formats
