// A real model: the greedy outputs of SmolLM2-135M-Instruct, read from its Q4_1 GGUF.
#include <optional>

#include "support.h"

namespace troupe::model::test {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> weights() {
  const fs::path folder = fs::path(TROUPE_SOURCE_DIR) / ".deps" / "models" / "smollm2-135m";
  std::error_code ignored;
  for (const auto& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink, ignored))
    if (entry.path().extension() == ".gguf") return entry.path();
  return std::nullopt;
}

class SmolLm2 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const auto path = weights()) model_ = std::make_unique<Model>(value_or_die(load_model(*path)));
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    if (!model_) GTEST_SKIP() << "the weights are not here: run scripts/setup.sh --model models/smollm2-135m";
    golden_ = golden_json("smollm2");
  }
  inline static std::unique_ptr<Model> model_;
  nlohmann::json golden_;
};

TEST_F(SmolLm2, TheFileDescribesItself) {
  const ModelSpec& spec = model_->spec();
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.width, golden_["config"]["hidden_size"]);
  EXPECT_EQ(spec.layers.size(), golden_["config"]["layers"]);
  EXPECT_EQ(spec.layers[0].attention.kv_heads, golden_["config"]["kv_heads"]);
  EXPECT_EQ(spec.ropes[0].theta, golden_["config"]["rope_theta"]);
  EXPECT_EQ(spec.final_norm.eps, golden_["config"]["eps"]);
  EXPECT_TRUE(spec.tied);
}

TEST_F(SmolLm2, GreedyIdsAndPromptLogprobsAreThoseOfTransformers) {
  for (const auto& c : golden_["cases"]) {
    const auto prompt = c["prompt_ids"].get<std::vector<std::int32_t>>();
    const auto wanted = c["greedy_ids"].get<std::vector<std::int32_t>>();
    const auto ids = greedy(*model_, prompt, wanted.size());
    EXPECT_EQ(std::vector(ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()), wanted) << c["prompt"];
    const tensor::NoGrad no_grad;
    const at::Tensor hidden = model_->forward(one_document(prompt));
    const auto scores =
        model_->score(hidden.narrow(0, 0, static_cast<std::int64_t>(prompt.size()) - 1), std::span(prompt).subspan(1));
    EXPECT_LT(max_difference(values(scores.logprob), c["prompt_logprobs"].get<std::vector<float>>()), 2e-3);
  }
}

TEST_F(SmolLm2, PrefillChunksAndDecodingEqualTheTrainingForward) {
  auto ids = golden_["cases"][0]["prompt_ids"].get<std::vector<std::int32_t>>();
  ids.resize(24);
  const auto whole = logits_of(*model_, one_document(ids));
  for (const std::size_t chunk : {1, 3, 8}) {
    KvCache cache(model_->spec(), 2, 16, 1, false, model_->precision());
    EXPECT_EQ(CachedSequence(*model_, cache, page_list(0, 2)).feed_in_chunks(ids, chunk), whole) << chunk;
  }
}

}  // namespace
}  // namespace troupe::model::test
