#include "model/load.h"

#include <exception>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/config_reader.h"
#include "model/gguf_spec.h"
#include "model/parameters.h"
#include "model/registry.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<nlohmann::json> read_json(const fs::path& path) {
  TROUPE_TRY(const std::string text, read_file(path, std::uint64_t{64} << 20));
  auto json = parse_json(text, path.string());
  if (!json) return fail(ErrorCode::kCorrupt, "the file " + json.error().message, path.string());
  return json;
}

bool is_gguf(const fs::path& path) { return path.extension() == ".gguf"; }

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
  TROUPE_TRY(const auto json, read_json(config));
  TROUPE_TRY(ModelSpec spec, spec_from_config(json, config.string()));
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

/// Compares what a checkpoint holds with what the spec needs, before any memory is taken.
Status check_tensors(const std::vector<ParameterSpec>& table, const std::set<std::string>& present,
                     const std::string& where, bool gguf,
                     const std::function<const std::vector<std::int64_t>&(const std::string&)>& shape_of) {
  std::set<std::string> used;
  for (const ParameterSpec& row : table) {
    const std::string& name = gguf ? row.gguf_name : row.name;
    if (!present.contains(name))
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + name + "' of shape " + shape_text(row.shape) + " is missing", where);
    const std::vector<std::int64_t>& shape = shape_of(name);
    if (shape != row.shape)
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + name + "' has shape " + shape_text(shape) + ", the configuration needs " +
                      shape_text(row.shape),
                  where);
    used.insert(name);
  }
  for (const std::string& name : present)
    if (!used.contains(name))
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + name + "' is not part of the model that the configuration describes", where);
  return {};
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

/// The head of a tied model, when a checkpoint stores it all the same: must be the embedding.
Status check_tied_head(const formats::SafetensorsFolder& weights, const std::string& where) {
  const formats::TensorView* head = weights.find("lm_head.weight");
  const formats::TensorView* embedding = weights.find("model.embed_tokens.weight");
  if (head == nullptr || embedding == nullptr) return {};
  const bool same =
      head->dtype == embedding->dtype && head->shape == embedding->shape &&
      std::equal(head->bytes.begin(), head->bytes.end(), embedding->bytes.begin(), embedding->bytes.end());
  if (same) return {};
  return fail(ErrorCode::kInvalidArgument,
              "'tie_word_embeddings' is true, but 'lm_head.weight' differs from 'model.embed_tokens.weight'", where);
}

Result<Model> load_folder(const fs::path& folder) {
  TROUPE_TRY(const ModelSpec spec, folder_spec(folder));
  TROUPE_TRY(const auto weights, formats::SafetensorsFolder::open(folder));
  const std::string where = folder.string();
  const std::vector<ParameterSpec> table = parameter_table(spec);
  std::set<std::string> present;
  for (const formats::TensorView* tensor : weights.tensors())
    if (!tensor->name.ends_with(".rotary_emb.inv_freq"))
      present.insert(tensor->name);  // a constant that old checkpoints store
  if (spec.tied) {
    TROUPE_TRY_STATUS(check_tied_head(weights, where));
    present.erase("lm_head.weight");
  }
  TROUPE_TRY_STATUS(check_tensors(
      table, present, where, false,
      [&](const std::string& name) -> const std::vector<std::int64_t>& { return weights.find(name)->shape; }));
  return filled(spec, table, where, [&](const ParameterSpec& row, std::span<float> values) -> Status {
    const formats::TensorView& tensor = *weights.find(row.name);
    if (!formats::convert_to_float(tensor.dtype, tensor.bytes, values))
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + row.name + "' is stored as " + std::string(formats::to_string(tensor.dtype)) +
                      "; readable are F32, F16, BF16 and F64",
                  where);
    return {};
  });
}

Result<Model> load_gguf(const fs::path& path) {
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  TROUPE_TRY(const ModelSpec spec, spec_from_gguf(file));
  TROUPE_TRY(const Family* family, find_family(spec.family, path.string()));
  const std::vector<ParameterSpec> table = parameter_table(spec);
  std::set<std::string> present;
  for (const formats::GgufTensor& tensor : file.tensors())
    if (tensor.name != "rope_freqs.weight") present.insert(tensor.name);
  TROUPE_TRY_STATUS(check_tensors(
      table, present, path.string(), true,
      [&](const std::string& name) -> const std::vector<std::int64_t>& { return file.find(name)->shape; }));
  const std::int64_t head_dim = spec.layers.front().attention.head_dim;
  return filled(spec, table, path.string(), [&](const ParameterSpec& row, std::span<float> values) -> Status {
    if (auto status = formats::dequantise(*file.find(row.gguf_name), values); !status) {
      status.error().where = path.string();
      return status;
    }
    if (family->gguf_permuted && row.rotated_heads > 0)
      unpermute_heads(values, row.rotated_heads, head_dim, row.shape[1]);
    return {};
  });
}

}  // namespace

Result<Model> load_model(const fs::path& path) { return is_gguf(path) ? load_gguf(path) : load_folder(path); }

Result<ModelSpec> load_spec(const fs::path& path) {
  if (!is_gguf(path)) return folder_spec(path);
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
