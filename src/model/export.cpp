#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "formats/quantised.h"
#include "formats/safetensors.h"
#include "model/load.h"
#include "model/parameters.h"
#include "model/stored.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFloat8 = "float8";

Result<formats::DType> stored_type(const std::string& name) {
  if (name == "float32") return formats::DType::kF32;
  if (name == "bfloat16") return formats::DType::kBF16;
  if (name == "float16") return formats::DType::kF16;
  if (name == kFloat8) return formats::DType::kBF16;  // whatever is no matrix of a linear layer
  return fail(ErrorCode::kInvalidArgument,
              "the export type '" + name + "' is not known; known are: float32, bfloat16, float16, float8");
}

/// What a parameter becomes in the file.
formats::DType stored_as(Role role, formats::DType dtype) {
  if (role == Role::kRouterTable) return formats::DType::kI32;
  return stays_float32(role) ? formats::DType::kF32 : dtype;
}

/// Matrices of linear layers: what releases in FP8 store in 8 bits.
bool in_eight_bits(Role role) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
    case Role::kOut:
    case Role::kOutGate:
    case Role::kQDown:
    case Role::kQUp:
    case Role::kKvDown:
    case Role::kKvUp:
    case Role::kOutDown:
    case Role::kDeltaQkv:
    case Role::kDeltaZ:
    case Role::kDeltaOut:
    case Role::kIndexQ:
    case Role::kFfnGate:
    case Role::kFfnUp:
    case Role::kFfnDown:
    case Role::kExpertsGateUp:
    case Role::kExpertsDown:
    case Role::kSharedGate:
    case Role::kSharedUp:
    case Role::kSharedDown:
      return true;
    default:
      return false;
  }
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

/// The tensors of a file, and the memory of those that are not the parameters' own.
struct Stored {
  std::vector<formats::TensorView> tensors;
  std::deque<std::vector<std::byte>> memory;
  nlohmann::json in_more_bits = nlohmann::json::array();  ///< Modules that an export in 8 bits leaves as they are.

  std::span<const std::byte> keep(std::vector<std::byte> bytes) { return memory.emplace_back(std::move(bytes)); }

  void add_in_eight_bits(const StoredTensor& part, std::span<const float> values) {
    formats::Quantised small = formats::quantise_fp8(values, part.shape[0], part.shape[1]);
    tensors.push_back({part.name, formats::DType::kF8E4M3, part.shape, keep(std::move(small.codes))});
    tensors.push_back({part.name + "_scale_inv", formats::DType::kF32, {formats::fp8_blocks(part.shape[0]), formats::fp8_blocks(part.shape[1])}, keep(std::move(small.scales))});
  }

  void add(const StoredTensor& part, formats::DType dtype, std::span<const float> values) {
    constexpr std::string_view kWeight = ".weight";
    tensors.push_back({part.name, dtype, part.shape, dtype == formats::DType::kF32 ? std::as_bytes(values) : keep(converted_bytes(dtype, values))});
    if (part.shape.size() == 2 && part.name.ends_with(kWeight)) in_more_bits.push_back(part.name.substr(0, part.name.size() - kWeight.size()));
  }
};

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
  const bool float8 = options.dtype == kFloat8;
  Stored file;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const formats::DType stored = stored_as(table[i].role, dtype);
    const std::span<const float> values = tensor::floats(model.parameters()[i].value);
    for (const StoredTensor& part : table[i].stored) {
      std::size_t elements = 1;
      for (const std::int64_t n : part.shape) elements *= static_cast<std::size_t>(n);
      const auto own = values.subspan(static_cast<std::size_t>(part.offset), elements);
      if (float8 && in_eight_bits(table[i].role) && part.shape.size() == 2) file.add_in_eight_bits(part, own);
      else file.add(part, stored, own);
    }
  }
  TROUPE_TRY_STATUS(formats::write_safetensors_folder(folder, file.tensors, options.shard_max));
  ModelSpec spec = model.spec();
  spec.stored_dtype = float8 ? "bfloat16" : options.dtype;
  TROUPE_TRY_STATUS(write_file_atomic(folder / "generation_config.json", generation_config(spec).dump(2) + "\n"));
  nlohmann::json config = config_json(spec);
  if (float8)
    config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"},
                                     {"weight_block_size", {formats::kFp8Block, formats::kFp8Block}},
                                     {"modules_to_not_convert", file.in_more_bits}};
  return write_file_atomic(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace troupe::model
