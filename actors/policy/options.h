/// @file
/// What rank and rollout must agree on: the model, its words and how prompts are written.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/gemm.h"
#include "model/spec.h"
#include "tensor/options.h"

namespace troupe::actors {

struct PolicyOptions {
  std::string model_path;       ///< Hugging Face folder or .gguf file; a config.json: fresh weights of what it describes; empty: of the sizes.
  std::string family;           ///< Of a fresh model; used when `model_path` is empty.
  model::DecoderSizes sizes;    ///< Of a fresh model; vocab_size 0: as many as the tokenizer has.
  std::uint64_t seed = 0;       ///< Of fresh weights.
  std::string tokenizer_folder; ///< With tokenizer.json; the supervisor writes it before anything starts.
  std::string format = "auto";  ///< data::FormatSource::name; the template lies in `tokenizer_folder`.
  tensor::Backends backends;    ///< Who computes.
  bool drafts = false;          ///< The model must be able to guess ahead (generate's draft_tokens).
  kernels::Precision precision = kernels::Precision::kFloat32; ///< Of the operands of matrix products.
};

} // namespace troupe::actors
