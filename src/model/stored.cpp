#include "model/stored.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "formats/quantised.h"
#include "kernels/norms.h"
#include "model/registry.h"

namespace troupe::model {

namespace {

using formats::DType;
using formats::shape_text;
using formats::TensorView;

/// The tensors that make up one stored tensor.
struct Found {
  enum class Kind { kMissing, kPlain, kWhole, kFp8, kFp4, kMxfp4 } kind = Kind::kMissing;
  const TensorView* weight = nullptr;
  const TensorView* scale = nullptr;
  std::string scale_name;
};

std::string module_scale(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return (name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name) + ".scale";
}

Found find_stored(const formats::SafetensorsFolder& weights, const StoredTensor& stored) {
  Found found;
  found.weight = weights.find(stored.name);
  if (found.weight == nullptr) {
    found.weight = weights.find(stored.name + "_blocks");
    if (found.weight == nullptr) return found;
    found.kind = Found::Kind::kMxfp4;
    found.scale_name = stored.name + "_scales";
    found.scale = weights.find(found.scale_name);
    return found;
  }
  const DType dtype = found.weight->dtype;
  const bool packed = (dtype == DType::kI8 || dtype == DType::kU8) && stored.shape.size() == 2;
  if (dtype == DType::kI64 || dtype == DType::kI32) {
    found.kind = Found::Kind::kWhole;
  } else if (dtype != DType::kF8E4M3 && !packed) {
    found.kind = Found::Kind::kPlain;
  } else {
    found.kind = packed ? Found::Kind::kFp4 : Found::Kind::kFp8;
    found.scale_name = stored.name + "_scale_inv";
    if (weights.find(found.scale_name) == nullptr && weights.find(module_scale(stored.name)) != nullptr)
      found.scale_name = module_scale(stored.name);
    found.scale = weights.find(found.scale_name);
  }
  return found;
}

/// The shape that a stored tensor must have in the file.
std::vector<std::int64_t> file_shape(const StoredTensor& stored, Found::Kind kind) {
  std::vector<std::int64_t> shape = stored.shape;
  if (kind == Found::Kind::kFp4) shape.back() /= 2;
  if (kind == Found::Kind::kMxfp4) shape = {shape[0], shape[2], shape[1] / formats::kFp4Group, formats::kFp4Group / 2};
  return shape;
}

bool skipped(const NameMap& names, const std::string& tensor) {
  for (std::string_view rest = names.skipped; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    if (tensor.starts_with(rest.substr(0, comma))) return true;
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  return tensor.ends_with(".rotary_emb.inv_freq");  // a constant that old checkpoints store
}

Status check_one(const StoredTensor& stored, const formats::SafetensorsFolder& weights, std::set<std::string>& used,
                 const std::string& where) {
  const Found found = find_stored(weights, stored);
  const auto refuse = [&](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why, where); };
  if (found.kind == Found::Kind::kMissing) {
    if (stored.copy) return {};
    return refuse("the tensor '" + stored.name + "' of shape " + shape_text(stored.shape) + " is missing");
  }
  used.insert(found.weight->name);
  const std::vector<std::int64_t> shape = file_shape(stored, found.kind);
  if (found.weight->shape != shape)
    return refuse("the tensor '" + found.weight->name + "' has shape " + shape_text(found.weight->shape) +
                  ", the configuration needs " + shape_text(shape));
  if (found.scale_name.empty()) return {};
  if (found.scale == nullptr)
    return refuse("the tensor '" + found.weight->name + "' is stored as " +
                  std::string(formats::to_string(found.weight->dtype)) + ", but its scale '" + found.scale_name +
                  "' is missing");
  used.insert(found.scale_name);
  return {};
}

/// A parameter's second copy must be the first one.
Status check_copies(const ParameterSpec& row, const formats::SafetensorsFolder& weights, const std::string& where) {
  const TensorView* first = weights.find(row.stored.front().name);
  for (const StoredTensor& stored : row.stored) {
    const TensorView* copy = stored.copy ? weights.find(stored.name) : nullptr;
    if (copy == nullptr || first == nullptr) continue;
    if (copy->dtype == first->dtype && copy->shape == first->shape &&
        std::equal(copy->bytes.begin(), copy->bytes.end(), first->bytes.begin(), first->bytes.end()))
      continue;
    return fail(ErrorCode::kInvalidArgument,
                "'" + stored.name + "' differs from '" + first->name + "', of which it must be a copy", where);
  }
  return {};
}

void read_whole(const TensorView& tensor, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t number = 0;
    if (tensor.dtype == DType::kI64) {
      std::memcpy(&number, tensor.bytes.data() + 8 * i, sizeof number);
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, tensor.bytes.data() + 4 * i, sizeof narrow);
      number = narrow;
    }
    values[i] = static_cast<float>(number);
  }
}

Status read_one(const Found& found, std::span<float> values) {
  switch (found.kind) {
    case Found::Kind::kFp8:
      return formats::dequantise_fp8(*found.weight, *found.scale, values);
    case Found::Kind::kFp4:
      return formats::dequantise_fp4(*found.weight, *found.scale, values);
    case Found::Kind::kMxfp4:
      return formats::dequantise_mxfp4(*found.weight, *found.scale, values);
    default:
      break;
  }
  if (formats::convert_to_float(found.weight->dtype, found.weight->bytes, values)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the tensor '" + found.weight->name + "' is stored as " +
                  std::string(formats::to_string(found.weight->dtype)) +
                  "; readable are F32, F16, BF16 and F64, and F8_E4M3 and 4-bit weights with their scales");
}

}  // namespace

Status refuse_infinite(std::span<const float> values, const std::string& name, const std::string& where) {
  if (kernels::all_finite(values.data(), static_cast<std::int64_t>(values.size()))) return {};
  return fail(ErrorCode::kCorrupt, "the tensor '" + name + "' holds NaN or infinity", where);
}

bool stays_float32(Role role) {
  switch (role) {
    case Role::kRouterCorrection:
    case Role::kDeltaDecayLog:
    case Role::kPoolPosition:
    case Role::kIndexPoolPosition:
    case Role::kHyperHeadFn:
    case Role::kHyperHeadBase:
    case Role::kHyperHeadScale:
    case Role::kHyperAttentionFn:
    case Role::kHyperAttentionBase:
    case Role::kHyperAttentionScale:
    case Role::kHyperFfnFn:
    case Role::kHyperFfnBase:
    case Role::kHyperFfnScale:
      return true;
    default:
      return false;
  }
}

void find_experts_apart(ParameterSpec& row, const formats::SafetensorsFolder& weights) {
  const bool gate_up = row.role == Role::kExpertsGateUp;
  const std::string_view together = gate_up ? "gate_up_proj" : "down_proj";
  if ((!gate_up && row.role != Role::kExpertsDown) || row.stored.size() != 1 || !row.name.ends_with(together)) return;
  if (find_stored(weights, row.stored.front()).kind != Found::Kind::kMissing) return;
  const std::string before = row.name.substr(0, row.name.size() - together.size());
  const std::vector<std::string_view> parts = gate_up ? std::vector<std::string_view>{"gate_proj", "up_proj"} : std::vector<std::string_view>{"down_proj"};
  const std::int64_t out = row.shape[1] / static_cast<std::int64_t>(parts.size()), in = row.shape[2];
  std::vector<StoredTensor> apart;
  for (std::int64_t expert = 0; expert < row.shape[0]; ++expert)
    for (const std::string_view part : parts)
      apart.push_back({before + std::to_string(expert) + "." + std::string(part) + ".weight", {out, in}, static_cast<std::int64_t>(apart.size()) * out * in});
  if (weights.find(apart.front().name) != nullptr) row.stored = std::move(apart);
}

bool has_mtp(const std::vector<ParameterSpec>& table, std::size_t layers, const formats::SafetensorsFolder& weights) {
  return std::any_of(table.begin(), table.end(), [&](const ParameterSpec& row) {
    return row.place >= static_cast<int>(layers) && find_stored(weights, row.stored.front()).kind != Found::Kind::kMissing;
  });
}

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

Status check_stored(const std::vector<ParameterSpec>& table, const formats::GgufFile& file, const std::string& where) {
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

Status check_stored(const std::vector<ParameterSpec>& table, const formats::SafetensorsFolder& weights,
                    const NameMap& names, const std::string& where) {
  std::set<std::string> used;
  for (const ParameterSpec& row : table) {
    for (const StoredTensor& stored : row.stored) TROUPE_TRY_STATUS(check_one(stored, weights, used, where));
    TROUPE_TRY_STATUS(check_copies(row, weights, where));
  }
  for (const TensorView* tensor : weights.tensors())
    if (!used.contains(tensor->name) && !skipped(names, tensor->name))
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + tensor->name + "' is not part of the model that the configuration describes", where);
  return {};
}

Status read_stored(const ParameterSpec& row, const formats::SafetensorsFolder& weights, std::span<float> values,
                   const std::string& where) {
  for (const StoredTensor& stored : row.stored) {
    if (stored.copy) continue;
    const Found found = find_stored(weights, stored);
    std::size_t elements = 1;
    for (const std::int64_t n : stored.shape) elements *= static_cast<std::size_t>(n);
    const auto part = values.subspan(static_cast<std::size_t>(stored.offset), elements);
    if (found.kind == Found::Kind::kWhole && row.role == Role::kRouterTable) {
      read_whole(*found.weight, part);
      for (const float expert : part)
        if (expert < 0 || expert >= static_cast<float>(row.cycle))
          return fail(ErrorCode::kInvalidArgument,
                      "the tensor '" + stored.name + "' names an expert that does not exist: " +
                          std::to_string(static_cast<std::int64_t>(expert)) + " of " + std::to_string(row.cycle),
                      where);
      continue;
    }
    if (auto status = read_one(found, part); !status) {
      status.error().where = where;
      return status;
    }
    TROUPE_TRY_STATUS(refuse_infinite(part, found.weight->name, where));
  }
  return {};
}

}  // namespace troupe::model
