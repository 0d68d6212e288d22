// Vocabularies inside GGUF files, on files written here byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <variant>

#include "data/chat.h"
#include "data/helpers.h"

namespace troupe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Value = std::variant<bool, std::uint32_t, std::string, std::vector<std::int32_t>, std::vector<std::string>>;
using Keys = std::vector<std::pair<std::string, Value>>;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, const std::string& text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

std::string gguf(const Keys& keys) {
  std::string out = "GGUF";
  put<std::uint32_t>(out, 3);
  put<std::uint64_t>(out, 0);
  put<std::uint64_t>(out, keys.size());
  for (const auto& [key, value] : keys) {
    put_text(out, key);
    if (const auto* b = std::get_if<bool>(&value)) {
      put<std::uint32_t>(out, 7), put<std::uint8_t>(out, *b);
    } else if (const auto* number = std::get_if<std::uint32_t>(&value)) {
      put<std::uint32_t>(out, 4), put<std::uint32_t>(out, *number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      put<std::uint32_t>(out, 8), put_text(out, *text);
    } else if (const auto* numbers = std::get_if<std::vector<std::int32_t>>(&value)) {
      put<std::uint32_t>(out, 9), put<std::uint32_t>(out, 5), put<std::uint64_t>(out, numbers->size());
      for (const auto n : *numbers) put<std::int32_t>(out, n);
    } else {
      const auto& texts = std::get<std::vector<std::string>>(value);
      put<std::uint32_t>(out, 9), put<std::uint32_t>(out, 8), put<std::uint64_t>(out, texts.size());
      for (const auto& t : texts) put_text(out, t);
    }
  }
  return out;
}

// Shaped like SmolLM2's: control tokens first, single digits, begin-of-text is the turn start.
Keys smollm() {
  return {
      {"tokenizer.ggml.model", std::string("gpt2")},
      {"tokenizer.ggml.pre", std::string("smollm")},
      {"tokenizer.ggml.tokens",
       std::vector<std::string>{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "1", "2", "a", "Ġ", "u", "s", "e", "r",
                                "Ċ", "t", "n", "i", "12", "Ġa", "us"}},
      {"tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"tokenizer.ggml.merges", std::vector<std::string>{"1 2", "Ġ a", "u s"}},
      {"tokenizer.ggml.bos_token_id", 1u},
      {"tokenizer.ggml.eos_token_id", 2u},
      {"tokenizer.ggml.add_bos_token", true}};
}

Keys with(Keys keys, const std::string& key, const Value& value) {
  for (auto& [name, old] : keys)
    if (name == key) old = value;
  return keys;
}

std::string error_of(const Keys& keys) {
  const TemporaryFolder folder;
  const auto t = Tokenizer::load(folder.write("m.gguf", gguf(keys)));
  return t ? "" : t.error().to_string();
}

TEST(GgufVocabulary, ReadsSavesAndAgreesWithTokenizers) {
  const TemporaryFolder folder;
  const auto t = Tokenizer::load(folder.write("m.gguf", gguf(smollm())));
  ASSERT_TRUE(t) << t.error().to_string();
  const std::vector<std::int32_t> ids = t->encode("<|im_start|>user\n12 a", Special::kSpecial);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 17, 9, 10, 11, 3, 4, 16})) << "digits stay single: 12 is not merged";
  EXPECT_EQ(t->bos(), 1);
  EXPECT_EQ(t->eos(), 2);
  EXPECT_TRUE(t->is_special(1));
  ASSERT_TRUE(t->save(folder.path() / "out"));
  nlohmann::json cases;
  cases["cases"] = {
      {{"name", "a"}, {"text", "<|im_start|>user\n12 a"}, {"ids", ids}, {"decoded", "<|im_start|>user\n12 a"}},
      {{"name", "b"}, {"text", "12"}, {"ids", {3, 4}}, {"decoded", "12"}, {"template_ids", t->with_template({3, 4})}}};
  folder.write("cases.json", cases.dump());
  EXPECT_EQ(compare_with_oracle(folder.path() / "out", folder.path() / "cases.json"), "");
}

// S13: the template begins with the begin-of-text token already.
TEST(GgufVocabulary, ATemplateThatBeginsWithBeginOfTextIsNotGivenAnother) {
  const TemporaryFolder folder;
  const auto t = Tokenizer::load(folder.write("m.gguf", gguf(smollm())));
  ASSERT_TRUE(t);
  const auto format = PromptFormat::create("chatml", *t);
  ASSERT_TRUE(format) << format.error().to_string();
  const std::vector<Message> messages = {{"user", "12"}};
  EXPECT_EQ(format->render(messages, false, *t)->ids, (std::vector<std::int32_t>{1, 17, 9, 10, 11, 3, 4, 2, 11}));
  EXPECT_EQ(format->stop_ids(), (std::vector<std::int32_t>{2, 0}));
  const auto plain = PromptFormat::create("plain", *t);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->render(messages, true, *t)->ids, (std::vector<std::int32_t>{1, 3, 4}));
}

TEST(GgufVocabulary, SaysWhatIsWrong) {
  EXPECT_EQ(error_of(smollm()), "");
  EXPECT_THAT(error_of({}), HasSubstr("holds no vocabulary"));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.model", std::string("llama"))),
              HasSubstr("vocabulary of kind 'llama'"));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.pre", std::string("martian"))),
              AllOf(HasSubstr("'martian'"), HasSubstr("qwen2"), HasSubstr("m.gguf")));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.tokens", std::vector<std::string>{})),
              HasSubstr("missing or empty"));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.token_type", std::vector<std::int32_t>{1})),
              HasSubstr("1 token types for 18 tokens"));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.merges", std::vector<std::string>{"1 9"})),
              HasSubstr("merges[0]"));
  EXPECT_THAT(error_of(with(smollm(), "tokenizer.ggml.eos_token_id", 99u)), HasSubstr("eos_token_id is 99"));
}

} // namespace
} // namespace troupe::data
