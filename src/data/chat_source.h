/// @file
/// The chat template that a model's release brings, wherever it is kept.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe::data {

struct ChatSource {
  std::string jinja;  ///< Empty: there is none.
  std::string where;  ///< The file, or "built in".
};

/// Looks for chat_template.jinja, then chat_template in tokenizer_config.json (of several, the one called "default"), or in a GGUF file's
/// metadata. `family` "deepseek_v4", whose releases bring none, has a built-in one.
/// Errors: kCorrupt for a file that cannot be read or a template that is no text.
[[nodiscard]] Result<ChatSource> find_chat_template(const std::filesystem::path& model, std::string_view family);

} // namespace troupe::data
