// Vocabularies made from scratch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/bpe_trainer.h"
#include "data/helpers.h"

namespace troupe::data {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

VocabularyOptions bpe(int size) {
  VocabularyOptions options;
  options.kind = "bpe";
  options.size = size;
  return options;
}

Tokenizer make(const VocabularyOptions& options, const std::vector<std::string>& corpus = {}) {
  auto t = make_vocabulary(options, corpus);
  EXPECT_TRUE(t) << t.error().to_string();
  return std::move(*t);
}

TEST(BpeTrainer, LearnsTheMostFrequentPairFirst) {
  const auto t = make(bpe(259), {"low low low lower lowest", "newer wider"});
  // "lo" and "ow" both occur 5 times; "lo" comes first by its bytes. Then "low", then the pair of r
  // or the space that is next.
  EXPECT_EQ(t.bytes(256), "lo");
  EXPECT_EQ(t.bytes(257), "low");
  EXPECT_EQ(t.bytes(258), " low");
  EXPECT_EQ(t.encode(" lower", Special::kPlain).front(), 258);
}

TEST(BpeTrainer, DoesNotDependOnTheOrderOfTheCorpus) {
  std::vector<std::string> corpus = {"the cat sat on the mat", "the dog sat on the log", "aaaa bbbb aabb",
                                     "na na na batman"};
  const auto a = make(bpe(300), corpus);
  std::reverse(corpus.begin(), corpus.end());
  const auto b = make(bpe(300), corpus);
  EXPECT_EQ(a.spec().vocab, b.spec().vocab);
  EXPECT_EQ(a.spec().merges, b.spec().merges);
  EXPECT_GT(a.spec().merges.size(), 10u);
}

TEST(BpeTrainer, CountsOverlappingPairsAsTheyMerge) {
  const auto t = make(bpe(260), {"aaaaa aaaaa aaaaa"});
  EXPECT_EQ(t.bytes(256), "aa");
  EXPECT_EQ(t.bytes(257), "aaa"); // aa+a and aa+aa occur 3 times each, and a comes before aa
  EXPECT_EQ(t.decode(t.encode("aaaaaaa", Special::kPlain)), "aaaaaaa");
}

TEST(BpeTrainer, StopsWherePairsAreRare) {
  auto options = bpe(10'000);
  options.frequency_min = 3;
  const auto t = make(options, {"ab ab ab cd cd"});
  EXPECT_EQ(t.spec().merges.size(), 1u); // ab; " ab", cd and " cd" occur twice only
  EXPECT_EQ(t.vocab_size(), 257 + 3);
}

TEST(Vocabulary, SavedOnesReadInTokenizersWithTheSameIds) {
  const std::vector<std::string> corpus = {"12+34=46\n", "99+11=110\n", "what is 5 times 7?", "\u00fcber \u4f60\u597d"};
  VocabularyOptions characters;
  characters.kind = "characters";
  characters.words = {"what", "is", "whatever", "a+b", "\u00fc"};
  const std::vector<std::string> texts = {
      "12+34=", "what is whatever a+b?", "<|im_start|>1<|im_end|>", " \u00fcz \u4f60\u4f60 \n1", "", "<unk>"};
  for (const auto& options : {bpe(300), VocabularyOptions{}, characters}) {
    const auto t = make(options, corpus);
    const TemporaryFolder folder;
    ASSERT_TRUE(t.save(folder.path()));
    nlohmann::json cases;
    for (const auto& text : texts) {
      const auto ids = t.encode(text, Special::kSpecial);
      cases["cases"].push_back({{"name", options.kind}, {"text", text}, {"ids", ids}, {"decoded", t.decode(ids)}});
    }
    folder.write("cases.json", cases.dump());
    EXPECT_EQ(compare_with_oracle(folder.path(), folder.path() / "cases.json"), "") << options.kind;
    const auto again = Tokenizer::load(folder.path());
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(again->eos(), t.eos());
    EXPECT_EQ(again->encode(texts[3], Special::kPlain), t.encode(texts[3], Special::kPlain));
  }
}

TEST(Vocabulary, CharactersAreOneTokenEach) {
  VocabularyOptions options;
  options.kind = "characters";
  options.words = {"what", "whatever"};
  const auto t = make(options);
  EXPECT_EQ(t.vocab_size(), 16 + 2 + 1 + 3);
  EXPECT_EQ(t.encode("12+3=", Special::kPlain), (Ids{1, 2, 10, 3, 13}));
  EXPECT_EQ(t.encode("whatever what", Special::kPlain), (Ids{17, 15, 16}));
  EXPECT_EQ(t.encode("1x\u4f602", Special::kPlain), (Ids{1, 18, 18, 2})) << "one unknown token per character";
  EXPECT_EQ(t.decode(Ids{1, 2, 10, 3}), "12+3");
}

TEST(Vocabulary, BytesHoldAnyText) {
  const auto t = make({});
  EXPECT_EQ(t.vocab_size(), 259);
  EXPECT_EQ(t.encode("A\u4f60", Special::kPlain), (Ids{65, 0xE4, 0xBD, 0xA0}));
  EXPECT_EQ(*t.token_id("<|im_end|>"), 258);
  EXPECT_EQ(*t.eos(), 256);
}

TEST(Vocabulary, NamesTheFieldThatIsWrong) {
  const auto error = [](VocabularyOptions options, const std::vector<std::string>& corpus = {"a"}) {
    const auto t = make_vocabulary(options, corpus);
    return t ? std::string() : t.error().message;
  };
  VocabularyOptions options;
  options.kind = "magic";
  EXPECT_THAT(error(options), HasSubstr("bpe, bytes or characters"));
  EXPECT_THAT(error(bpe(100)), HasSubstr("at least the 256 bytes"));
  EXPECT_THAT(error(bpe(300), {}), HasSubstr("needs a corpus"));
  options = {};
  options.eos = "</s>";
  EXPECT_THAT(error(options), HasSubstr("eos is '</s>'"));
  options = {};
  options.kind = "characters";
  options.alphabet = "abca";
  EXPECT_THAT(error(options), HasSubstr("'a' twice"));
  options = {};
  options.added = {"<|endoftext|>", "<|endoftext|>"};
  EXPECT_THAT(error(options), HasSubstr("two ids"));
}

} // namespace
} // namespace troupe::data
