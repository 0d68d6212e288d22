/// @file
/// The families this build knows: one row each.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/spec.h"

namespace troupe::model {

/// What tells one family of the decoder table from another.
struct Family {
  std::string_view name;          ///< config.json's model_type, and GGUF's general.architecture.
  std::string_view architecture;  ///< config.json's architectures[0].
  bool qk_norm;                   ///< RMSNorm on query and key heads.
  double norm_eps;                ///< Where the configuration is silent.
  double rope_theta;              ///< Where the configuration is silent.
  bool gguf_permuted;             ///< GGUF files store query and key rows for adjacent-pair rotation.
};

[[nodiscard]] std::span<const Family> families();
/// Errors: kInvalidArgument listing the known names.
[[nodiscard]] Result<const Family*> find_family(std::string_view name, std::string_view where);

/// Fills every layer of `spec` with the family's parts. `spec` holds everything else already.
void fill_layers(ModelSpec& spec, const Family& family, const DecoderSizes& sizes, const RopeSpec& rope);

/// Errors: kInvalidArgument naming the size that the arithmetic or the memory of this build cannot take.
[[nodiscard]] Status check_sizes(const DecoderSizes& sizes, std::string_view where);

}  // namespace troupe::model
