/// @file
/// The text of commit.json: the record, the files with their checksums, the table of tensors, and a digest of it all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/layout.h"
#include "checkpoint/record.h"

namespace troupe::checkpoint {

inline constexpr std::string_view kCommitFile = "commit.json";
inline constexpr std::string_view kStateFile = "state.safetensors";

/// One file of a commit. The checksum of the state file is hash64(payload, seed = hash64(header)).
struct FileEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct CommitText {
  Record record;                    ///< Its blobs without their bytes.
  StateLayout layout;               ///< Every tensor with its checksum.
  std::uint64_t payload_begin = 0;  ///< Where the region starts in the state file.
  std::vector<FileEntry> files;     ///< The state file, then one for each blob.
};

[[nodiscard]] std::string encode(const CommitText& commit);
/// Errors: kCorrupt for anything that encode() did not write byte for byte.
[[nodiscard]] Result<CommitText> decode(std::string_view text);
/// Whether both say the same but for the term.
[[nodiscard]] bool same_state(const CommitText& a, const CommitText& b);

/// The file name of a blob.
[[nodiscard]] inline std::string blob_file(std::string_view name) { return std::string(name) + ".blob"; }

/// The safetensors header of a layout, length prefix included and padded to kAlignment. Gaps become tensors
/// "__pad.<n>", as the format allows none.
[[nodiscard]] std::string safetensors_header(const StateLayout& layout);

}  // namespace troupe::checkpoint
