#include "model/gguf_spec.h"

#include <algorithm>
#include <cmath>

#include "model/registry.h"
#include "model/rope.h"

namespace troupe::model {

namespace {

/// Reads "<architecture>.key" with errors that name it.
class Keys {
 public:
  Keys(const formats::GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string name(const std::string& key) const { return prefix_ + "." + key; }
  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(ErrorCode::kInvalidArgument, why, file_.path().string());
  }

  [[nodiscard]] Result<std::int64_t> integer(const std::string& key) const {
    if (const auto value = file_.integer(name(key))) return *value;
    if (!file_.integers(name(key)).empty())
      return refuse("the metadata '" + name(key) + "' differs from layer to layer, which is not supported");
    return refuse("the metadata '" + name(key) + "' is missing or is not a whole number");
  }
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t otherwise) const {
    return file_.integer(name(key)).value_or(otherwise);
  }
  [[nodiscard]] double number(const std::string& key, double otherwise) const {
    return file_.number(name(key)).value_or(otherwise);
  }
  [[nodiscard]] std::string string(const std::string& key, std::string otherwise) const {
    const auto value = file_.string(name(key));
    return value ? std::string(*value) : otherwise;
  }

 private:
  const formats::GgufFile& file_;
  std::string prefix_;
};

Result<DecoderSizes> read_sizes(const Keys& keys, const formats::GgufFile& file, const Family& family) {
  DecoderSizes sizes;
  TROUPE_TRY(sizes.width, keys.integer("embedding_length"));
  TROUPE_TRY(sizes.layers, keys.integer("block_count"));
  TROUPE_TRY(sizes.heads, keys.integer("attention.head_count"));
  TROUPE_TRY(sizes.ffn_width, keys.integer("feed_forward_length"));
  sizes.kv_heads = sizes.heads;
  if (file.value(keys.name("attention.head_count_kv")) != nullptr) {
    TROUPE_TRY(sizes.kv_heads, keys.integer("attention.head_count_kv"));
  }
  sizes.head_dim = keys.integer("attention.key_length", sizes.heads > 0 ? sizes.width / sizes.heads : 0);
  if (keys.integer("attention.value_length", sizes.head_dim) != sizes.head_dim)
    return keys.refuse("key and value heads of different width are not supported");
  sizes.context = keys.integer("context_length", 2048);
  sizes.norm_eps = keys.number("attention.layer_norm_rms_epsilon", family.norm_eps);
  sizes.norm_eps =
      static_cast<double>(std::round(sizes.norm_eps * 1e12) / 1e12);  // a float32 in the file: 1e-5, not 9.99999975e-6
  sizes.rope_theta = keys.number("rope.freq_base", family.rope_theta);
  sizes.tied = file.find("output.weight") == nullptr;
  const formats::GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    return keys.refuse("the tensor 'token_embd.weight' is missing or is not a matrix");
  sizes.vocab_size = embedding->shape[0];
  TROUPE_TRY_STATUS(check_sizes(sizes, file.path().string()));
  return sizes;
}

/// Llama 3 files hold the divisors of the frequencies as a tensor instead of the rule they come from: finds the rule
/// again.
Status read_divisors(const Keys& keys, const formats::GgufFile& file, RopeSpec& rope) {
  const formats::GgufTensor* tensor = file.find("rope_freqs.weight");
  if (tensor == nullptr) return {};
  if (tensor->elements() != rope.width / 2)
    return keys.refuse("the tensor 'rope_freqs.weight' has " + std::to_string(tensor->elements()) +
                       " values, expected are " + std::to_string(rope.width / 2));
  std::vector<float> divisors(static_cast<std::size_t>(tensor->elements()));
  TROUPE_TRY_STATUS(formats::dequantise(*tensor, divisors));
  const float largest = *std::max_element(divisors.begin(), divisors.end());
  if (largest == 1 && *std::min_element(divisors.begin(), divisors.end()) == 1) return {};
  RopeSpec guess = rope;
  guess.kind = RopeKind::kLlama3;
  guess.factor = largest;
  guess.low_freq_factor = 1;
  guess.high_freq_factor = 4;
  guess.original_context = 8192;
  const std::vector<float> plain = rope_frequencies(rope);
  const std::vector<float> scaled = rope_frequencies(guess);
  for (std::size_t i = 0; i < divisors.size(); ++i)
    if (!(std::abs(plain[i] / divisors[i] - scaled[i]) <= 1e-4F * scaled[i]))
      return keys.refuse(
          "the tensor 'rope_freqs.weight' does not follow Llama 3's rule (low 1, high 4, 8192 positions), which is the "
          "only one supported");
  rope = guess;
  return {};
}

Result<RopeSpec> read_rope(const Keys& keys, const formats::GgufFile& file, const DecoderSizes& sizes) {
  RopeSpec rope;
  rope.theta = sizes.rope_theta;
  rope.width = keys.integer("rope.dimension_count", sizes.head_dim);
  if (rope.width < 2 || rope.width > sizes.head_dim || rope.width % 2 != 0)
    return keys.refuse("the metadata '" + keys.name("rope.dimension_count") + "' is out of range");
  const std::string scaling = keys.string("rope.scaling.type", "none");
  if (scaling != "none") {
    if (scaling != "linear" && scaling != "yarn")
      return keys.refuse("the rope scaling '" + scaling + "' is not supported; supported are none, linear and yarn");
    rope.kind = scaling == "linear" ? RopeKind::kLinear : RopeKind::kYarn;
    rope.factor = keys.number("rope.scaling.factor", 1);
    rope.original_context = keys.integer("rope.scaling.original_context_length", sizes.context);
    if (!(rope.factor >= 1) || rope.original_context < 1)
      return keys.refuse("the metadata '" + keys.name("rope.scaling") + ".*' is out of range");
    if (rope.kind == RopeKind::kYarn)
      rope.attention_factor = keys.number("rope.scaling.attn_factor", 1) * (0.1 * std::log(rope.factor) + 1);
  }
  TROUPE_TRY_STATUS(read_divisors(keys, file, rope));
  return rope;
}

}  // namespace

Result<ModelSpec> spec_from_gguf(const formats::GgufFile& file) {
  const std::string where = file.path().string();
  const auto architecture = file.string("general.architecture");
  if (!architecture) return fail(ErrorCode::kInvalidArgument, "the metadata 'general.architecture' is missing", where);
  TROUPE_TRY(const Family* family, find_family(*architecture, where));
  if (!family->sized)
    return fail(ErrorCode::kInvalidArgument,
                "GGUF files of the family '" + std::string(*architecture) +
                    "' are not read; give the folder with config.json and safetensors",
                where);
  const Keys keys(file, std::string(*architecture));
  TROUPE_TRY(const DecoderSizes sizes, read_sizes(keys, file, *family));
  TROUPE_TRY(const RopeSpec rope, read_rope(keys, file, sizes));
  ModelSpec spec;
  fill_layers(spec, *family, sizes, rope);
  spec.bos_id = file.integer("tokenizer.ggml.bos_token_id").value_or(-1);
  spec.pad_id = file.integer("tokenizer.ggml.padding_token_id").value_or(-1);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (const auto id = file.integer(key);
        id && std::find(spec.eos_ids.begin(), spec.eos_ids.end(), *id) == spec.eos_ids.end())
      spec.eos_ids.push_back(*id);
  return spec;
}

void unpermute_heads(std::span<float> values, std::int64_t heads, std::int64_t head_dim, std::int64_t in) {
  std::vector<float> head(static_cast<std::size_t>(head_dim * in));
  for (std::int64_t h = 0; h < heads; ++h) {
    float* rows = values.data() + h * head_dim * in;
    for (std::int64_t pair = 0; pair < head_dim / 2; ++pair)
      for (std::int64_t side = 0; side < 2; ++side)
        std::copy_n(rows + (2 * pair + side) * in, in, head.begin() + (pair + side * head_dim / 2) * in);
    std::copy(head.begin(), head.end(), rows);
  }
}

}  // namespace troupe::model
