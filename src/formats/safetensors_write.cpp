#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/safetensors.h"

namespace troupe::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kAlignment = 64;

Result<std::string> header_of(std::span<const TensorView> tensors, const std::map<std::string, std::string>& metadata,
                              const fs::path& path) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const auto wanted = static_cast<std::uint64_t>(tensor.elements()) * element_bytes(tensor.dtype);
    if (tensor.bytes.size() != wanted)
      return fail(ErrorCode::kInvalidArgument,
                  "tensor '" + tensor.name + "' brings " + std::to_string(tensor.bytes.size()) +
                      " bytes, its shape and type need " + std::to_string(wanted),
                  path.string());
    if (header.contains(tensor.name))
      return fail(ErrorCode::kInvalidArgument, "two tensors are named '" + tensor.name + "'", path.string());
    header[tensor.name] = {
        {"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + wanted}}};
    offset += wanted;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > kSafetensorsHeaderBytesMax)
    return fail(ErrorCode::kInvalidArgument,
                "its header would have " + std::to_string(text.size()) + " bytes, readers take at most " +
                    std::to_string(kSafetensorsHeaderBytesMax) + "; write fewer tensors or less metadata into one file",
                path.string());
  const std::size_t prefix = sizeof(std::uint64_t);
  text.append((kAlignment - (text.size() + prefix) % kAlignment) % kAlignment, ' ');
  return text;
}

Status write_parts(int fd, const std::string& header, std::span<const TensorView> tensors, const fs::path& path) {
  const std::uint64_t length = header.size();
  TROUPE_TRY_STATUS(write_all(fd, std::as_bytes(std::span(&length, 1)), path));
  TROUPE_TRY_STATUS(write_all(fd, std::as_bytes(std::span(header)), path));
  for (const TensorView& tensor : tensors) TROUPE_TRY_STATUS(write_all(fd, tensor.bytes, path));
  if (::fsync(fd) != 0) return tl::unexpected(system_error("fsync", path, errno));
  return {};
}

std::string shard_name(std::size_t index, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

}  // namespace

Status write_safetensors(const fs::path& path, std::span<const TensorView> tensors,
                         const std::map<std::string, std::string>& metadata) {
  TROUPE_TRY(const std::string header, header_of(tensors, metadata, path));
  const fs::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return tl::unexpected(system_error("create", temporary, errno));
  Status status = write_parts(fd.get(), header, tensors, temporary);
  fd.reset();
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = tl::unexpected(system_error("rename to", path, errno));
  if (!status) {
    ::unlink(temporary.c_str());
    return status;
  }
  return sync_folder(path.parent_path());
}

Status write_safetensors_folder(const fs::path& folder, std::span<const TensorView> tensors, Bytes shard_max) {
  TROUPE_TRY_STATUS(make_folders(folder));
  std::vector<std::size_t> starts = {0};
  std::uint64_t total = 0;
  std::uint64_t in_shard = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].bytes.size();
    if (in_shard > 0 && in_shard + bytes > shard_max.count) {
      starts.push_back(i);
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const fs::path single_path = folder / "model.safetensors";
  const fs::path index_path = folder / "model.safetensors.index.json";
  std::error_code ignored;  // what an earlier export in the other layout left there would be read instead of this one
  if (starts.size() == 1) {
    TROUPE_TRY_STATUS(write_safetensors(single_path, tensors, metadata));
    fs::remove(index_path, ignored);
    return {};
  }
  nlohmann::json weight_map = nlohmann::json::object();
  for (std::size_t s = 0; s < starts.size(); ++s) {
    const std::size_t end = s + 1 < starts.size() ? starts[s + 1] : tensors.size();
    const auto part = tensors.subspan(starts[s], end - starts[s]);
    const std::string name = shard_name(s, starts.size());
    for (const TensorView& tensor : part)
      if (!weight_map.emplace(tensor.name, name).second)
        return fail(ErrorCode::kInvalidArgument, "two tensors are named '" + tensor.name + "'", folder.string());
    TROUPE_TRY_STATUS(write_safetensors(folder / name, part, metadata));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  TROUPE_TRY_STATUS(write_file_atomic(index_path, index.dump(2) + "\n"));
  fs::remove(single_path, ignored);
  return {};
}

}  // namespace troupe::formats
