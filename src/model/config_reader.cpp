#include "model/config_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace troupe::model {

namespace {

std::string shortened(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

/// Keys that files carry and that change nothing here: names, defaults of libraries, other towers, training switches.
constexpr std::array<std::string_view, 47> kHarmless = {
    "architectures", "transformers_version", "use_cache", "pretraining_tp", "output_router_logits", "_name_or_path",
    "chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder", "output_attentions",
    "output_hidden_states", "problem_type", "return_dict", "auto_map", "ep_size", "attention_dropout",
    "initial_context_length", "qk_head_dim", "_attn_implementation", "_attn_implementation_autoset",
    "attn_implementation", "task_specific_params", "vision_config", "audio_config", "image_token_id", "video_token_id",
    "audio_token_id", "vision_start_token_id", "vision_end_token_id", "out_hidden_size", "projector_hidden_act",
    "projector_hidden_size", "mamba_ssm_dtype", "aux_loss_alpha", "seq_aux", "use_return_dict", "max_window_layers",
    "sliding_window", "router_aux_loss_coef", "expert_dtype", "num_attention_heads", "model_name", "tokenizer_class",
    "language_model_only", "unsloth_fixed", "mlp_bias"};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool switched_off(const nlohmann::json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>());
}

}  // namespace

const nlohmann::json* ConfigReader::get(std::string_view key) const {
  asked_.emplace(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

tl::unexpected<Error> ConfigReader::wrong(std::string_view key, std::string_view wanted) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr)
    return refuse("the key '" + std::string(key) + "' is missing; it must be " + std::string(wanted));
  return refuse("'" + std::string(key) + "' is " + shortened(*value) + "; it must be " + std::string(wanted));
}

Result<std::int64_t> ConfigReader::integer(std::string_view key, std::optional<std::int64_t> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_number_integer()) return wrong(key, "a whole number");
  return value->get<std::int64_t>();
}

Result<double> ConfigReader::number(std::string_view key, std::optional<double> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) return wrong(key, "a number");
  return value->get<double>();
}

Result<bool> ConfigReader::boolean(std::string_view key, bool otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::string(std::string_view key, std::optional<std::string> otherwise) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_string()) return wrong(key, "a string");
  return value->get<std::string>();
}

Result<std::vector<std::int64_t>> ConfigReader::ids(std::string_view key) const {
  const nlohmann::json* value = get(key);
  std::vector<std::int64_t> result;
  if (value == nullptr) return result;
  if (value->is_number_integer()) return std::vector<std::int64_t>{value->get<std::int64_t>()};
  if (!value->is_array()) return wrong(key, "an id or a list of ids");
  for (const auto& id : *value) {
    if (!id.is_number_integer()) return wrong(key, "an id or a list of ids");
    result.push_back(id.get<std::int64_t>());
  }
  return result;
}

Result<std::vector<std::int64_t>> ConfigReader::integers(std::string_view key) const {
  std::vector<std::int64_t> result;
  const nlohmann::json* value = get(key);
  if (value == nullptr) return result;
  if (!value->is_array()) return wrong(key, "a list of whole numbers");
  for (const auto& one : *value) {
    if (!one.is_number_integer() && !(one.is_number() && one.get<double>() == std::floor(one.get<double>())))
      return wrong(key, "a list of whole numbers");
    result.push_back(one.get<std::int64_t>());
  }
  return result;
}

Result<std::vector<std::string>> ConfigReader::strings(std::string_view key) const {
  std::vector<std::string> result;
  const nlohmann::json* value = get(key);
  if (value == nullptr) return result;
  if (!value->is_array()) return wrong(key, "a list of strings");
  for (const auto& one : *value) {
    if (!one.is_string()) return wrong(key, "a list of strings");
    result.push_back(one.get<std::string>());
  }
  return result;
}

Status ConfigReader::must_be(std::string_view key, std::string_view only) const {
  TROUPE_TRY(const std::string value, string(key, std::string(only)));
  if (value == only) return {};
  return refuse("'" + std::string(key) + "' is \"" + value + "\"; supported is \"" + std::string(only) + "\"");
}

Status ConfigReader::refuse_unknown() const {
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key) || switched_off(value)) continue;
    if (std::find(kHarmless.begin(), kHarmless.end(), key) != kHarmless.end()) continue;
    const auto nearest = std::min_element(asked_.begin(), asked_.end(), [&k = key](const auto& a, const auto& b) {
      return edit_distance(a, k) < edit_distance(b, k);
    });
    return refuse("the key '" + key + "' is not known and may change the maths; the nearest known one is '" + *nearest +
                  "'");
  }
  return {};
}

Status ConfigReader::must_be_off(std::string_view key) const {
  const nlohmann::json* value = get(key);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return {};
  return refuse("'" + std::string(key) + "' is " + shortened(*value) +
                ", which this build does not support; it must be false or absent");
}

}  // namespace troupe::model
