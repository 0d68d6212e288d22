#include "checkpoint/commit_file.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/json_fields.h"

namespace troupe::checkpoint {
namespace {

constexpr std::string_view kFormat = "troupe-commit-1";

nlohmann::json body_of(const CommitText& commit) {
  nlohmann::json body = to_json(commit.record);
  auto files = nlohmann::json::array();
  for (const FileEntry& file : commit.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hex64(file.checksum)}});
  body["format"] = kFormat;
  body["files"] = std::move(files);
  body["state"] = to_json(commit.layout);
  body["state"]["payload_begin"] = commit.payload_begin;
  return body;
}

std::string dump(const nlohmann::json& json) {
  return json.dump(1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

Status check_files(const CommitText& commit) {
  const auto corrupt = [] { return fail(ErrorCode::kCorrupt, "the list of files is not the one of a commit"); };
  if (commit.files.size() != commit.record.blobs.size() + 1 || commit.files[0].name != kStateFile) return corrupt();
  for (std::size_t i = 0; i < commit.record.blobs.size(); ++i)
    if (commit.files[i + 1].name != blob_file(commit.record.blobs[i].name)) return corrupt();
  if (commit.payload_begin > commit.files[0].bytes ||
      commit.files[0].bytes - commit.payload_begin != commit.layout.bytes)
    return corrupt();
  for (const TensorEntry& tensor : commit.layout.tensors)
    if (!tensor.checksum) return fail(ErrorCode::kCorrupt, "tensor " + tensor.name + " has no checksum");
  return {};
}

}  // namespace

std::string encode(const CommitText& commit) {
  nlohmann::json body = body_of(commit);
  const std::uint64_t digest = hash64(dump(body));
  body["digest"] = hex64(digest);
  return dump(body);
}

Result<CommitText> decode(std::string_view text) {
  TROUPE_TRY(nlohmann::json body, parse_json(text, ""));
  if (!body.is_object()) return fail(ErrorCode::kCorrupt, "not a JSON object");
  if (dump(body) != text) return fail(ErrorCode::kCorrupt, "not as it was written");
  TROUPE_TRY(const std::uint64_t digest, hex_field(body, "digest"));
  body.erase("digest");
  if (hash64(dump(body)) != digest) return fail(ErrorCode::kCorrupt, "does not match its digest");
  TROUPE_TRY(const std::string format, field<std::string>(body, "format"));
  if (format != kFormat)
    return fail(ErrorCode::kCorrupt,
                "has the format \"" + format + "\", but this build reads \"" + std::string(kFormat) + "\"");
  CommitText commit;
  TROUPE_TRY(commit.record, record_from_json(body));
  const auto state = body.find("state");
  if (state == body.end()) return fail(ErrorCode::kCorrupt, "field \"state\" is missing");
  TROUPE_TRY(commit.layout, layout_from_json(*state));
  TROUPE_TRY(commit.payload_begin, field<std::uint64_t>(*state, "payload_begin"));
  const auto files = body.find("files");
  if (files == body.end() || !files->is_array())
    return fail(ErrorCode::kCorrupt, "field \"files\" is missing or of the wrong kind");
  for (const nlohmann::json& row : *files) {
    FileEntry file;
    TROUPE_TRY(file.name, field<std::string>(row, "name"));
    TROUPE_TRY(file.bytes, field<std::uint64_t>(row, "bytes"));
    TROUPE_TRY(file.checksum, hex_field(row, "xxh3"));
    commit.files.push_back(std::move(file));
  }
  TROUPE_TRY_STATUS(check_files(commit));
  return commit;
}

bool same_state(const CommitText& a, const CommitText& b) {
  nlohmann::json x = body_of(a), y = body_of(b);
  x.erase("term");
  y.erase("term");
  return x == y;
}

std::string safetensors_header(const StateLayout& layout) {
  nlohmann::json header{{"__metadata__", {{"format", "troupe-state-1"}}}};
  std::uint64_t end = 0;
  int pads = 0;
  const auto pad_to = [&](std::uint64_t begin) {
    if (begin > end)
      header["__pad." + std::to_string(pads++)] = {
          {"dtype", "U8"}, {"shape", {begin - end}}, {"data_offsets", {end, begin}}};
  };
  for (const TensorEntry& tensor : layout.tensors) {
    pad_to(tensor.offset);
    end = tensor.offset + tensor.bytes;
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.offset, end}}};
  }
  pad_to(layout.bytes);
  std::string json = header.dump();
  json.resize((json.size() + 8 + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
  std::string text(8, '\0');
  const std::uint64_t length = json.size();
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text + json;
}

}  // namespace troupe::checkpoint
