#include "model/load.h"

#include <exception>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/gguf_spec.h"
#include "model/parameters.h"
#include "model/registry.h"
#include "model/stored.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

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

Result<Model> load_folder(const fs::path& folder) {
  TROUPE_TRY(ModelSpec spec, configured_spec(folder));
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
  TROUPE_TRY_STATUS(check_stored(table, file, path.string()));
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

Result<Model> load_model(const fs::path& path) {
  if (is_description(path))
    return fail(ErrorCode::kInvalidArgument, "a config.json describes a model and holds no weights; name its folder", path.string());
  return path.extension() == ".gguf" ? load_gguf(path) : load_folder(path);
}

}  // namespace troupe::model
