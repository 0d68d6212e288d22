// config.json to ModelSpec and back.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/config_rope.h"
#include "model/registry.h"
#include "model/spec.h"

namespace troupe::model {

double yarn_magnitude(double factor, double c) { return factor > 1 ? 0.1 * c * std::log(factor) + 1 : 1; }

namespace {

Status read_yarn(const ConfigReader& scaling, std::int64_t context, RopeSpec& rope) {
  TROUPE_TRY(rope.original_context, scaling.integer("original_max_position_embeddings", context));
  TROUPE_TRY(rope.beta_fast, scaling.number("beta_fast", 32));
  TROUPE_TRY(rope.beta_slow, scaling.number("beta_slow", 1));
  TROUPE_TRY(rope.truncate, scaling.boolean("truncate", true));
  TROUPE_TRY(const double mscale, scaling.number("mscale", 0));
  TROUPE_TRY(const double mscale_all, scaling.number("mscale_all_dim", 0));
  const double usual = mscale != 0 && mscale_all != 0
                           ? yarn_magnitude(rope.factor, mscale) / yarn_magnitude(rope.factor, mscale_all)
                           : yarn_magnitude(rope.factor, 1);
  TROUPE_TRY(rope.attention_factor, scaling.number("attention_factor", usual));
  if (!std::isfinite(rope.attention_factor) || !(rope.beta_fast > 0) || !(rope.beta_slow > 0))
    return scaling.refuse("the rope scaling needs a finite attention factor, and beta_fast and beta_slow above 0");
  return {};
}

Status read_scaling(const ConfigReader& scaling, std::int64_t context, RopeSpec& rope) {
  TROUPE_TRY(const std::string old_name, scaling.string("type", "default"));
  TROUPE_TRY(const std::string kind, scaling.string("rope_type", old_name));
  if (kind == "default") return {};
  if (kind != "linear" && kind != "llama3" && kind != "yarn")
    return scaling.refuse("the rope scaling '" + kind + "' is not known; known are: default, linear, llama3, yarn");
  TROUPE_TRY(rope.factor, scaling.number("factor"));
  if (!(rope.factor >= 1)) return scaling.refuse("the rope scaling 'factor' must be at least 1");
  if (kind == "linear") {
    rope.kind = RopeKind::kLinear;
    return {};
  }
  rope.kind = kind == "llama3" ? RopeKind::kLlama3 : RopeKind::kYarn;
  if (rope.kind == RopeKind::kYarn) {
    TROUPE_TRY_STATUS(read_yarn(scaling, context, rope));
  } else {
    TROUPE_TRY(rope.low_freq_factor, scaling.number("low_freq_factor"));
    TROUPE_TRY(rope.high_freq_factor, scaling.number("high_freq_factor"));
    TROUPE_TRY(rope.original_context, scaling.integer("original_max_position_embeddings"));
    if (!(rope.low_freq_factor > 0) || !(rope.high_freq_factor > rope.low_freq_factor))
      return scaling.refuse("the rope scaling needs 0 < low_freq_factor < high_freq_factor");
  }
  if (rope.original_context < 1) return scaling.refuse("'original_max_position_embeddings' must be at least 1");
  return {};
}

}  // namespace

Result<RopeSpec> read_rope(const ConfigReader& config, std::int64_t head_dim, std::int64_t context,
                           double theta_otherwise) {
  RopeSpec rope;
  const nlohmann::json* scaling = config.get("rope_parameters");
  if (scaling == nullptr) scaling = config.get("rope_scaling");
  TROUPE_TRY(rope.theta, config.number("rope_theta", theta_otherwise));
  TROUPE_TRY(double rotated, config.number("partial_rotary_factor", 1));
  if (scaling != nullptr) {
    if (!scaling->is_object()) return config.refuse("'rope_parameters' or 'rope_scaling' must be an object");
    const ConfigReader inner(*scaling, config.where());
    TROUPE_TRY(rope.theta, inner.number("rope_theta", rope.theta));
    TROUPE_TRY(rotated, inner.number("partial_rotary_factor", rotated));
    TROUPE_TRY_STATUS(read_scaling(inner, context, rope));
    for (const char* key : {"type", "mrope_interleaved", "mrope_section", "attn_factor"}) (void)inner.get(key);
    TROUPE_TRY_STATUS(inner.refuse_unknown());
  }
  if (!(rope.theta > 1)) return config.refuse("rope_theta must be a number above 1");
  const bool is_part = rotated > 0 && rotated <= 1;
  rope.width = is_part ? static_cast<std::int64_t>(static_cast<double>(head_dim) * rotated) : 0;
  if (rope.width % 2 != 0 || rope.width < 2)
    return config.refuse("'partial_rotary_factor' must leave an even number of channels that rotate");
  const double reach = rope.factor * static_cast<double>(rope.original_context);
  if (rope.kind == RopeKind::kYarn && static_cast<double>(context) > reach)
    return config.refuse("'max_position_embeddings' is " + std::to_string(context) +
                         ", beyond the range of the rope scaling: 'factor' times 'original_max_position_embeddings' is " +
                         std::to_string(static_cast<std::int64_t>(reach)));
  return rope;
}

namespace {

/// Quantised weights are read where every tensor brings its own scale (formats/quantised.h).
Status check_quantisation(const ConfigReader& config) {
  const nlohmann::json* how = config.get("quantization_config");
  if (how == nullptr || !how->is_object()) return config.must_be_off("quantization_config");
  const nlohmann::json method = how->value("quant_method", nlohmann::json());
  return method == "fp8" || method == "mxfp4" ? Status{} : config.must_be_off("quantization_config");
}

/// What a configuration may switch on and this build cannot do, for families that have only usual parts.
Status refuse_unsupported(const ConfigReader& config) {
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"})
    TROUPE_TRY_STATUS(config.must_be_off(key));
  if (const nlohmann::json* kinds = config.get("layer_types"))
    for (const auto& kind : *kinds)
      if (kind != "full_attention")
        return config.refuse("'layer_types' holds " + kind.dump() + "; supported is \"full_attention\"");
  return {};
}

Result<DecoderSizes> read_sizes(const ConfigReader& config, const Family& family) {
  DecoderSizes sizes;
  TROUPE_TRY(sizes.vocab_size, config.integer("vocab_size"));
  TROUPE_TRY(sizes.width, config.integer("hidden_size"));
  TROUPE_TRY(sizes.layers, config.integer("num_hidden_layers"));
  TROUPE_TRY(sizes.heads, config.integer("num_attention_heads"));
  TROUPE_TRY(sizes.kv_heads, config.integer("num_key_value_heads", sizes.heads));
  TROUPE_TRY(sizes.head_dim, config.integer("head_dim", sizes.heads > 0 ? sizes.width / sizes.heads : 0));
  const std::optional<std::int64_t> no_dense_layers = family.sized ? std::nullopt : std::optional<std::int64_t>(1);
  TROUPE_TRY(sizes.ffn_width, config.integer("intermediate_size", no_dense_layers));
  TROUPE_TRY(sizes.context, config.integer("max_position_embeddings", 2048));
  TROUPE_TRY(sizes.norm_eps, config.number("rms_norm_eps", family.norm_eps));
  TROUPE_TRY(sizes.init_std, config.number("initializer_range", 0.02));
  return sizes;
}

nlohmann::json scaling_json(const RopeSpec& rope) {
  switch (rope.kind) {
    case RopeKind::kDefault:
      return nullptr;
    case RopeKind::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeKind::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_context}};
    case RopeKind::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"original_max_position_embeddings", rope.original_context},
              {"beta_fast", rope.beta_fast},
              {"beta_slow", rope.beta_slow},
              {"truncate", rope.truncate},
              {"attention_factor", rope.attention_factor}};
  }
  return nullptr;
}

nlohmann::json id_or_null(std::int64_t id) { return id >= 0 ? nlohmann::json(id) : nlohmann::json(nullptr); }

nlohmann::json ids_json(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

}  // namespace

Result<ModelSpec> spec_from_config(const nlohmann::json& json, std::string_view where) {
  if (!json.is_object())
    return fail(ErrorCode::kInvalidArgument, "the model configuration is not a JSON object", std::string(where));
  const ConfigReader top(json, where);
  TROUPE_TRY(const std::string name, top.string("model_type"));
  TROUPE_TRY(const Family* family, find_family(name, where));
  const nlohmann::json* inner = family->nested.empty() ? &json : top.get(family->nested);
  if (inner == nullptr || !inner->is_object())
    return top.refuse("the key '" + std::string(family->nested) + "' is missing; it must be an object");
  const ConfigReader config(*inner, where);
  (void)config.get("model_type");
  TROUPE_TRY_STATUS(check_quantisation(top));
  (void)config.get("quantization_config");
  if (family->sized) TROUPE_TRY_STATUS(refuse_unsupported(config));
  TROUPE_TRY_STATUS(config.must_be("hidden_act", "silu"));
  TROUPE_TRY(DecoderSizes sizes, read_sizes(config, *family));
  TROUPE_TRY(const bool tied, config.boolean("tie_word_embeddings", false));
  TROUPE_TRY(sizes.tied, top.boolean("tie_word_embeddings", tied));
  RopeSpec rope;
  if (family->sized) {
    TROUPE_TRY_STATUS(check_sizes(sizes, where));
    TROUPE_TRY(rope, read_rope(config, sizes.head_dim, sizes.context, family->rope_theta));
    sizes.rope_theta = rope.theta;
  }
  TROUPE_TRY_STATUS(family->sized ? check_sizes(sizes, where) : check_counts(sizes, where));
  ModelSpec spec;
  fill_layers(spec, *family, sizes, rope);
  if (family->read != nullptr) {
    TROUPE_TRY_STATUS(family->read(config, spec));
    spec.config = json.dump();
  }
  TROUPE_TRY(spec.bos_id, config.integer("bos_token_id", -1));
  TROUPE_TRY(spec.pad_id, config.integer("pad_token_id", -1));
  TROUPE_TRY(spec.eos_ids, config.ids("eos_token_id"));
  TROUPE_TRY(const std::string top_dtype, top.string("dtype", "float32"));
  TROUPE_TRY(const std::string dtype, config.string("dtype", top_dtype));
  TROUPE_TRY(spec.stored_dtype, config.string("torch_dtype", dtype));
  TROUPE_TRY_STATUS(config.refuse_unknown());
  TROUPE_TRY_STATUS(top.object() == config.object() ? Status{} : top.refuse_unknown());
  return spec;
}

/// The configuration that was read, with what an export may change.
static nlohmann::json kept_config(const ModelSpec& spec) {
  nlohmann::json json = nlohmann::json::parse(spec.config);
  const auto all = families();
  const auto family = std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.name == spec.family; });
  json.erase("quantization_config");
  nlohmann::json& text = family->nested.empty() ? json : json[std::string(family->nested)];
  text.erase("dtype");
  text["torch_dtype"] = spec.stored_dtype;
  text["eos_token_id"] = ids_json(spec.eos_ids);
  for (const char* key : {"mtp_num_hidden_layers", "num_nextn_predict_layers"})
    if (text.contains(key)) text[key] = spec.mtp.size();
  return json;
}

nlohmann::json config_json(const ModelSpec& spec) {
  if (!spec.config.empty()) return kept_config(spec);
  const LayerSpec& layer = spec.layers.front();
  const RopeSpec& rope = spec.ropes.front();
  const auto all = families();
  const auto family = std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.name == spec.family; });
  nlohmann::json json = {{"architectures", {family->architecture}},
                         {"model_type", spec.family},
                         {"vocab_size", spec.vocab_size},
                         {"hidden_size", spec.width},
                         {"intermediate_size", layer.ffn.width},
                         {"num_hidden_layers", spec.layers.size()},
                         {"num_attention_heads", layer.attention.heads},
                         {"num_key_value_heads", layer.attention.kv_heads},
                         {"head_dim", layer.attention.head_dim},
                         {"hidden_act", "silu"},
                         {"max_position_embeddings", spec.context},
                         {"initializer_range", spec.init_std},
                         {"rms_norm_eps", spec.final_norm.eps},
                         {"rope_theta", rope.theta},
                         {"rope_scaling", scaling_json(rope)},
                         {"tie_word_embeddings", spec.tied},
                         {"attention_bias", false},
                         {"attention_dropout", 0.0},
                         {"bos_token_id", id_or_null(spec.bos_id)},
                         {"eos_token_id", ids_json(spec.eos_ids)},
                         {"pad_token_id", id_or_null(spec.pad_id)},
                         {"use_cache", true},
                         {"torch_dtype", spec.stored_dtype}};
  if (rope.width != layer.attention.head_dim)
    json["partial_rotary_factor"] = static_cast<double>(rope.width) / static_cast<double>(layer.attention.head_dim);
  if (family->qk_norm)
    json["use_sliding_window"] = false;
  else
    json["mlp_bias"] = false;
  return json;
}

}  // namespace troupe::model
