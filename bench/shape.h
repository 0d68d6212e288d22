/// @file
/// The decoder that `generate` and `train` measure, on both sides: Qwen3 of 8 layers x 256, with products in either
/// type.
#pragma once

#include <nlohmann/json.hpp>

#include "model/model.h"

namespace troupe::bench {

[[nodiscard]] inline Result<model::ModelSpec> shape_spec() {
  model::DecoderSizes sizes;
  sizes.vocab_size = 4096;
  sizes.width = 256;
  sizes.layers = 8;
  sizes.heads = 4;
  sizes.kv_heads = 2;
  sizes.head_dim = 64;
  sizes.ffn_width = 768;
  return model::spec_from_sizes("qwen3", sizes);
}

[[nodiscard]] inline std::string dtype_name(kernels::Precision precision) {
  return precision == kernels::Precision::kFloat32 ? "float32" : "bfloat16";
}

[[nodiscard]] inline nlohmann::json shape_conditions(int threads, kernels::Precision precision) {
  return {{"model", "qwen3 8 layers x 256, vocab 4096"}, {"dtype", dtype_name(precision)}, {"threads", threads}};
}

/// The fastest choice that promises no bits: LibTorch's operators wherever `[kernels]` knows them.
inline constexpr tensor::Backends kNotInvariant{tensor::Backend::kAten, tensor::Backend::kAten, tensor::Backend::kAten,
                                                tensor::Backend::kAten};
inline constexpr const char* kNotInvariantName = "[kernels] aten";

/// Behind a figure's name: empty for float32.
[[nodiscard]] inline std::string dtype_suffix(kernels::Precision precision) {
  return precision == kernels::Precision::kFloat32 ? "" : "_bfloat16";
}

inline constexpr kernels::Precision kPrecisions[] = {kernels::Precision::kFloat32, kernels::Precision::kBfloat16};

}  // namespace troupe::bench
