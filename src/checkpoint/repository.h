/// @file
/// The commits of one run in one folder: written whole or not at all, checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/layout.h"
#include "checkpoint/record.h"

namespace troupe::checkpoint {

/// A commit by its name; nothing inside was looked at.
struct CommitName {
  PolicyVersion version;
  std::filesystem::path folder;
};

/// A commit that was passed over, and why.
struct Skipped {
  std::filesystem::path folder;
  std::string reason;
};

/// A written commit.
struct Committed {
  PolicyVersion version;
  std::filesystem::path folder;
  std::uint64_t bytes = 0;         ///< Of all files.
  bool existed = false;            ///< The same commit was already there.
  std::vector<Skipped> kept_back;  ///< Old commits that retention could not delete.
};

/// A commit whose bytes were all checked. The state stays valid when the commit is deleted meanwhile (a mapping).
class Loaded {
 public:
  Loaded(Record record, StateLayout layout, MappedFile file, std::uint64_t payload_begin, std::filesystem::path folder)
      : record_(std::move(record)),
        layout_(std::move(layout)),
        file_(std::move(file)),
        payload_begin_(payload_begin),
        folder_(std::move(folder)) {}

  [[nodiscard]] const Record& record() const { return record_; }
  [[nodiscard]] const StateLayout& layout() const { return layout_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The whole region, laid out as layout() says.
  [[nodiscard]] std::span<const std::byte> region() const {
    return file_.bytes().subspan(payload_begin_, layout_.bytes);
  }
  /// The bytes of one tensor; empty when there is none of that name.
  [[nodiscard]] std::span<const std::byte> tensor(std::string_view name) const;
  /// Copies into a region of another order. First everything is compared, then copied: on an error nothing was written.
  /// Errors: kInvalidArgument listing missing, extra and different tensors.
  [[nodiscard]] Status copy_to(const StateLayout& target, std::span<std::byte> region) const;

 private:
  Record record_;
  StateLayout layout_;
  MappedFile file_;
  std::uint64_t payload_begin_;
  std::filesystem::path folder_;
};

/// The newest commit that holds, and the newer ones that do not.
struct Newest {
  std::optional<Loaded> loaded;
  std::vector<Skipped> skipped;
};

/// "step-<step>.e<epoch>" and back.
[[nodiscard]] std::string commit_name(PolicyVersion version);
[[nodiscard]] std::optional<PolicyVersion> parse_commit_name(std::string_view name);

/// `<run.dir>/checkpoints`. One writer at a time; any number of readers.
///
/// A commit is a folder `step-<step>.e<epoch>` with `state.safetensors`, one `<name>.blob` each and `commit.json`,
/// which is written last and names size and checksum of all the others. It is built as `.tmp-...`, made durable and
/// then renamed, so that after a crash at any byte it is there completely or not at all. Nothing in it depends on time
/// or process: equal states have equal bytes.
class Repository {
 public:
  explicit Repository(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Writes one commit straight from `region`, then applies retention (see retain). Blocking: until durable.
  /// Errors: kInvalidArgument (layout, region or a blob's name), kCorrupt (a tensor differs from the checksum its
  /// writer vouched for), kFenced (a commit of a newer epoch exists), kAlreadyExists (another state has this version),
  /// kResourceExhausted (disk full), kUnavailable. On an error the older commits are untouched and nothing half-written
  /// is left.
  [[nodiscard]] Result<Committed> write(const StateLayout& layout, std::span<const std::byte> region,
                                        const Record& record, int keep = 0);

  /// By version, newest first; names only. A missing folder is an empty list.
  [[nodiscard]] Result<std::vector<CommitName>> list() const;
  /// Reads and checks every byte. Errors: kNotFound, kCorrupt naming file and tensor.
  [[nodiscard]] Result<Loaded> load(const std::filesystem::path& commit) const;
  [[nodiscard]] Status verify(const std::filesystem::path& commit) const;
  /// Goes from new to old until one holds.
  [[nodiscard]] Result<Newest> newest_valid() const;
  /// Deletes all but the `keep` newest commits (0 = keeps all); only if the newest one holds. Returns what could not be
  /// deleted.
  [[nodiscard]] std::vector<Skipped> retain(int keep) const;
  /// Removes what killed writers and deletions left. Call when no writer is alive.
  [[nodiscard]] Status sweep() const;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace troupe::checkpoint
