/// @file
/// What a model's folder or GGUF file says, without reading a number of its weights. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/spec.h"

namespace troupe::model {

/// Whether the path names a config.json alone: a model that is described, without weights.
[[nodiscard]] bool is_description(const std::filesystem::path& path);

/// What the configuration says, be there weights or not.
[[nodiscard]] Result<ModelSpec> configured_spec(const std::filesystem::path& path);

/// Only the spec of what load_model would read: no weights are touched, nor need they be there. A config.json alone will do. Where weights are
/// there, the blocks for further tokens that they leave out are left out.
[[nodiscard]] Result<ModelSpec> load_spec(const std::filesystem::path& path);

/// Refuses a vocabulary that the embedding has no rows for. `where` names the tokenizer.
[[nodiscard]] Status check_vocabulary(const ModelSpec& spec, std::int64_t vocabulary, std::string_view where);

/// The files that hold a model's weights.
struct WeightFiles {
  struct File {
    std::string name;
    bool present = false;
    std::uint64_t bytes = 0;
  };
  std::vector<File> files;  ///< Those that the index names; without one, model.safetensors or the .gguf file.
  std::map<std::string, std::uint64_t> bytes_by_type;  ///< Of tensors, by storage type; only when every file is there.
  std::string problem;  ///< What load_model would say of the tensors; empty: nothing, or files are missing.
  [[nodiscard]] bool complete() const;
};

/// `spec` loses the blocks for further tokens that the files leave out. Errors: kCorrupt for an index that cannot be read.
[[nodiscard]] Result<WeightFiles> weight_files(const std::filesystem::path& path, ModelSpec& spec);

}  // namespace troupe::model
