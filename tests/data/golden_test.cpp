// Every golden case of four real tokenizers, straight from their files and again after save and load.
#include <gtest/gtest.h>

#include "data/helpers.h"

namespace troupe::data {
namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

using Ids = std::vector<std::int32_t>;

void expect_all_cases(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  ASSERT_GE(golden["cases"].size(), 250u);
  for (const auto& c : golden["cases"]) {
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(c["text"].get<std::string>(), Special::kSpecial), ids) << c["name"];
    EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>()) << c["name"];
    EXPECT_EQ(tokenizer.decode(ids, true), c["decoded_skip_special"].get<std::string>()) << c["name"];
  }
  for (const auto& c : golden["invalid_utf8"])
    EXPECT_EQ(tokenizer.encode(from_hex(c["bytes_hex"]), Special::kSpecial), c["ids"].get<Ids>()) << c["bytes_hex"];
  for (const auto& c : golden["partial_decode"])
    EXPECT_EQ(tokenizer.decode(c["ids"].get<Ids>()), c["decoded"].get<std::string>()) << c["ids"];
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, GivesEveryCaseBeforeAndAfterSaving) {
  const auto golden = read_json(kGoldens / GetParam() / "golden.json");
  const auto& tokenizer = golden_tokenizer(GetParam());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  expect_all_cases(*tokenizer, golden);
  const auto added = golden.value("added_tokens", nlohmann::json::object());
  for (const auto& [name, id] : added.items()) EXPECT_EQ(tokenizer->token_id(name), id.get<std::int32_t>());

  const TemporaryFolder folder;
  ASSERT_TRUE(tokenizer->save(folder.path()));
  const auto again = Tokenizer::load(folder.path());
  ASSERT_TRUE(again) << again.error().to_string();
  expect_all_cases(*again, golden);
  EXPECT_EQ(again->eos(), tokenizer->eos());
  EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
  EXPECT_EQ(compare_with_oracle(folder.path(), kGoldens / GetParam() / "golden.json"), "");
}

// S12: pieces joined are the whole, and no piece ends inside a character.
TEST_P(GoldenTokenizer, StreamsWithoutSplittingLosingOrDoubling) {
  const auto& tokenizer = golden_tokenizer(GetParam());
  ASSERT_TRUE(tokenizer);
  const auto golden = read_json(kGoldens / GetParam() / "golden.json");
  ASSERT_GE(golden["cases"].size(), 250u);
  for (const auto& c : golden["cases"]) {
    const auto ids = c["ids"].get<Ids>();
    for (const bool skip : {false, true}) {
      StreamDecoder decoder(*tokenizer, skip);
      std::string text;
      for (const auto id : ids) {
        const std::string piece = decoder.push(id);
        EXPECT_EQ(nlohmann::json(piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore),
                  nlohmann::json(piece).dump())
            << c["name"];
        text += piece;
      }
      text += decoder.finish();
      EXPECT_EQ(text, tokenizer->decode(ids, skip)) << c["name"];
    }
  }
}

// V13: as plain text, nothing becomes an added token, and decoding gives the text back.
TEST_P(GoldenTokenizer, PlainTextNeverBecomesAControlToken) {
  const auto& tokenizer = golden_tokenizer(GetParam());
  ASSERT_TRUE(tokenizer);
  std::string all;
  for (const auto& token : tokenizer->spec().added) all += token.content + "x " + token.content;
  for (const auto id : tokenizer->encode(all, Special::kPlain))
    ASSERT_FALSE(tokenizer->is_added(id)) << tokenizer->bytes(id);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all, Special::kPlain)), all);
  const auto golden = read_json(kGoldens / GetParam() / "golden.json");
  ASSERT_GE(golden["cases"].size(), 250u);
  for (const auto& c : golden["cases"])
    for (const auto id : tokenizer->encode(c["text"].get<std::string>(), Special::kPlain))
      EXPECT_FALSE(tokenizer->is_added(id)) << c["name"];
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTokenizer, ::testing::Values("qwen3", "qwen3_5", "deepseek_v4", "gpt2"),
                         [](const auto& row) { return std::string(row.param); });

} // namespace
} // namespace troupe::data
