// Hugging Face folders in and out, and every way in which one can be wrong.
#include <gmock/gmock.h>

#include "../formats/temporary_folder.h"
#include "formats/dtype.h"
#include "support.h"

namespace troupe::model::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using troupe::test::TemporaryFolder;

/// A folder with a copy of a fixture that a test may spoil.
class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(golden_folder("llama3/base") / file, folder_.path() / file);
  }
  std::string refusal() {
    const auto model = load_model(folder_.path());
    return model ? "accepted" : model.error().to_string();
  }
  void edit_config(const std::string& key, const nlohmann::json& value) {
    std::ifstream in(folder_.path() / "config.json");
    auto config = nlohmann::json::parse(in);
    config[key] = value;
    folder_.write("config.json", config.dump());
  }
  /// Writes the fixture's tensors again after `change`.
  template <class Change>
  void rewrite(Change&& change) {
    const auto source =
        value_or_die(formats::SafetensorsFile::open(golden_folder("llama3/base") / "model.safetensors"));
    std::vector<formats::TensorView> tensors(source.tensors().begin(), source.tensors().end());
    change(tensors);
    ASSERT_TRUE(formats::write_safetensors(folder_.path() / "model.safetensors", tensors));
  }
  TemporaryFolder folder_;
};

void expect_same_weights(const Model& a, const Model& b) {
  ASSERT_EQ(a.parameters().size(), b.parameters().size());
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_EQ(a.parameters()[i].name, b.parameters()[i].name);
    EXPECT_EQ(values(a.parameters()[i].value), values(b.parameters()[i].value)) << a.parameters()[i].name;
  }
}

TEST_F(LoadTest, ExportsReadBackBitForBit) {
  for (const char* name : kFixtures)
    for (const std::uint64_t shard : {std::uint64_t{1} << 40, std::uint64_t{100'000}}) {
      Model model = golden_model(name);
      const fs::path target = folder_.path() / "export";
      fs::remove_all(target);
      const auto status = export_model(model, target, {.shard_max = Bytes{shard}});
      ASSERT_TRUE(status) << status.error().to_string();
      EXPECT_EQ(fs::exists(target / "model.safetensors.index.json"), shard == 100'000U);
      Model again = value_or_die(load_model(target));
      expect_same_weights(model, again);
      const auto ids = random_ids(1, 30, 192);
      EXPECT_EQ(logits_of(model, one_document(ids)), logits_of(again, one_document(ids))) << name;
      EXPECT_EQ(config_json(model.spec()), config_json(again.spec())) << name;
    }
}

TEST_F(LoadTest, ExportsHaveTheNamesAndShapesOfTheRelease) {
  for (const char* name : kFixtures) {
    const fs::path target = folder_.path() / "export";
    fs::remove_all(target);
    ASSERT_TRUE(export_model(golden_model(name), target));
    const auto written = value_or_die(formats::SafetensorsFile::open(target / "model.safetensors"));
    const auto released = value_or_die(formats::SafetensorsFile::open(golden_folder(name) / "model.safetensors"));
    for (const formats::TensorView& tensor : written.tensors()) {
      const formats::TensorView* original = released.find(tensor.name);
      ASSERT_NE(original, nullptr) << name << " " << tensor.name;
      EXPECT_EQ(tensor.shape, original->shape) << tensor.name;
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), original->bytes.begin(), original->bytes.end()))
          << name << " " << tensor.name;
    }
    for (const formats::TensorView& tensor : released.tensors())
      if (written.find(tensor.name) == nullptr) {
        EXPECT_TRUE(tensor.name.find("visual") != std::string::npos || tensor.name.find("vision") != std::string::npos ||
                    tensor.name.find("audio") != std::string::npos)
            << name << " " << tensor.name;
      }
  }
}

// What an inference engine finds in a release in FP8: codes and scales of linear layers, everything else in bfloat16, and who is which.
TEST_F(LoadTest, ExportsInEightBitsAreReleasesInFp8) {
  for (const char* name : {"qwen3/base", "deepseek_v3/base", "qwen3_5_moe/base", "gpt_oss/base", "deepseek_v4/base"}) {
    SCOPED_TRACE(name);
    const Model model = golden_model(name);
    const fs::path target = folder_.path() / "export", second = folder_.path() / "second";
    for (const fs::path& old : {target, second}) fs::remove_all(old);
    const auto status = export_model(model, target, {.dtype = "float8"});
    ASSERT_TRUE(status) << status.error().to_string();
    const auto file = value_or_die(formats::SafetensorsFile::open(target / "model.safetensors"));
    std::size_t small = 0;
    for (const formats::TensorView& tensor : file.tensors()) {
      if (tensor.dtype != formats::DType::kF8E4M3) continue;
      ++small;
      EXPECT_EQ(tensor.shape.size(), 2U);
      EXPECT_NE(file.find(tensor.name + "_scale_inv"), nullptr) << tensor.name;
      EXPECT_THAT(tensor.name, testing::AllOf(testing::Not(HasSubstr("embed")), testing::Not(HasSubstr("norm")), testing::Not(HasSubstr("lm_head")), testing::Not(HasSubstr("router"))));
    }
    EXPECT_GE(small, 8U);
    const auto config = nlohmann::json::parse(read_file(target / "config.json").value());
    EXPECT_EQ(config["quantization_config"]["quant_method"], "fp8");
    EXPECT_EQ(config["quantization_config"]["weight_block_size"], nlohmann::json::parse("[128, 128]"));
    for (const auto& module : config["quantization_config"]["modules_to_not_convert"])
      EXPECT_EQ(file.find(module.get<std::string>() + ".weight_scale_inv"), nullptr) << module;

    const Model again = value_or_die(load_model(target));
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const auto exact = values(model.parameters()[i].value), rounded = values(again.parameters()[i].value);
      double error = 0, size = 0;
      for (std::size_t j = 0; j < exact.size(); ++j) error += std::pow(rounded[j] - exact[j], 2), size += std::pow(exact[j], 2);
      EXPECT_LE(error, 1.5e-3 * size) << model.parameters()[i].name << ": E4M3 keeps 3 bits";
    }
    ASSERT_TRUE(export_model(again, second, {.dtype = "float8"}));
    const auto written = value_or_die(formats::SafetensorsFile::open(second / "model.safetensors"));
    for (const formats::TensorView& tensor : file.tensors())
      if (tensor.dtype == formats::DType::kF8E4M3) {
        const auto& other = *written.find(tensor.name);
        EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), other.bytes.begin(), other.bytes.end())) << tensor.name;
      }
  }
}

TEST_F(LoadTest, HalfPrecisionExportsAreRounded) {
  const Model model = golden_model("qwen3/base");
  for (const char* dtype : {"bfloat16", "float16"}) {
    const fs::path target = folder_.path() / dtype;
    ASSERT_TRUE(export_model(model, target, {.dtype = dtype}));
    const Model again = value_or_die(load_model(target));
    EXPECT_EQ(again.spec().stored_dtype, dtype);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const auto exact = values(model.parameters()[i].value);
      const auto rounded = values(again.parameters()[i].value);
      for (std::size_t j = 0; j < exact.size(); ++j)
        ASSERT_NEAR(rounded[j], exact[j], 4e-3 * std::abs(exact[j]) + 1e-7);
      EXPECT_NE(exact, rounded);
    }
  }
  EXPECT_THAT(export_model(model, folder_.path() / "x", {.dtype = "int4"}).error().message,
              HasSubstr("'int4' is not known"));
}

TEST_F(LoadTest, GenerationConfigNamesTheStopIds) {
  folder_.write("generation_config.json", R"({"eos_token_id":[7,9]})");
  EXPECT_EQ(value_or_die(load_spec(folder_.path())).eos_ids, (std::vector<std::int64_t>{7, 9}));
  const Model model = value_or_die(load_model(folder_.path()));
  ASSERT_TRUE(export_model(model, folder_.path() / "export"));
  EXPECT_EQ(value_or_die(load_spec(folder_.path() / "export")).eos_ids, (std::vector<std::int64_t>{7, 9}));
}

TEST_F(LoadTest, MissingThings) {
  EXPECT_THAT(load_model(folder_.path() / "none").error().to_string(),
              HasSubstr("none: no such model: expected is a folder with config.json"));
  EXPECT_THAT(load_model(folder_.path() / "none.gguf").error().message, HasSubstr("No such file"));
  EXPECT_THAT(load_model(folder_.path() / "config.json").error().message, HasSubstr("describes a model and holds no weights"));
  EXPECT_THAT(load_model(folder_.path() / "model.safetensors").error().message,
              HasSubstr("neither a model folder nor a .gguf file"));
  fs::remove(folder_.path() / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("no weights: neither model.safetensors nor"));
  fs::remove(folder_.path() / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("the model folder has no config.json"));
}

TEST_F(LoadTest, TruncatedFiles) {
  const auto whole = value_or_die(read_file(folder_.path() / "model.safetensors"));
  folder_.write("model.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("(truncated?)"));
  const auto config = value_or_die(read_file(folder_.path() / "config.json"));
  folder_.write("config.json", config.substr(0, config.size() / 2));
  EXPECT_THAT(refusal(), HasSubstr("config.json: the file ends in the middle of a JSON value"));
}

// Printing a value that is nested deeper than the stack ended the process.
TEST_F(LoadTest, ADeeplyNestedConfigurationIsRefused) {
  const std::string deep(200'000, '[');
  folder_.write("config.json", "{\"model_type\":\"qwen3\",\"vocab_size\":" + deep + std::string(deep.size(), ']') + "}");
  EXPECT_THAT(refusal(), HasSubstr("config.json: the file is nested deeper than 64 levels"));
}

TEST_F(LoadTest, MissingExtraAndMisshapenTensors) {
  rewrite([](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  });
  EXPECT_THAT(refusal(), HasSubstr("the tensor 'model.layers.1.mlp.up_proj.weight' of shape [112, 64] is missing"));
  const std::vector<float> more(4);
  rewrite([&](auto& tensors) {
    tensors.push_back(
        {"model.layers.0.self_attn.q_proj.bias", formats::DType::kF32, {4}, std::as_bytes(std::span(more))});
  });
  EXPECT_THAT(refusal(), HasSubstr("the tensor 'model.layers.0.self_attn.q_proj.bias' is not part of the model"));
  rewrite([](auto& tensors) {
    for (auto& t : tensors)
      if (t.name == "model.layers.0.self_attn.o_proj.weight") t.shape = {32, 128};
  });
  EXPECT_THAT(
      refusal(),
      HasSubstr(
          "the tensor 'model.layers.0.self_attn.o_proj.weight' has shape [32, 128], the configuration needs [64, 64]"));
  rewrite([](auto& tensors) {
    for (auto& t : tensors)
      if (t.name == "model.norm.weight") t.dtype = formats::DType::kI32;
  });
  EXPECT_THAT(refusal(), HasSubstr("the tensor 'model.norm.weight' is stored as I32; readable are"));
}

TEST_F(LoadTest, NumbersThatAreNotFiniteAreNamed) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> spoilt;
    rewrite([&](auto& tensors) {
      for (auto& t : tensors)
        if (t.name == "model.layers.2.mlp.down_proj.weight") {
          spoilt.resize(static_cast<std::size_t>(t.elements()));
          spoilt[100] = bad;
          t.bytes = std::as_bytes(std::span(spoilt));
        }
    });
    EXPECT_THAT(refusal(), HasSubstr("the tensor 'model.layers.2.mlp.down_proj.weight' holds NaN or infinity"));
  }
}

TEST_F(LoadTest, AConfigurationForOtherWeights) {
  edit_config("num_hidden_layers", 2);
  EXPECT_THAT(refusal(), HasSubstr("the tensor 'model.layers.2.input_layernorm.weight' is not part of the model"));
  edit_config("num_hidden_layers", 4);
  EXPECT_THAT(refusal(), HasSubstr("'model.layers.3.input_layernorm.weight' of shape [64] is missing"));
  edit_config("vocab_size", 1 << 24);  // refused before its gigabytes are taken
  EXPECT_THAT(
      refusal(),
      HasSubstr("the tensor 'model.embed_tokens.weight' has shape [192, 64], the configuration needs [16777216, 64]"));
}

TEST_F(LoadTest, ATiedHeadMayBeStoredOnlyAsTheEmbedding) {
  edit_config("tie_word_embeddings", true);
  EXPECT_THAT(refusal(), HasSubstr("'lm_head.weight' differs from 'model.embed_tokens.weight', of which it must be a copy"));
  rewrite([](auto& tensors) {
    std::span<const std::byte> embedding;
    for (const auto& t : tensors)
      if (t.name == "model.embed_tokens.weight") embedding = t.bytes;
    for (auto& t : tensors)
      if (t.name == "lm_head.weight") t.bytes = embedding;
  });
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(LoadTest, AVocabularyLargerThanTheEmbeddingIsRefused) {
  const ModelSpec spec = value_or_die(load_spec(folder_.path()));
  EXPECT_TRUE(check_vocabulary(spec, 192, "tokenizer.json"));
  const auto status = check_vocabulary(spec, 193, "tokenizer.json");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().to_string(),
            "tokenizer.json: the tokenizer has 193 tokens, the model's embedding has only 192 rows; use the tokenizer "
            "that belongs to the model");
}

/// Folders of other families, spoilt.
class FamilyLoadTest : public LoadTest {
 protected:
  void SetUp() override {}
  void take(const std::string& name) {
    source_ = name;
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(golden_folder(name) / file, folder_.path() / file, fs::copy_options::overwrite_existing);
  }
  template <class Change>
  void change(Change&& edit) {
    const auto source = value_or_die(formats::SafetensorsFile::open(golden_folder(source_) / "model.safetensors"));
    std::vector<formats::TensorView> tensors(source.tensors().begin(), source.tensors().end());
    edit(tensors);
    ASSERT_TRUE(formats::write_safetensors(folder_.path() / "model.safetensors", tensors));
  }
  std::string source_;
};

TEST_F(FamilyLoadTest, Fp8WeightsAreReadAndNeedTheirScale) {
  take("deepseek_v3/base");
  const std::string name = "model.layers.1.self_attn.o_proj.weight";
  const std::vector<std::byte> ones(64 * 96, std::byte{0x38});  // 1.0
  const float factor = 0.25F;
  const auto quantise = [&](bool with_scale) {
    change([&](auto& tensors) {
      for (auto& t : tensors)
        if (t.name == name) {
          t.dtype = formats::DType::kF8E4M3;
          t.bytes = ones;
        }
      if (with_scale)
        tensors.push_back({name + "_scale_inv", formats::DType::kF32, {1, 1}, std::as_bytes(std::span(&factor, 1))});
    });
  };
  quantise(false);
  EXPECT_THAT(refusal(), HasSubstr("the tensor '" + name + "' is stored as F8_E4M3, but its scale '" + name +
                                   "_scale_inv' is missing"));
  quantise(true);
  const Model model = value_or_die(load_model(folder_.path()));
  EXPECT_EQ(values(*model.find(name)), std::vector<float>(64 * 96, 0.25F));
}

TEST_F(FamilyLoadTest, Fp4ExpertsAndBlocksOfMxfp4AreRead) {
  take("deepseek_v4/base");
  const std::string expert = "layers.1.ffn.experts.3.w1";
  const std::vector<std::byte> codes(24 * 24, std::byte{0x32});  // 1.0, then 1.5
  const std::vector<std::byte> scales(24, std::byte{128});       // 2
  change([&](auto& tensors) {
    for (auto& t : tensors)
      if (t.name == expert + ".weight") t = {t.name, formats::DType::kI8, {24, 24}, codes};
    tensors.push_back({expert + ".scale", formats::DType::kF8E8M0, {24, 1}, scales});
  });
  EXPECT_THAT(refusal(), HasSubstr("two numbers each"));  // 48 columns are no whole groups of 32
  take("gpt_oss/base");
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj";
  const std::vector<std::byte> blocks(8 * 96 * 2 * 16, std::byte{0x32});
  const std::vector<std::byte> block_scales(8 * 96 * 2, std::byte{128});
  change([&](auto& tensors) {
    std::erase_if(tensors, [&](const auto& t) { return t.name == gate_up; });
    tensors.push_back({gate_up + "_blocks", formats::DType::kU8, {8, 96, 2, 16}, blocks});
    tensors.push_back({gate_up + "_scales", formats::DType::kU8, {8, 96, 2}, block_scales});
  });
  const Model model = value_or_die(load_model(folder_.path()));
  const auto read = values(*model.find(gate_up));  // [experts, in, out]
  EXPECT_EQ(read[0], 2.0F);
  EXPECT_EQ(read[96], 3.0F);
  change([&](auto& tensors) {
    std::erase_if(tensors, [&](const auto& t) { return t.name == gate_up; });
    tensors.push_back({gate_up + "_blocks", formats::DType::kU8, {8, 96, 2, 16}, blocks});
  });
  EXPECT_THAT(refusal(), HasSubstr("but its scale '" + gate_up + "_scales' is missing"));
}

// As FP8 releases of Qwen3.5 have them; the block for further tokens keeps its experts together here.
TEST_F(FamilyLoadTest, ExpertsMayBeStoredOneByOne) {
  take("qwen3_5_moe/base");
  const Model together = value_or_die(load_model(folder_.path()));
  std::vector<std::string> names;
  const auto split = [&](bool whole) {
    change([&](auto& tensors) {
      std::vector<typename std::remove_reference_t<decltype(tensors)>::value_type> apart;
      for (const auto& t : tensors) {
        const bool gate_up = t.name.ends_with("layers.1.mlp.experts.gate_up_proj"), down = t.name.ends_with("layers.1.mlp.experts.down_proj");
        if (!gate_up && !down) continue;
        const std::string before = t.name.substr(0, t.name.rfind('.') + 1);
        const std::int64_t experts = t.shape[0], rows = t.shape[1] / (gate_up ? 2 : 1), columns = t.shape[2];
        const std::size_t bytes = t.bytes.size() / static_cast<std::size_t>(experts * (gate_up ? 2 : 1));
        std::size_t at = 0;
        for (std::int64_t e = 0; e < experts; ++e)
          for (const char* part : gate_up ? std::vector<const char*>{"gate_proj", "up_proj"} : std::vector<const char*>{"down_proj"}) {
            apart.push_back(t);
            apart.back().name = before + std::to_string(e) + "." + part + ".weight";
            apart.back().shape = {rows, columns};
            apart.back().bytes = t.bytes.subspan(bytes * at++, bytes);
          }
        names.push_back(t.name);
      }
      ASSERT_FALSE(apart.empty());
      std::erase_if(tensors, [&](const auto& t) { return std::find(names.begin(), names.end(), t.name) != names.end(); });
      if (!whole) apart.pop_back();
      tensors.insert(tensors.end(), apart.begin(), apart.end());
    });
  };
  split(true);
  const Model apart = value_or_die(load_model(folder_.path()));
  ASSERT_EQ(names.size(), 2u);
  for (const Parameter& parameter : together.parameters()) EXPECT_EQ(values(parameter.value), values(*apart.find(parameter.name))) << parameter.name;
  take("qwen3_5_moe/base");
  split(false);
  EXPECT_THAT(refusal(), HasSubstr("is missing"));
}

TEST_F(FamilyLoadTest, BlocksForFurtherTokensMayBeLeftOut) {
  take("qwen3_5/base");
  change([](auto& tensors) { std::erase_if(tensors, [](const auto& t) { return t.name.starts_with("mtp."); }); });
  const Model model = value_or_die(load_model(folder_.path()));
  EXPECT_TRUE(model.spec().mtp.empty());
  EXPECT_EQ(config_json(model.spec())["text_config"]["mtp_num_hidden_layers"], 0);
  change([](auto& tensors) { std::erase_if(tensors, [](const auto& t) { return t.name == "mtp.fc.weight"; }); });
  EXPECT_THAT(refusal(), HasSubstr("the tensor 'mtp.fc.weight' of shape [48, 96] is missing"));
}

TEST_F(FamilyLoadTest, CopiesAndTablesMustBeRight) {
  take("deepseek_v3/base");
  const std::vector<float> other(192 * 64, 1);
  change([&](auto& tensors) {
    for (auto& t : tensors)
      if (t.name == "model.layers.3.embed_tokens.weight") t.bytes = std::as_bytes(std::span(other));
  });
  EXPECT_THAT(refusal(), HasSubstr("'model.layers.3.embed_tokens.weight' differs from 'model.embed_tokens.weight'"));
  take("deepseek_v4/base");
  const std::vector<std::int64_t> table(192 * 2, 8);
  change([&](auto& tensors) {
    for (auto& t : tensors)
      if (t.name == "layers.0.ffn.gate.tid2eid")
        t = {t.name, formats::DType::kI64, {192, 2}, std::as_bytes(std::span(table))};
  });
  EXPECT_THAT(refusal(), HasSubstr("'layers.0.ffn.gate.tid2eid' names an expert that does not exist: 8 of 8"));
}

}  // namespace
}  // namespace troupe::model::test
