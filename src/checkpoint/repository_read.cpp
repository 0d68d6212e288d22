#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "checkpoint/commit_file.h"
#include "checkpoint/repository.h"
#include "formats/dtype.h"

namespace troupe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCommitFileMax = std::uint64_t{1} << 30;

auto damaged(const fs::path& path, const std::string& why) {
  return fail(ErrorCode::kCorrupt, path.string() + " is damaged: " + why);
}

// Neither links nor pipes are followed out of a commit.
Status expect_file(const fs::path& path, std::optional<std::uint64_t> bytes) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return tl::unexpected(system_error("read", path, errno));
  if (!S_ISREG(info.st_mode)) return damaged(path, "not a plain file");
  if (bytes && static_cast<std::uint64_t>(info.st_size) != *bytes)
    return damaged(path, std::to_string(info.st_size) + " bytes long instead of " + std::to_string(*bytes));
  return {};
}

Status check_state(const CommitText& commit, std::span<const std::byte> file, const fs::path& path) {
  const auto region = file.subspan(commit.payload_begin);
  if (hash64(region, hash64(file.first(commit.payload_begin))) == commit.files[0].checksum) return {};
  for (const TensorEntry& tensor : commit.layout.tensors)
    if (hash64(region.subspan(tensor.offset, tensor.bytes)) != *tensor.checksum)
      return damaged(path, "tensor " + tensor.name + " does not match its checksum");
  return damaged(path, "its header does not match its checksum");
}

std::string described(const TensorEntry& tensor) { return tensor.dtype + " " + formats::shape_text(tensor.shape); }

}  // namespace

Result<std::vector<CommitName>> Repository::list() const {
  std::vector<CommitName> commits;
  std::error_code error;
  fs::directory_iterator entry(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return commits;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (const auto version = parse_commit_name(entry->path().filename().string()))
      commits.push_back({*version, entry->path()});
  if (error) return tl::unexpected(system_error("list", folder_, error.value()));
  std::sort(commits.begin(), commits.end(),
            [](const CommitName& a, const CommitName& b) { return a.version > b.version; });
  return commits;
}

Result<Loaded> Repository::load(const fs::path& commit_folder) const {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(commit_folder, error)))
    return fail(ErrorCode::kNotFound, commit_folder.string() + " is not a checkpoint folder");
  const fs::path commit_path = commit_folder / kCommitFile;
  TROUPE_TRY_STATUS(expect_file(commit_path, std::nullopt));
  TROUPE_TRY(const std::string text, read_file(commit_path, kCommitFileMax));
  auto decoded = decode(text);
  if (!decoded) return damaged(commit_path, decoded.error().message);
  CommitText& commit = *decoded;
  if (commit_name(commit.record.version) != commit_folder.filename())
    return damaged(commit_path, "it belongs to " + commit_name(commit.record.version));

  for (std::size_t i = 0; i < commit.record.blobs.size(); ++i) {
    const FileEntry& file = commit.files[i + 1];
    TROUPE_TRY_STATUS(expect_file(commit_folder / file.name, file.bytes));
    TROUPE_TRY(commit.record.blobs[i].bytes, read_file(commit_folder / file.name, file.bytes));
    if (hash64(commit.record.blobs[i].bytes) != file.checksum)
      return damaged(commit_folder / file.name, "it does not match its checksum");
  }
  const fs::path state_path = commit_folder / kStateFile;
  TROUPE_TRY_STATUS(expect_file(state_path, commit.files[0].bytes));
  TROUPE_TRY(MappedFile state, MappedFile::open(state_path));
  if (state.bytes().size() != commit.files[0].bytes) return damaged(state_path, "it changes while it is read");
  TROUPE_TRY_STATUS(check_state(commit, state.bytes(), state_path));
  return Loaded(std::move(commit.record), std::move(commit.layout), std::move(state), commit.payload_begin,
                commit_folder);
}

Status Repository::verify(const fs::path& commit) const {
  auto loaded = load(commit);
  if (!loaded) return tl::unexpected(std::move(loaded).error());
  return {};
}

Result<Newest> Repository::newest_valid() const {
  TROUPE_TRY(const auto commits, list());
  Newest newest;
  for (const CommitName& commit : commits) {
    auto loaded = load(commit.folder);
    if (loaded) {
      newest.loaded.emplace(std::move(*loaded));
      return newest;
    }
    newest.skipped.push_back({commit.folder, loaded.error().message});
  }
  return newest;
}

std::span<const std::byte> Loaded::tensor(std::string_view name) const {
  const auto index = layout_.find(name);
  if (!index) return {};
  return region().subspan(layout_.tensors[*index].offset, layout_.tensors[*index].bytes);
}

Status Loaded::copy_to(const StateLayout& target, std::span<std::byte> to) const {
  if (to.size() < target.bytes)
    return fail(ErrorCode::kInvalidArgument, "a region of " + std::to_string(to.size()) +
                                                 " bytes cannot take a state of " + std::to_string(target.bytes));
  std::string differences;
  const auto note = [&differences](const std::string& text) {
    differences += (differences.empty() ? "" : "; ") + text;
  };
  std::vector<const TensorEntry*> sources;
  for (const TensorEntry& tensor : target.tensors) {
    const auto index = layout_.find(tensor.name);
    const TensorEntry* source = index ? &layout_.tensors[*index] : nullptr;
    sources.push_back(source);
    if (source == nullptr)
      note(tensor.name + " is missing");
    else if (source->dtype != tensor.dtype || source->shape != tensor.shape)
      note(tensor.name + " is " + described(*source) + " instead of " + described(tensor));
  }
  for (const TensorEntry& tensor : layout_.tensors)
    if (!target.find(tensor.name)) note(tensor.name + " is not wanted");
  if (!differences.empty())
    return fail(ErrorCode::kInvalidArgument,
                "the state in " + folder_.string() + " is not the one of this run: " + differences);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i]->bytes > 0)
      std::memcpy(to.data() + target.tensors[i].offset, region().data() + sources[i]->offset, sources[i]->bytes);
  return {};
}

}  // namespace troupe::checkpoint
