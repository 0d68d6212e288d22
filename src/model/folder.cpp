#include "model/folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/config_reader.h"
#include "model/gguf_spec.h"
#include "model/registry.h"
#include "model/stored.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

Result<nlohmann::json> read_json(const fs::path& path) {
  TROUPE_TRY(const std::string text, read_file(path, std::uint64_t{64} << 20));
  auto json = parse_json(text, path.string());
  if (!json) return fail(ErrorCode::kCorrupt, "the file " + json.error().message, path.string());
  return json;
}

bool is_gguf(const fs::path& path) { return path.extension() == ".gguf"; }

Result<ModelSpec> described_spec(const fs::path& config) {
  TROUPE_TRY(const auto json, read_json(config));
  return spec_from_config(json, config.string());
}

Result<ModelSpec> folder_spec(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored))
    return fail(ErrorCode::kNotFound,
                "no such model: expected is a folder with config.json and model.safetensors, or a .gguf file",
                folder.string());
  if (!fs::is_directory(folder, ignored))
    return fail(ErrorCode::kInvalidArgument, "neither a model folder nor a .gguf file", folder.string());
  const fs::path config = folder / "config.json";
  if (!fs::exists(config, ignored))
    return fail(ErrorCode::kNotFound, "the model folder has no config.json", folder.string());
  TROUPE_TRY(ModelSpec spec, described_spec(config));
  const fs::path generation = folder / "generation_config.json";
  if (fs::exists(generation, ignored)) {
    TROUPE_TRY(const auto defaults, read_json(generation));
    if (defaults.is_object()) {
      TROUPE_TRY(auto ids, ConfigReader(defaults, generation.string()).ids("eos_token_id"));
      if (!ids.empty()) spec.eos_ids = std::move(ids);
    }
  }
  return spec;
}

WeightFiles::File file_at(const fs::path& path) {
  std::error_code ec;
  const bool present = fs::is_regular_file(path, ec);
  const auto bytes = present ? fs::file_size(path, ec) : 0;
  return {path.filename().string(), present, ec ? 0 : bytes};
}

// The shards that the index names, or the one file.
Result<std::vector<WeightFiles::File>> safetensors_files(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code ec;
  if (!fs::exists(index, ec)) return std::vector{file_at(folder / "model.safetensors")};
  TROUPE_TRY(const auto json, read_json(index));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return fail(ErrorCode::kCorrupt, "the index has no object 'weight_map'", index.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).has_parent_path())
      return fail(ErrorCode::kCorrupt, "the index does not place '" + tensor + "' in a file of the folder", index.string());
    names.insert(file.get<std::string>());
  }
  std::vector<WeightFiles::File> files;
  for (const std::string& name : names) files.push_back(file_at(folder / name));
  return files;
}

Status look_into_folder(const fs::path& folder, ModelSpec& spec, WeightFiles& found) {
  TROUPE_TRY(const auto weights, formats::SafetensorsFolder::open(folder));
  for (const formats::TensorView* tensor : weights.tensors())
    found.bytes_by_type[std::string(formats::to_string(tensor->dtype))] += tensor->bytes.size();
  return check_stored(folder_table(spec, weights), weights, names_of(spec), folder.string());
}

Status look_into_gguf(const fs::path& path, const ModelSpec& spec, WeightFiles& found) {
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  for (const formats::GgufTensor& tensor : file.tensors())
    found.bytes_by_type[formats::gguf_type_name(tensor.type)] += tensor.bytes.size();
  return check_stored(parameter_table(spec), file, path.string());
}

}  // namespace

bool WeightFiles::complete() const {
  return std::all_of(files.begin(), files.end(), [](const File& file) { return file.present; });
}

bool is_description(const fs::path& path) { return path.extension() == ".json"; }

Result<ModelSpec> configured_spec(const fs::path& path) {
  if (is_description(path)) return described_spec(path);
  if (!is_gguf(path)) return folder_spec(path);
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  return spec_from_gguf(file);
}

Result<ModelSpec> load_spec(const fs::path& path) {
  TROUPE_TRY(ModelSpec spec, configured_spec(path));
  if (spec.mtp.empty() || is_description(path)) return spec;
  if (const auto weights = formats::SafetensorsFolder::open(path)) (void)folder_table(spec, *weights);
  return spec;
}

Result<WeightFiles> weight_files(const fs::path& path, ModelSpec& spec) {
  WeightFiles found;
  if (is_gguf(path)) {
    found.files = {file_at(path)};
  } else {
    TROUPE_TRY(found.files, safetensors_files(path));
  }
  if (!found.complete()) return found;
  const Status status = is_gguf(path) ? look_into_gguf(path, spec, found) : look_into_folder(path, spec, found);
  if (!status) found.problem = status.error().to_string();
  return found;
}

Status check_vocabulary(const ModelSpec& spec, std::int64_t vocabulary, std::string_view where) {
  if (vocabulary <= spec.vocab_size) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the tokenizer has " + std::to_string(vocabulary) + " tokens, the model's embedding has only " +
                  std::to_string(spec.vocab_size) + " rows; use the tokenizer that belongs to the model",
              std::string(where));
}

}  // namespace troupe::model
