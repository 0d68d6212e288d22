#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/hash.h"
#include "checkpoint/commit_file.h"
#include "checkpoint/repository.h"

namespace troupe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kTrash = ".trash-";

// Removes a half-written folder unless it was renamed into place.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  fs::path path_;
};

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// A new file of these pieces, durable. The space is asked for first, so that a full disk is noticed before the first
// byte.
Status write_durable(const fs::path& path, std::initializer_list<std::span<const std::byte>> pieces) {
  const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.valid()) return tl::unexpected(system_error("create", path, errno));
  off_t total = 0;
  for (const auto piece : pieces) total += static_cast<off_t>(piece.size());
  if (total > 0 && ::fallocate(fd.get(), 0, 0, total) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINVAL && errno != EINTR)
    return tl::unexpected(system_error("reserve space for", path, errno));
  for (const auto piece : pieces) TROUPE_TRY_STATUS(write_all(fd.get(), piece, path));
  if (::fsync(fd.get()) != 0) return tl::unexpected(system_error("fsync", path, errno));
  return {};
}

Status rename_new(const fs::path& from, const fs::path& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno != EINVAL && errno != ENOSYS) return tl::unexpected(system_error("rename to", to, errno));
  if (::rename(from.c_str(), to.c_str()) != 0)
    return tl::unexpected(system_error("rename to", to, errno));  // a full folder is not replaced
  return {};
}

// Out of sight first: a reader never meets a commit that is half deleted.
Status discard(const fs::path& commit) {
  const fs::path trash = commit.parent_path() / (std::string(kTrash) + commit.filename().string());
  std::error_code error;
  fs::remove_all(trash, error);
  if (::rename(commit.c_str(), trash.c_str()) != 0) return tl::unexpected(system_error("delete", commit, errno));
  fs::remove_all(trash, error);
  if (error) return tl::unexpected(system_error("delete", trash, error.value()));
  return {};
}

Status check_input(const StateLayout& layout, std::span<const std::byte> region, const Record& record) {
  const auto invalid = [](std::string why) {
    return fail(ErrorCode::kInvalidArgument, "cannot write a checkpoint: " + std::move(why));
  };
  if (auto status = check(layout); !status) return invalid(status.error().message);
  if (region.size() < layout.bytes)
    return invalid("the region has " + std::to_string(region.size()) + " bytes instead of " +
                   std::to_string(layout.bytes));
  for (std::size_t i = 0; i < record.blobs.size(); ++i)
    if (!valid_blob_name(record.blobs[i].name) || record.blob(record.blobs[i].name) != &record.blobs[i].bytes)
      return invalid("\"" + record.blobs[i].name + "\" cannot be a blob's name, or is there twice");
  return {};
}

Result<CommitText> describe(const StateLayout& layout, std::span<const std::byte> region, const Record& record,
                            const std::string& header) {
  CommitText commit{record, layout, header.size(), {}};
  for (TensorEntry& tensor : commit.layout.tensors) {
    const std::uint64_t checksum = hash64(region.subspan(tensor.offset, tensor.bytes));
    if (tensor.checksum && *tensor.checksum != checksum)
      return fail(ErrorCode::kCorrupt, "tensor " + tensor.name + " is not what its writer put into the region");
    tensor.checksum = checksum;
  }
  commit.files.push_back({std::string(kStateFile), header.size() + region.size(), hash64(region, hash64(header))});
  for (Blob& blob : commit.record.blobs) {
    commit.files.push_back({blob_file(blob.name), blob.bytes.size(), hash64(blob.bytes)});
    blob.bytes.clear();
  }
  return commit;
}

// Whether the same commit is there already; a damaged one of this name is put out of the way.
Result<bool> already_there(const Repository& repository, const fs::path& target, const CommitText& commit) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) return false;
  if (auto holds = repository.verify(target); !holds) {
    if (holds.error().code != ErrorCode::kCorrupt && holds.error().code != ErrorCode::kNotFound)
      return tl::unexpected(std::move(holds).error());
    TROUPE_TRY_STATUS(discard(target));
    return false;
  }
  TROUPE_TRY(const std::string text, read_file(target / kCommitFile));
  TROUPE_TRY(const CommitText existing, decode(text));
  if (!same_state(existing, commit))
    return fail(ErrorCode::kAlreadyExists, target.string() + " is there already and holds another state");
  return true;
}

}  // namespace

Result<Committed> Repository::write(const StateLayout& layout, std::span<const std::byte> region, const Record& record,
                                    int keep) {
  TROUPE_TRY_STATUS(check_input(layout, region, record));
  region = region.first(layout.bytes);
  TROUPE_TRY_STATUS(make_folders(folder_));
  TROUPE_TRY(const auto commits, list());
  if (!commits.empty() && commits.front().version.epoch > record.version.epoch)
    return fail(ErrorCode::kFenced, "the checkpoint " + commit_name(record.version) +
                                        " is refused: " + commits.front().folder.string() + " is of a newer epoch");
  const std::string header = safetensors_header(layout);
  TROUPE_TRY(const CommitText commit, describe(layout, region, record, header));

  const fs::path target = folder_ / commit_name(record.version);
  Committed committed{record.version, target, 0, false, {}};
  for (const FileEntry& file : commit.files) committed.bytes += file.bytes;
  TROUPE_TRY(committed.existed, already_there(*this, target, commit));
  if (!committed.existed) {
    TemporaryFolder temporary(
        folder_ / (std::string(kTemporary) + commit_name(record.version) + "." + std::to_string(::getpid())));
    std::error_code error;
    fs::remove_all(temporary.path(), error);  // of a writer that was killed and had this pid
    if (::mkdir(temporary.path().c_str(), 0755) != 0)
      return tl::unexpected(system_error("create folder", temporary.path(), errno));
    TROUPE_TRY_STATUS(write_durable(temporary.path() / kStateFile, {bytes_of(header), region}));
    for (const Blob& blob : record.blobs)
      TROUPE_TRY_STATUS(write_durable(temporary.path() / blob_file(blob.name), {bytes_of(blob.bytes)}));
    const std::string text = encode(commit);
    committed.bytes += text.size();
    TROUPE_TRY_STATUS(write_durable(temporary.path() / kCommitFile, {bytes_of(text)}));
    TROUPE_TRY_STATUS(sync_folder(temporary.path()));
    TROUPE_TRY_STATUS(rename_new(temporary.path(), target));
    temporary.keep();
    TROUPE_TRY_STATUS(sync_folder(folder_));
  }
  committed.kept_back = retain(keep);
  return committed;
}

std::vector<Skipped> Repository::retain(int keep) const {
  std::vector<Skipped> kept_back;
  if (keep <= 0) return kept_back;
  const auto commits = list();
  if (!commits) return {{folder_, commits.error().message}};
  if (commits->size() <= static_cast<std::size_t>(keep)) return kept_back;
  if (const auto holds = verify(commits->front().folder); !holds)
    return {{commits->front().folder, holds.error().message}};
  for (std::size_t i = static_cast<std::size_t>(keep); i < commits->size(); ++i)
    if (const auto gone = discard((*commits)[i].folder); !gone)
      kept_back.push_back({(*commits)[i].folder, gone.error().message});
  return kept_back;
}

Status Repository::sweep() const {
  std::error_code error;
  std::vector<fs::path> remains;
  fs::directory_iterator entry(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kTemporary) || name.starts_with(kTrash)) remains.push_back(entry->path());
  }
  for (const fs::path& path : remains)
    if (!error) fs::remove_all(path, error);
  if (error) return tl::unexpected(system_error("sweep", folder_, error.value()));
  return {};
}

}  // namespace troupe::checkpoint
