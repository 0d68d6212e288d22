#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "model/load.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

Result<formats::DType> stored_type(const std::string& name) {
  if (name == "float32") return formats::DType::kF32;
  if (name == "bfloat16") return formats::DType::kBF16;
  if (name == "float16") return formats::DType::kF16;
  return fail(ErrorCode::kInvalidArgument,
              "the export type '" + name + "' is not known; known are: float32, bfloat16, float16");
}

nlohmann::json generation_config(const ModelSpec& spec) {
  nlohmann::json json = {{"_from_model_config", false}};
  if (spec.bos_id >= 0) json["bos_token_id"] = spec.bos_id;
  if (spec.pad_id >= 0) json["pad_token_id"] = spec.pad_id;
  if (spec.eos_ids.size() == 1) json["eos_token_id"] = spec.eos_ids.front();
  if (spec.eos_ids.size() > 1) json["eos_token_id"] = spec.eos_ids;
  return json;
}

}  // namespace

Status export_model(const Model& model, const fs::path& folder, const ExportOptions& options) {
  TROUPE_TRY(const formats::DType dtype, stored_type(options.dtype));
  TROUPE_TRY_STATUS(make_folders(folder));
  std::vector<std::vector<std::byte>> converted;
  std::vector<formats::TensorView> tensors;
  converted.reserve(model.parameters().size());
  for (const Parameter& parameter : model.parameters()) {
    const std::span<const float> values = tensor::floats(parameter.value);
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (dtype != formats::DType::kF32) {
      converted.emplace_back(values.size() * formats::element_bytes(dtype));
      (void)formats::convert_from_float(dtype, values, converted.back());
      bytes = converted.back();
    }
    tensors.push_back({parameter.name, dtype, parameter.value.sizes().vec(), bytes});
  }
  TROUPE_TRY_STATUS(formats::write_safetensors_folder(folder, tensors, options.shard_max));
  ModelSpec spec = model.spec();
  spec.stored_dtype = options.dtype;
  TROUPE_TRY_STATUS(write_file_atomic(folder / "generation_config.json", generation_config(spec).dump(2) + "\n"));
  return write_file_atomic(folder / "config.json", config_json(spec).dump(2) + "\n");
}

}  // namespace troupe::model
