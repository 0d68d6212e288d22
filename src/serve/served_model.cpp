#include "serve/served_model.h"

#include "data/chat_source.h"
#include "model/load.h"

namespace troupe::serve {

Result<ServedModel> load_served_model(const std::filesystem::path& path, const std::string& format) {
  TROUPE_TRY(const auto spec, model::configured_spec(path));
  TROUPE_TRY(auto tokenizer, data::Tokenizer::load(path));
  TROUPE_TRY_STATUS(model::check_vocabulary(spec, tokenizer.vocab_size(), path.string()));
  TROUPE_TRY(const auto source, data::find_chat_template(path, spec.family));
  data::FormatSource from{format, source.jinja, {}};
  from.end_ids.assign(spec.eos_ids.begin(), spec.eos_ids.end());
  TROUPE_TRY(auto chosen, data::PromptFormat::create(from, tokenizer));
  std::string origin = chosen.is_template() ? "the model's own template (" + source.where + ")" : "the format " + chosen.name();
  if (!chosen.is_template() && format == "auto") origin += ", because the model brings no chat template";
  TROUPE_TRY(auto loaded, model::load_model(path));
  return ServedModel{std::move(loaded), std::move(tokenizer), std::move(chosen), std::move(origin)};
}

} // namespace troupe::serve
