#include "data/chat_source.h"

#include "base/file.h"
#include "base/json.h"
#include "data/deepseek_v4_chat.h"
#include "formats/gguf.h"

namespace troupe::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTemplateBytesMax = 4u << 20;
constexpr std::uint64_t kConfigBytesMax = 64u << 20;

// One text, or a list of {name, template}.
Result<std::string> template_in(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const auto& entry : value)
      if (entry.is_object() && entry.value("name", nlohmann::json()) == "default" && entry.contains("template") && entry["template"].is_string())
        return entry["template"].get<std::string>();
    return fail(ErrorCode::kCorrupt, "'chat_template' is a list without an entry called \"default\"", where);
  }
  return fail(ErrorCode::kCorrupt, "'chat_template' is neither a text nor a list of them", where);
}

Result<ChatSource> in_folder(const fs::path& folder) {
  std::error_code ec;
  const fs::path file = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (fs::exists(file, ec)) {
    TROUPE_TRY(auto text, read_file(file, kTemplateBytesMax));
    return ChatSource{std::move(text), file.string()};
  }
  if (!fs::exists(config, ec)) return ChatSource{};
  TROUPE_TRY(const auto text, read_file(config, kConfigBytesMax));
  TROUPE_TRY(const auto json, parse_json(text, config.string()));
  if (!json.is_object() || !json.contains("chat_template") || json["chat_template"].is_null()) return ChatSource{};
  TROUPE_TRY(auto jinja, template_in(json["chat_template"], config.string()));
  return ChatSource{std::move(jinja), config.string()};
}

Result<ChatSource> in_gguf(const fs::path& path) {
  TROUPE_TRY(const auto file, formats::GgufFile::open(path));
  const auto text = file.string("tokenizer.chat_template");
  return text ? ChatSource{std::string(*text), path.string()} : ChatSource{};
}

} // namespace

Result<ChatSource> find_chat_template(const fs::path& model, std::string_view family) {
  TROUPE_TRY(ChatSource found, model.extension() == ".gguf" ? in_gguf(model) : in_folder(model));
  if (found.jinja.empty() && family == "deepseek_v4") return ChatSource{std::string(deepseek_v4_template()), "built in"};
  return found;
}

} // namespace troupe::data
