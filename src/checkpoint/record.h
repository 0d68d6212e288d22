/// @file
/// Everything in a commit that is not a tensor.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace troupe::checkpoint {

/// Bytes that only their owner understands, e.g. the rollout ledger.
struct Blob {
  std::string name;  ///< [a-z0-9_]+, at most 64 characters.
  std::string bytes;
};

/// The state of a run at one step. Every part is written and read by the component whose it is.
struct Record {
  PolicyVersion version;    ///< Of the weights: epoch and step.
  std::uint64_t term = 0;   ///< The supervisor start that ordered the commit.
  std::uint32_t stage = 0;  ///< Index into the run's stages.
  std::uint64_t seed = 0;   ///< run.seed.
  std::string run_id;
  std::string config_digest;
  std::string model_digest;
  nlohmann::json optimizer;  ///< Step counts, groups by name.
  nlohmann::json schedule;
  nlohmann::json data_cursor;  ///< The trained frontier.
  nlohmann::json extra;        ///< Anything else.
  std::vector<Blob> blobs;     ///< The ledger is "ledger".

  /// The bytes of a blob, or null.
  [[nodiscard]] const std::string* blob(std::string_view name) const;
};

/// Whether a blob may be called so.
[[nodiscard]] bool valid_blob_name(std::string_view name);

/// JSON and back, without the blobs' bytes (their names stay). Errors: kCorrupt.
[[nodiscard]] nlohmann::json to_json(const Record& record);
[[nodiscard]] Result<Record> record_from_json(const nlohmann::json& json);

}  // namespace troupe::checkpoint
