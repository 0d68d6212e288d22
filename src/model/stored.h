/// @file
/// From the tensors of a Hugging Face folder to a model's parameters: split experts, copies, quantised storage. Private to
/// this folder.
#pragma once

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/parameters.h"

namespace troupe::model {

/// Compares what a folder holds with what the table needs, before any memory is taken. Errors: the tensor that is missing,
/// has another shape, lacks its scale, or is no part of the model.
[[nodiscard]] Status check_stored(const std::vector<ParameterSpec>& table, const formats::SafetensorsFolder& weights,
                                  const NameMap& names, const std::string& where);

/// The same for a GGUF file.
[[nodiscard]] Status check_stored(const std::vector<ParameterSpec>& table, const formats::GgufFile& file, const std::string& where);

/// The table of what a folder holds: a tied model's head may be stored all the same, and blocks for further tokens may be
/// left out (of `spec` too).
[[nodiscard]] std::vector<ParameterSpec> folder_table(ModelSpec& spec, const formats::SafetensorsFolder& weights);

/// Reads one parameter. Errors: a storage type that cannot be read, a number that is not finite, an expert that does not
/// exist; named by tensor.
[[nodiscard]] Status read_stored(const ParameterSpec& row, const formats::SafetensorsFolder& weights,
                                 std::span<float> values, const std::string& where);

/// Experts that are usually stored together may be stored one by one (FP8 releases of Qwen3.5): where the folder has
/// experts.0.gate_proj.weight instead of experts.gate_up_proj, the row is read from those.
void find_experts_apart(ParameterSpec& row, const formats::SafetensorsFolder& weights);

/// Whether any tensor of the blocks for further tokens is there.
[[nodiscard]] bool has_mtp(const std::vector<ParameterSpec>& table, std::size_t layers,
                           const formats::SafetensorsFolder& weights);

/// What files keep in float32 whatever the other weights are stored as.
[[nodiscard]] bool stays_float32(Role role);

[[nodiscard]] Status refuse_infinite(std::span<const float> values, const std::string& name, const std::string& where);

}  // namespace troupe::model
