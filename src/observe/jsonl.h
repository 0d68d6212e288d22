/// @file
/// JSON lines that are never torn: metrics.jsonl, samples.jsonl, events.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "observe/metrics.h"

namespace troupe::observe {

/// Appends lines, each with one write(2) to an O_APPEND descriptor. A line that does not fit on the disk is taken back
/// whole. One writer per file; not thread-safe.
class JsonlWriter {
 public:
  /// Opens or creates the file. A torn last line (a crash in the middle of a write) is cut off.
  /// Errors: as system_error.
  [[nodiscard]] static Result<JsonlWriter> open(const std::filesystem::path& path);
  /// Invalid UTF-8 is replaced, numbers that are not finite become null. Errors: kResourceExhausted when the disk is
  /// full.
  [[nodiscard]] Status write(const nlohmann::json& line);
  /// The newest line without its newline, empty in an empty file: where a writer that was killed has stopped.
  [[nodiscard]] Result<std::string> last_line() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  JsonlWriter(FileDescriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  FileDescriptor file_;
  std::filesystem::path path_;
};

/// {"step":3,"stage":"rl","time":1.5,"reward/mean":0.25,...}: one object per step.
[[nodiscard]] nlohmann::json metrics_line(const MetricBatch& batch);

/// One sampled completion, for people: what was asked, what came, what it earned.
struct SampleRecord {
  std::uint64_t step = 0;
  std::uint64_t prompt_id = 0;
  std::uint32_t sample_index = 0;
  std::string prompt;
  std::string completion;
  double reward = 0;
  std::string finish;                ///< "stop", "length", ...
  std::uint64_t tokens = 0;          ///< Of the completion.
  std::uint64_t version_oldest = 0;  ///< Policy step of its oldest token.
};
[[nodiscard]] nlohmann::json sample_line(const SampleRecord& sample);

/// {"time":"2026-01-31T12:00:00.123Z","event":"worker_died","actor":"rollout/1",...fields}. `unix_ms` is milliseconds
/// since 1970.
[[nodiscard]] nlohmann::json event_line(std::int64_t unix_ms, std::string_view event, std::string_view actor,
                                        const nlohmann::json& fields);

}  // namespace troupe::observe
