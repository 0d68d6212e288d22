#include "model/load.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/config_reader.h"
#include "model/gguf_spec.h"
#include "model/parameters.h"
#include "model/registry.h"
#include "model/stored.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

using formats::shape_text;

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

/// Compares what a GGUF file holds with what the spec needs, before any memory is taken.
Status check_tensors(const std::vector<ParameterSpec>& table, const formats::GgufFile& file, const std::string& where) {
  std::set<std::string> left;
  for (const formats::GgufTensor& tensor : file.tensors())
    if (tensor.name != "rope_freqs.weight") left.insert(tensor.name);
  for (const ParameterSpec& row : table) {
    const formats::GgufTensor* tensor = file.find(row.gguf_name);
    if (tensor == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + row.gguf_name + "' of shape " + shape_text(row.shape) + " is missing", where);
    if (tensor->shape != row.shape)
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + row.gguf_name + "' has shape " + shape_text(tensor->shape) +
                      ", the configuration needs " + shape_text(row.shape),
                  where);
    left.erase(row.gguf_name);
  }
  if (left.empty()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the tensor '" + *left.begin() + "' is not part of the model that the configuration describes", where);
}

/// Calls `fill` with each parameter's row and memory, after the memory has been taken.
template <class Fill>
Result<Model> filled(const ModelSpec& spec, const std::vector<ParameterSpec>& table, const std::string& where,
                     Fill&& fill) {
  try {
    Model model = Model::zeros(spec);
    for (std::size_t i = 0; i < table.size(); ++i)
      TROUPE_TRY_STATUS(fill(table[i], tensor::floats(model.parameters()[i].value)));
    return model;
  } catch (const std::exception&) {
    return fail(ErrorCode::kResourceExhausted,
                "not enough memory for the " + std::to_string(spec.parameter_count()) + " parameters of the model",
                where);
  }
}

/// The table of what a folder holds: a tied model's head may be stored all the same, and blocks for further tokens may be
/// left out.
std::vector<ParameterSpec> folder_table(ModelSpec& spec, const formats::SafetensorsFolder& weights) {
  std::vector<ParameterSpec> table = parameter_table(spec);
  if (!spec.mtp.empty() && !has_mtp(table, spec.layers.size(), weights)) {
    spec.mtp.clear();
    table = parameter_table(spec);
  }
  for (ParameterSpec& row : table) find_experts_apart(row, weights);
  if (spec.tied)
    table.front().stored.push_back({std::string(name_in(names_of(spec), Role::kHead)), table.front().shape, 0, true});
  return table;
}

Result<Model> load_folder(const fs::path& folder) {
  TROUPE_TRY(ModelSpec spec, folder_spec(folder));
  TROUPE_TRY(const auto weights, formats::SafetensorsFolder::open(folder));
  const std::string where = folder.string();
  const std::vector<ParameterSpec> table = folder_table(spec, weights);
  TROUPE_TRY_STATUS(check_stored(table, weights, names_of(spec), where));
  return filled(spec, table, where, [&](const ParameterSpec& row, std::span<float> values) {
    return read_stored(row, weights, values, where);
  });
}

Result<Model> load_gguf(const fs::path& path) {
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  TROUPE_TRY(const ModelSpec spec, spec_from_gguf(file));
  TROUPE_TRY(const Family* family, find_family(spec.family, path.string()));
  const std::vector<ParameterSpec> table = parameter_table(spec);
  TROUPE_TRY_STATUS(check_tensors(table, file, path.string()));
  const std::int64_t head_dim = spec.layers.front().attention.head_dim;
  return filled(spec, table, path.string(), [&](const ParameterSpec& row, std::span<float> values) -> Status {
    if (auto status = formats::dequantise(*file.find(row.gguf_name), values); !status) {
      status.error().where = path.string();
      return status;
    }
    TROUPE_TRY_STATUS(refuse_infinite(values, row.gguf_name, path.string()));
    if (family->gguf_permuted && row.rotated_heads > 0)
      unpermute_heads(values, row.rotated_heads, head_dim, row.shape[1]);
    return {};
  });
}

}  // namespace

Result<Model> load_model(const fs::path& path) { return is_gguf(path) ? load_gguf(path) : load_folder(path); }

bool is_description(const fs::path& path) { return path.extension() == ".json"; }

Result<ModelSpec> load_spec(const fs::path& path) {
  if (is_description(path)) return described_spec(path);
  if (!is_gguf(path)) {
    TROUPE_TRY(ModelSpec spec, folder_spec(path));
    if (spec.mtp.empty()) return spec;
    if (const auto weights = formats::SafetensorsFolder::open(path)) (void)folder_table(spec, *weights); // what the folder leaves out
    return spec;
  }
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  return spec_from_gguf(file);
}

Status check_vocabulary(const ModelSpec& spec, std::int64_t vocabulary, std::string_view where) {
  if (vocabulary <= spec.vocab_size) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the tokenizer has " + std::to_string(vocabulary) + " tokens, the model's embedding has only " +
                  std::to_string(spec.vocab_size) + " rows; use the tokenizer that belongs to the model",
              std::string(where));
}

}  // namespace troupe::model
