#include <cstring>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "model/load.h"
#include "model/parameters.h"
#include "model/stored.h"
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

/// What a parameter becomes in the file.
formats::DType stored_as(Role role, formats::DType dtype) {
  if (role == Role::kRouterTable) return formats::DType::kI32;
  return stays_float32(role) ? formats::DType::kF32 : dtype;
}

std::vector<std::byte> converted_bytes(formats::DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * formats::element_bytes(dtype));
  if (dtype != formats::DType::kI32) {
    (void)formats::convert_from_float(dtype, values, bytes);
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto whole = static_cast<std::int32_t>(values[i]);
    std::memcpy(bytes.data() + i * sizeof whole, &whole, sizeof whole);
  }
  return bytes;
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
  const std::vector<ParameterSpec> table = parameter_table(model.spec());
  std::vector<std::vector<std::byte>> converted;
  std::vector<formats::TensorView> tensors;
  converted.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const formats::DType stored = stored_as(table[i].role, dtype);
    const std::span<const float> values = tensor::floats(model.parameters()[i].value);
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (stored != formats::DType::kF32) bytes = converted.emplace_back(converted_bytes(stored, values));
    const std::size_t width = formats::element_bytes(stored);
    for (const StoredTensor& part : table[i].stored) {
      std::size_t elements = 1;
      for (const std::int64_t n : part.shape) elements *= static_cast<std::size_t>(n);
      tensors.push_back({part.name, stored, part.shape,
                         bytes.subspan(static_cast<std::size_t>(part.offset) * width, elements * width)});
    }
  }
  TROUPE_TRY_STATUS(formats::write_safetensors_folder(folder, tensors, options.shard_max));
  ModelSpec spec = model.spec();
  spec.stored_dtype = options.dtype;
  TROUPE_TRY_STATUS(write_file_atomic(folder / "generation_config.json", generation_config(spec).dump(2) + "\n"));
  return write_file_atomic(folder / "config.json", config_json(spec).dump(2) + "\n");
}

}  // namespace troupe::model
