/// @file
/// A model ready to talk: weights, tokenizer, the way it writes conversations.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "data/chat.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace troupe::serve {

struct ServedModel {
  model::Model model;
  data::Tokenizer tokenizer;
  data::PromptFormat format;
  std::string origin; ///< Of the format, in words: which file, or what is used for want of a template.
};

/// Loads a Hugging Face folder or a .gguf file. `format` as data::FormatSource::name. Errors: those of load_model, Tokenizer::load and
/// PromptFormat::create; kInvalidArgument when tokenizer and model do not belong together.
[[nodiscard]] Result<ServedModel> load_served_model(const std::filesystem::path& path, const std::string& format);

} // namespace troupe::serve
