/// @file
/// Models from and to files: Hugging Face folders and GGUF.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "base/units.h"
#include "model/folder.h"
#include "model/model.h"

namespace troupe::model {

/// Reads a Hugging Face folder (config.json and model.safetensors, single or sharded; generation_config.json where
/// there is one) or a .gguf file of architecture llama or qwen3. Weights become float32, quantised ones too
/// (formats/quantised.h). Blocks for further tokens that the folder leaves out are left out of the spec. Errors: one sentence naming
/// the file and the tensor or key: missing file, missing tensor, tensor that no part of the model uses, wrong shape,
/// storage type that cannot be read, scale of a quantised tensor that is missing, NaN or infinity, configuration that is
/// not supported.
[[nodiscard]] Result<Model> load_model(const std::filesystem::path& path);

struct ExportOptions {
  /// "float32", "bfloat16", "float16"; "float8": matrices of linear layers in E4M3 with a scale per block of 128 x 128, the rest bfloat16.
  std::string dtype = "float32";
  Bytes shard_max{std::uint64_t{5} * 1000 * 1000 * 1000};  ///< Larger models are written as shards with an index.
};

/// Writes config.json, generation_config.json and the weights in Hugging Face layout into `folder`, which is made when
/// missing. The tokenizer is data/'s to write. Every file is written atomically, the configuration last.
[[nodiscard]] Status export_model(const Model& model, const std::filesystem::path& folder,
                                  const ExportOptions& options = {});

}  // namespace troupe::model
