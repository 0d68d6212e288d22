/// @file
/// The families this build knows: one row each.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/config_reader.h"
#include "model/names.h"
#include "model/spec.h"

namespace troupe::model {

/// What tells one family of the decoder table from another.
struct Family {
  std::string_view name;          ///< config.json's model_type, and GGUF's general.architecture.
  std::string_view architecture;  ///< config.json's architectures[0].
  bool qk_norm;                   ///< RMSNorm on query and key heads.
  double norm_eps;                ///< Where the configuration is silent.
  double rope_theta;              ///< Where the configuration is silent.
  /// Fills the layers from a configuration, over what fill_layers did; null where that is all.
  Status (*read)(const ConfigReader& config, ModelSpec& spec);
  const NameMap* names;
  std::string_view nested;  ///< The key whose object holds the text model's configuration; empty: the top level.
  bool sized;               ///< fill_layers is all there is: can be made from sizes, and read from GGUF.
  bool gguf_permuted;       ///< GGUF files store query and key rows for adjacent-pair rotation.
};

[[nodiscard]] std::span<const Family> families();
/// Errors: kInvalidArgument listing the known names.
[[nodiscard]] Result<const Family*> find_family(std::string_view name, std::string_view where);
/// Of a spec's family. Precondition: it was made by one of the functions of spec.h.
[[nodiscard]] const NameMap& names_of(const ModelSpec& spec);

/// Fills every layer of `spec` with the family's parts. `spec` holds everything else already.
void fill_layers(ModelSpec& spec, const Family& family, const DecoderSizes& sizes, const RopeSpec& rope);

/// Errors: kInvalidArgument naming the size that the arithmetic or the memory of this build cannot take.
[[nodiscard]] Status check_sizes(const DecoderSizes& sizes, std::string_view where);

/// The same without what only grouped-query attention asks of its heads.
[[nodiscard]] Status check_counts(const DecoderSizes& sizes, std::string_view where);

/// The readers of families.cpp.
Status read_qwen3_moe(const ConfigReader& config, ModelSpec& spec);
Status read_gpt_oss(const ConfigReader& config, ModelSpec& spec);
Status read_deepseek_v3(const ConfigReader& config, ModelSpec& spec);
Status read_deepseek_v4(const ConfigReader& config, ModelSpec& spec);
Status read_qwen3_5(const ConfigReader& config, ModelSpec& spec);
Status read_muse_spark(const ConfigReader& config, ModelSpec& spec);

}  // namespace troupe::model
