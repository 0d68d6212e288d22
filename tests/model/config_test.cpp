#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/parameters.h"
#include "model/spec.h"

namespace troupe::model {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json fixture(const std::string& name) {
  std::ifstream in(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / name / "config.json");
  return json::parse(in);
}

std::string refusal(const json& config) {
  const auto spec = spec_from_config(config, "config.json");
  return spec ? "accepted" : spec.error().to_string();
}

/// A configuration as newer files spell it: everything of the rotation under one key.
json with_rope_parameters(json config) {
  json parameters = config["rope_scaling"];
  parameters["rope_theta"] = config["rope_theta"];
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = parameters;
  return config;
}

TEST(Config, ReadsBothSpellingsOfTheRotaryKeys) {
  const auto yarn = spec_from_config(fixture("qwen3/yarn_untied"), "");
  ASSERT_TRUE(yarn) << yarn.error().to_string();
  EXPECT_EQ(yarn->ropes[0].kind, RopeKind::kYarn);
  EXPECT_EQ(yarn->ropes[0].theta, 1e6);
  EXPECT_NEAR(yarn->ropes[0].attention_factor, 1.138629, 1e-6);
  json config = with_rope_parameters(fixture("qwen3/yarn_untied"));
  const auto other = spec_from_config(config, "");
  ASSERT_TRUE(other) << other.error().to_string();
  EXPECT_EQ(other->ropes[0], yarn->ropes[0]);
  config["rope_parameters"]["type"] = config["rope_parameters"]["rope_type"];
  config["rope_parameters"].erase("rope_type");
  EXPECT_EQ(spec_from_config(config, "")->ropes[0], yarn->ropes[0]);
}

TEST(Config, LatentAttentionsScaleFollowsBothSpellings) {
  const auto released = spec_from_config(fixture("deepseek_v3/yarn"), "");
  ASSERT_TRUE(released) << released.error().to_string();
  EXPECT_NEAR(released->layers[0].attention.scale, 0.21846010421426465, 1e-12);  // golden.json, "softmax_scale"
  const auto other = spec_from_config(with_rope_parameters(fixture("deepseek_v3/yarn")), "");
  ASSERT_TRUE(other) << other.error().to_string();
  EXPECT_EQ(other->layers[0].attention.scale, released->layers[0].attention.scale);
  EXPECT_EQ(other->ropes, released->ropes);
}

TEST(Config, FillsTheTableOfParts) {
  const auto qwen = spec_from_config(fixture("qwen3/base"), "");
  ASSERT_TRUE(qwen) << qwen.error().to_string();
  EXPECT_TRUE(qwen->tied);
  EXPECT_EQ(qwen->layers.size(), 3U);
  EXPECT_TRUE(qwen->layers[2].attention.qk_norm);
  EXPECT_EQ(qwen->layers[2].attention.head_dim, 32);
  EXPECT_EQ(qwen->eos_ids, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(qwen->pad_id, -1);
  const auto llama = spec_from_config(fixture("llama3/base"), "");
  ASSERT_TRUE(llama) << llama.error().to_string();
  EXPECT_FALSE(llama->layers[0].attention.qk_norm);
  EXPECT_EQ(llama->ropes[0].kind, RopeKind::kLlama3);
  EXPECT_EQ(llama->ropes[0].original_context, 64);
}

TEST(Config, WrittenConfigurationsReadBackTheSame) {
  for (const char* name : {"qwen3_moe/base", "gpt_oss/base", "deepseek_v3/base", "deepseek_v3/yarn", "deepseek_v4/base",
                           "qwen3_5/base", "qwen3_5_moe/base", "muse_spark/base"}) {
    const auto spec = spec_from_config(fixture(name), name);
    ASSERT_TRUE(spec) << spec.error().to_string();
    const json written = config_json(*spec);
    const auto again = spec_from_config(json::parse(written.dump()), name);
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(config_json(*again), written) << name;
    EXPECT_EQ(again->ropes, spec->ropes) << name;
    EXPECT_EQ(again->parameter_count(), spec->parameter_count());
  }
  for (const char* name : {"qwen3/base", "qwen3/yarn_untied", "llama3/base"}) {
    const auto spec = spec_from_config(fixture(name), name);
    ASSERT_TRUE(spec);
    const json written = config_json(*spec);
    const auto again = spec_from_config(json::parse(written.dump()), name);
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(config_json(*again), written) << name;
    EXPECT_EQ(again->ropes[0], spec->ropes[0]) << name;
    EXPECT_EQ(again->parameter_count(), spec->parameter_count());
    for (const char* key :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "bos_token_id", "eos_token_id",
          "max_position_embeddings", "model_type", "architectures"})
      EXPECT_EQ(written[key], fixture(name)[key]) << name << " " << key;
  }
}

TEST(Config, ParameterCountsOfReleasedModels) {  // research/models.md 2 and 3
  const auto qwen = spec_from_sizes("qwen3", {.vocab_size = 151936,
                                              .width = 1024,
                                              .layers = 28,
                                              .heads = 16,
                                              .kv_heads = 8,
                                              .head_dim = 128,
                                              .ffn_width = 3072,
                                              .tied = true});
  ASSERT_TRUE(qwen) << qwen.error().to_string();
  EXPECT_EQ(qwen->parameter_count(), 596'049'920);
  const auto llama = spec_from_sizes("llama", {.vocab_size = 128256,
                                               .width = 4096,
                                               .layers = 32,
                                               .heads = 32,
                                               .kv_heads = 8,
                                               .ffn_width = 14336,
                                               .tied = false});
  ASSERT_TRUE(llama) << llama.error().to_string();
  EXPECT_EQ(llama->parameter_count(), 8'030'261'248);
}

struct Bad {
  const char* key;
  json value;
  const char* message;
};

TEST(Config, RefusesWithOneSentenceThatNamesTheKey) {
  const std::vector<Bad> table = {
      {"model_type", "gpt2", "config.json: the model family 'gpt2' is not known; known are: llama, qwen3"},
      {"model_type", nullptr, "the key 'model_type' is missing; it must be a string"},
      {"vocab_size", nullptr, "the key 'vocab_size' is missing; it must be a whole number"},
      {"vocab_size", "many", "'vocab_size' is \"many\"; it must be a whole number"},
      {"vocab_size", 0, "vocab_size is 0, allowed are 1 to"},
      {"hidden_size", -64, "hidden_size is -64, allowed are 1 to"},
      {"hidden_size", 1e3, "'hidden_size' is 1000.0; it must be a whole number"},
      {"num_hidden_layers", 1000000000, "num_hidden_layers is 1000000000, allowed are 1 to 4096"},
      {"num_key_value_heads", 3, "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"},
      {"num_key_value_heads", 0, "num_key_value_heads is 0"},
      {"head_dim", 20, "head_dim is 20, it must be a multiple of 16"},
      {"head_dim", 512, "head_dim is 512, allowed are 1 to 256"},
      {"rms_norm_eps", 0, "rms_norm_eps must be a positive number"},
      {"attention_bias", true, "'attention_bias' is true, which this build does not support"},
      {"use_sliding_window", true, "'use_sliding_window' is true"},
      {"quantization_config", json{{"bits", 4}},
       "'quantization_config' is {\"bits\":4}, which this build does not support"},
      {"hidden_act", "gelu", "'hidden_act' is \"gelu\"; supported is \"silu\""},
      {"layer_types", json::array({"full_attention", "sliding_attention"}),
       "'layer_types' holds \"sliding_attention\""},
      {"rope_scaling", "yarn", "'rope_parameters' or 'rope_scaling' must be an object"},
      {"rope_scaling", json{{"rope_type", "longrope"}},
       "the rope scaling 'longrope' is not known; known are: default, linear, llama3, yarn"},
      {"rope_scaling", json{{"rope_type", "yarn"}}, "the key 'factor' is missing"},
      {"rope_scaling",
       json{{"rope_type", "llama3"},
            {"factor", 8},
            {"low_freq_factor", 4},
            {"high_freq_factor", 1},
            {"original_max_position_embeddings", 64}},
       "0 < low_freq_factor < high_freq_factor"},
      {"eos_token_id", "end", "'eos_token_id' is \"end\"; it must be an id or a list of ids"},
      {"tie_word_embeddings", 1, "'tie_word_embeddings' is 1; it must be true or false"},
  };
  ASSERT_EQ(refusal(fixture("qwen3/yarn_untied")), "accepted");
  for (const Bad& bad : table) {
    json config = fixture("qwen3/yarn_untied");
    config[bad.key] = bad.value;
    EXPECT_THAT(refusal(config), HasSubstr(bad.message));
  }
  EXPECT_THAT(refusal(json::array()), HasSubstr("not a JSON object"));
}

TEST(Config, OtherFamiliesRefuseWhatTheyCannotDo) {
  struct Spoilt {
    const char* name;
    const char* key;  // a JSON pointer
    json value;
    const char* message;
  };
  const std::vector<Spoilt> table = {
      {"qwen3_moe/base", "/norm_topk_porb", true,
       "the key 'norm_topk_porb' is not known and may change the maths; the nearest known one is 'norm_topk_prob'"},
      {"qwen3_moe/base", "/num_experts_per_tok", 9, "num_experts_per_tok is 9, allowed are 1 to 8"},
      {"qwen3_moe/base", "/num_local_experts", 0, "num_local_experts is 0"},
      {"qwen3_moe/base", "/use_sliding_window", true, "'use_sliding_window' is true"},
      {"qwen3/base", "/logit_scale", 0.5, "the key 'logit_scale' is not known"},
      {"gpt_oss/base", "/rope_scaling/rope_type", "longrope", "the rope scaling 'longrope' is not known"},
      {"gpt_oss/base", "/rope_scaling/short_factor", 2, "the key 'short_factor' is not known"},
      {"gpt_oss/base", "/max_position_embeddings", 257, "'max_position_embeddings' is 257, beyond the range"},
      {"gpt_oss/base", "/layer_types", json::array({"full_attention"}), "'layer_types' has 1 entries for 2 layers"},
      {"gpt_oss/base", "/layer_types/0", "chunked_attention", "'layer_types' holds \"chunked_attention\""},
      {"deepseek_v3/base", "/n_group", 3,
       "the number of experts (16) must be a multiple of n_group (3)"},
      {"deepseek_v3/base", "/topk_group", 5, "topk_group is 5, allowed are 1 to 4"},
      {"deepseek_v3/base", "/scoring_func", "softmax", "'scoring_func' is \"softmax\"; supported is \"sigmoid\""},
      {"deepseek_v3/yarn", "/max_position_embeddings", 321, "beyond the range of the rope scaling"},
      {"deepseek_v4/base", "/compress_ratios", json::array({0, 4}), "'compress_ratios' has 2 entries for 5 layers"},
      {"deepseek_v4/base", "/o_groups", 3, "o_groups must divide"},
      {"qwen3_5/base", "/text_config/attn_output_gate", false, "'attn_output_gate' is false; supported is true"},
      {"qwen3_5/base", "/text_config/linear_num_key_heads", 3, "must be a multiple of linear_num_key_heads"},
      {"qwen3_5/base", "/text_config", nullptr, "the key 'text_config' is missing"},
      {"muse_spark/base", "/text_config/mlp_layer_types/1", "switch", "'mlp_layer_types' holds \"switch\""},
  };
  for (const Spoilt& spoilt : table) {
    json config = fixture(spoilt.name);
    config[json::json_pointer(spoilt.key)] = spoilt.value;
    EXPECT_THAT(refusal(config), HasSubstr(spoilt.message)) << spoilt.name << " " << spoilt.key;
  }
}

TEST(Config, ParameterCountsOfReleasedMixtures) {  // research/models.md 4 and 6
  json config = fixture("qwen3_moe/base");
  config.update({{"hidden_size", 2048}, {"moe_intermediate_size", 768}, {"num_hidden_layers", 48},
                 {"num_attention_heads", 32}, {"num_key_value_heads", 4}, {"head_dim", 128}, {"num_local_experts", 128},
                 {"num_experts_per_tok", 8}, {"vocab_size", 151936}, {"mlp_only_layers", json::array()}});
  const auto qwen = spec_from_config(config, "");
  ASSERT_TRUE(qwen) << qwen.error().to_string();
  EXPECT_EQ(qwen->parameter_count(), 30'532'122'624);
  config = fixture("deepseek_v3/base");
  config.update({{"hidden_size", 7168}, {"intermediate_size", 18432}, {"moe_intermediate_size", 2048},
                 {"num_hidden_layers", 61}, {"num_attention_heads", 128}, {"num_key_value_heads", 128},
                 {"q_lora_rank", 1536}, {"kv_lora_rank", 512}, {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64},
                 {"v_head_dim", 128}, {"n_routed_experts", 256}, {"num_experts_per_tok", 8}, {"n_group", 8},
                 {"topk_group", 4}, {"first_k_dense_replace", 3}, {"vocab_size", 129280},
                 {"num_nextn_predict_layers", 0}});
  const auto deepseek = spec_from_config(config, "");
  ASSERT_TRUE(deepseek) << deepseek.error().to_string();
  EXPECT_EQ(deepseek->parameter_count(), 671'026'404'352);
}

TEST(Config, NumbersThatFitNoWhereAreRefused) {
  const auto with = [](const char* key, const json& value) {
    json config = fixture("qwen3/yarn_untied");
    config[json::json_pointer(key)] = value;
    return refusal(config);
  };
  EXPECT_THAT(with("/partial_rotary_factor", 1e300), HasSubstr("'partial_rotary_factor' must leave"));
  EXPECT_THAT(with("/partial_rotary_factor", -1e300), HasSubstr("'partial_rotary_factor' must leave"));
  EXPECT_THAT(with("/rope_scaling/beta_fast", 0), HasSubstr("beta_fast and beta_slow above 0"));
  json odd = fixture("qwen3/yarn_untied");
  odd["rope_scaling"]["factor"] = 1e308;
  odd["rope_scaling"]["mscale"] = 1e308;
  odd["rope_scaling"]["mscale_all_dim"] = 1e-308;
  EXPECT_THAT(refusal(odd), HasSubstr("finite attention factor"));
}

TEST(Config, SizesThatDoNotFitAreNamed) {
  EXPECT_THAT(
      spec_from_sizes("qwen3", {.vocab_size = 96, .width = 60, .layers = 1, .heads = 4, .kv_heads = 2, .ffn_width = 96})
          .error()
          .message,
      HasSubstr("head_dim is 15, it must be a multiple of 16"));
  EXPECT_THAT(spec_from_sizes("bert", {}).error().message, HasSubstr("'bert' is not known"));
}

}  // namespace
}  // namespace troupe::model
