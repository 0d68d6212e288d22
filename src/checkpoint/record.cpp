#include "checkpoint/record.h"

#include <algorithm>

#include "checkpoint/json_fields.h"

namespace troupe::checkpoint {

const std::string* Record::blob(std::string_view name) const {
  for (const Blob& b : blobs)
    if (b.name == name) return &b.bytes;
  return nullptr;
}

bool valid_blob_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

nlohmann::json to_json(const Record& r) {
  auto blobs = nlohmann::json::array();
  for (const Blob& blob : r.blobs) blobs.push_back(blob.name);
  return {{"epoch", r.version.epoch},
          {"step", r.version.step},
          {"term", r.term},
          {"stage", r.stage},
          {"seed", r.seed},
          {"run_id", r.run_id},
          {"config_digest", r.config_digest},
          {"model_digest", r.model_digest},
          {"optimizer", r.optimizer},
          {"schedule", r.schedule},
          {"data_cursor", r.data_cursor},
          {"extra", r.extra},
          {"blobs", std::move(blobs)}};
}

Result<Record> record_from_json(const nlohmann::json& json) {
  Record r;
  TROUPE_TRY(r.version.epoch, field<std::uint32_t>(json, "epoch"));
  TROUPE_TRY(r.version.step, field<std::uint64_t>(json, "step"));
  TROUPE_TRY(r.term, field<std::uint64_t>(json, "term"));
  TROUPE_TRY(r.stage, field<std::uint32_t>(json, "stage"));
  TROUPE_TRY(r.seed, field<std::uint64_t>(json, "seed"));
  TROUPE_TRY(r.run_id, field<std::string>(json, "run_id"));
  TROUPE_TRY(r.config_digest, field<std::string>(json, "config_digest"));
  TROUPE_TRY(r.model_digest, field<std::string>(json, "model_digest"));
  for (auto [key, part] : {std::pair{"optimizer", &r.optimizer},
                           {"schedule", &r.schedule},
                           {"data_cursor", &r.data_cursor},
                           {"extra", &r.extra}})
    if (const auto found = json.find(key); found != json.end()) *part = *found;
  const auto blobs = json.find("blobs");
  if (blobs == json.end() || !blobs->is_array())
    return fail(ErrorCode::kCorrupt, "field \"blobs\" is missing or of the wrong kind");
  for (const nlohmann::json& name : *blobs) {
    if (!name.is_string() || !valid_blob_name(name.get<std::string>()) || r.blob(name.get<std::string>()) != nullptr)
      return fail(ErrorCode::kCorrupt, "a blob has a bad name, or has it twice");
    r.blobs.push_back({name.get<std::string>(), {}});
  }
  return r;
}

}  // namespace troupe::checkpoint
