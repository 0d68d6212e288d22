// GGUF models, written here value by value: names, row order of query and key matrices, rotary settings.
#include <gmock/gmock.h>

#include "../formats/temporary_folder.h"
#include "model/parameters.h"
#include "model/rope.h"
#include "support.h"

namespace troupe::model::test {
namespace {

using ::testing::HasSubstr;

/// A GGUF file with float32 tensors.
class GgufWriter {
 public:
  void integer(const std::string& key, std::uint32_t value) { pair(key, 4, value); }
  void number(const std::string& key, float value) { pair(key, 6, value); }
  void string(const std::string& key, const std::string& value) {
    text(metadata_, key);
    put(metadata_, std::uint32_t{8});
    text(metadata_, value);
    ++pairs_;
  }
  void tensor(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
    text(table_, name);
    put(table_, static_cast<std::uint32_t>(shape.size()));
    for (auto it = shape.rbegin(); it != shape.rend(); ++it) put(table_, static_cast<std::uint64_t>(*it));
    put(table_, std::uint32_t{0});
    put(table_, static_cast<std::uint64_t>(data_.size()));
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    data_.append((32 - data_.size() % 32) % 32, '\0');
    ++tensors_;
  }
  [[nodiscard]] std::string bytes() const {
    std::string file = "GGUF";
    put(file, std::uint32_t{3});
    put(file, tensors_);
    put(file, pairs_);
    file += metadata_ + table_;
    file.append((32 - file.size() % 32) % 32, '\0');
    return file + data_;
  }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void text(std::string& to, const std::string& value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to += value;
  }
  template <class T>
  void pair(const std::string& key, std::uint32_t kind, T value) {
    text(metadata_, key);
    put(metadata_, kind);
    put(metadata_, value);
    ++pairs_;
  }
  std::string metadata_, table_, data_;
  std::uint64_t pairs_ = 0, tensors_ = 0;
};

/// Row i of a head goes to 2i, row i + half to 2i + 1: what llama.cpp's converter does.
std::vector<float> permuted(const std::vector<float>& values, std::int64_t heads, std::int64_t rows, std::int64_t in) {
  std::vector<float> out(values.size());
  const std::int64_t head_dim = rows / heads;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t inside = row % head_dim;
    const std::int64_t to = row - inside + (inside < head_dim / 2 ? 2 * inside : 2 * (inside - head_dim / 2) + 1);
    std::copy_n(values.begin() + row * in, in, out.begin() + to * in);
  }
  return out;
}

GgufWriter file_of(const Model& model) {
  const ModelSpec& spec = model.spec();
  const LayerSpec& layer = spec.layers.front();
  GgufWriter writer;
  writer.string("general.architecture", spec.family);
  const auto size = [&](const std::string& key, std::int64_t value) {
    writer.integer(spec.family + "." + key, static_cast<std::uint32_t>(value));
  };
  size("embedding_length", spec.width);
  size("block_count", static_cast<std::int64_t>(spec.layers.size()));
  size("attention.head_count", layer.attention.heads);
  size("attention.head_count_kv", layer.attention.kv_heads);
  size("attention.key_length", layer.attention.head_dim);
  size("feed_forward_length", layer.ffn.width);
  size("context_length", spec.context);
  writer.number(spec.family + ".rope.freq_base", static_cast<float>(spec.ropes[0].theta));
  writer.number(spec.family + ".attention.layer_norm_rms_epsilon", static_cast<float>(spec.final_norm.eps));
  writer.integer("tokenizer.ggml.eos_token_id", 2);
  for (const ParameterSpec& row : parameter_table(spec)) {
    auto numbers = values(*model.find(row.name));
    if (spec.family == "llama" && row.rotated_heads > 0)
      numbers = permuted(numbers, row.rotated_heads, row.shape[0], row.shape[1]);
    writer.tensor(row.gguf_name, row.shape, numbers);
  }
  return writer;
}

Model fresh(const std::string& family, bool tied) {
  return Model::create(value_or_die(spec_from_sizes(family, {.vocab_size = 64,
                                                             .width = 64,
                                                             .layers = 2,
                                                             .heads = 4,
                                                             .kv_heads = 2,
                                                             .head_dim = 32,
                                                             .ffn_width = 96,
                                                             .rope_theta = 500000,
                                                             .norm_eps = 1e-5,
                                                             .tied = tied})),
                       9);
}

TEST(GgufLoad, GivesBackEveryWeight) {
  const troupe::test::TemporaryFolder folder;
  for (const char* family : {"llama", "qwen3"})
    for (const bool tied : {true, false}) {
      const Model model = fresh(family, tied);
      const Model again = value_or_die(load_model(folder.write("model.gguf", file_of(model).bytes())));
      EXPECT_EQ(again.spec().tied, tied);
      EXPECT_EQ(again.spec().eos_ids, (std::vector<std::int64_t>{2}));
      EXPECT_EQ(again.spec().final_norm.eps, 1e-5);
      ASSERT_EQ(again.parameters().size(), model.parameters().size());
      for (std::size_t i = 0; i < model.parameters().size(); ++i)
        EXPECT_EQ(values(again.parameters()[i].value), values(model.parameters()[i].value))
            << model.parameters()[i].name;
    }
}

TEST(GgufLoad, FindsLlama3sRuleInItsDivisors) {
  const troupe::test::TemporaryFolder folder;
  const Model model = fresh("llama", true);
  RopeSpec rule = model.spec().ropes[0];
  const auto plain = rope_frequencies(rule);
  rule.kind = RopeKind::kLlama3;
  rule.factor = 32;
  rule.original_context = 8192;
  const auto scaled = rope_frequencies(rule);
  std::vector<float> divisors(plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) divisors[i] = plain[i] / scaled[i];
  GgufWriter writer = file_of(model);
  writer.tensor("rope_freqs.weight", {16}, divisors);
  EXPECT_EQ(value_or_die(load_spec(folder.write("model.gguf", writer.bytes()))).ropes[0], rule);
  GgufWriter strange = file_of(model);
  divisors[3] = 1.5F;
  strange.tensor("rope_freqs.weight", {16}, divisors);
  EXPECT_THAT(load_model(folder.write("strange.gguf", strange.bytes())).error().to_string(),
              HasSubstr("'rope_freqs.weight' does not follow Llama 3's rule"));
}

TEST(GgufLoad, RefusesWithOneSentence) {
  const troupe::test::TemporaryFolder folder;
  const auto refusal = [&](const GgufWriter& writer) {
    const auto model = load_model(folder.write("bad.gguf", writer.bytes()));
    return model ? "accepted" : model.error().to_string();
  };
  GgufWriter other;
  other.string("general.architecture", "mamba");
  EXPECT_THAT(refusal(other), HasSubstr("bad.gguf: the model family 'mamba' is not known; known are: llama, qwen3"));
  GgufWriter empty;
  EXPECT_THAT(refusal(empty), HasSubstr("the metadata 'general.architecture' is missing"));
  GgufWriter bare;
  bare.string("general.architecture", "llama");
  EXPECT_THAT(refusal(bare), HasSubstr("the metadata 'llama.embedding_length' is missing"));
  GgufWriter extra = file_of(fresh("llama", true));
  extra.tensor("blk.0.attn_q.bias", {4}, std::vector<float>(4));
  EXPECT_THAT(refusal(extra), HasSubstr("the tensor 'blk.0.attn_q.bias' is not part of the model"));
  const std::string whole = file_of(fresh("qwen3", false)).bytes();
  const auto cut = load_model(folder.write("cut.gguf", whole.substr(0, whole.size() - 40)));
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().to_string(), HasSubstr("(truncated?)"));
}

}  // namespace
}  // namespace troupe::model::test
