/// @file
/// TensorBoard event files: TFRecord framing (masked CRC32C) round Event protocol buffers with scalar summaries.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "observe/metrics.h"

namespace troupe::observe {

/// CRC-32C (Castagnoli). Source: RFC 3720, B.4.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

/// A TFRecord: length, masked checksum of the length, data, masked checksum of the data.
[[nodiscard]] std::string tfrecord(std::string_view data);
/// The serialised Event of one step; empty names and values that are not finite are left out.
[[nodiscard]] std::string scalar_event(double wall_time_s, std::int64_t step, std::span<const Metric> metrics);

/// Writes `events.out.tfevents.<seconds>.<host>.<pid>` into a folder. Every record is one write(2). Not thread-safe.
class TensorboardWriter {
 public:
  /// Creates the folder and a new file. Errors: as system_error.
  [[nodiscard]] static Result<TensorboardWriter> create(const std::filesystem::path& folder, double wall_time_s);
  [[nodiscard]] Status write(const MetricBatch& batch, double wall_time_s);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  TensorboardWriter(FileDescriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  FileDescriptor file_;
  std::filesystem::path path_;
};

/// A scalar read back.
struct ScalarPoint {
  std::int64_t step = 0;
  double wall_time_s = 0;
  std::string name;
  float value = 0;
};
/// Reads the scalars of an event file. Errors: kCorrupt naming the byte where a checksum or length is wrong.
[[nodiscard]] Result<std::vector<ScalarPoint>> read_event_file(const std::filesystem::path& path);

}  // namespace troupe::observe
