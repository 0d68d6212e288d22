// The parts of the tokenizer one by one, on vocabularies small enough to read.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "data/bpe_trainer.h"
#include "data/helpers.h"
#include "data/tokenizer_readers.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

using Ids = std::vector<std::int32_t>;

Tokenizer byte_tokenizer() {
  auto tokenizer = make_vocabulary({});
  EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
  return std::move(*tokenizer);
}

// A tokenizer.json around the given parts; the vocabulary is a, b, c, the space, ab and abc.
std::string small_json(const std::string& pre_tokenizer, const std::string& added = "[]",
                       const std::string& normalizer = "null") {
  return R"({"normalizer":)" + normalizer + R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + pre_tokenizer +
         R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},"added_tokens":)" +
         added +
         R"(,"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"Ġ":3,"ab":4,"abc":5},"merges":["a b",["ab","c"]]}})";
}

Tokenizer small(const std::string& pre_tokenizer, const std::string& added = "[]",
                const std::string& normalizer = "null") {
  auto spec = parse_tokenizer_json(small_json(pre_tokenizer, added, normalizer), "small");
  EXPECT_TRUE(spec) << spec.error().to_string();
  auto tokenizer = Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
  return std::move(*tokenizer);
}

std::string split_step(const std::string& pattern, const std::string& behavior, bool invert = false) {
  return R"({"type":"Split","pattern":{"String":")" + pattern + R"("},"behavior":")" + behavior + R"(","invert":)" +
         (invert ? "true" : "false") + "},";
}

TEST(Utf8, ReplacesEachMaximalIllFormedPart) {
  EXPECT_EQ(replace_ill_formed("a\xE4\xBDz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(replace_ill_formed("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");                 // overlong: two parts
  EXPECT_EQ(replace_ill_formed("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"); // a surrogate: three
  EXPECT_EQ(replace_ill_formed("\xF0\x9F\x98"), "\xEF\xBF\xBD");
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));
  EXPECT_EQ(incomplete_tail("ab\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_tail("ab\xF0\x9F\x98\x80"), 0u);
  EXPECT_EQ(incomplete_tail("ab\xE0\x80"), 0u); // never to be completed
}

TEST(Tokenizer, MergesLowestRankFirst) {
  const auto t = small("");
  EXPECT_EQ(t.encode("abc", Special::kPlain), (Ids{5}));
  EXPECT_EQ(t.encode("aab cab", Special::kPlain), (Ids{0, 4, 3, 2, 4}));
  EXPECT_EQ(t.encode("", Special::kPlain), Ids{});
  EXPECT_EQ(t.encode("axb", Special::kPlain), (Ids{4})) << "bytes the vocabulary lacks vanish, as in Hugging Face";
}

TEST(Tokenizer, SplitsByEveryBehavior) {
  EXPECT_EQ(small(split_step("b", "Isolated")).encode("abc", Special::kPlain), (Ids{0, 1, 2}));
  EXPECT_EQ(small(split_step("b", "Removed")).encode("abc", Special::kPlain), (Ids{0, 2}));
  EXPECT_EQ(small(split_step("b", "MergedWithPrevious")).encode("abc", Special::kPlain), (Ids{4, 2}));
  EXPECT_EQ(small(split_step("a", "MergedWithNext")).encode("cabc", Special::kPlain), (Ids{2, 5}));
  EXPECT_EQ(small(split_step("b", "Removed", true)).encode("abcb", Special::kPlain), (Ids{1, 1}));
  EXPECT_EQ(small(split_step("c", "Contiguous")).encode("abccab", Special::kPlain), (Ids{4, 2, 2, 4}));
}

TEST(Tokenizer, FindsAddedTokensLeftmostLongest) {
  const auto t =
      small("", R"([{"id":6,"content":"<x>"},{"id":7,"content":"<x><y>","special":true},{"id":8,"content":"><"}])");
  EXPECT_EQ(t.encode("a<x><y>b", Special::kSpecial), (Ids{0, 7, 1}));
  EXPECT_EQ(t.encode("<x><x>", Special::kSpecial), (Ids{6, 6}));
  EXPECT_EQ(t.decode(Ids{0, 7, 6}, true), "a<x>");
}

TEST(Tokenizer, HonoursTheFlagsOfAddedTokens) {
  const auto t = small(
      "",
      R"([{"id":6,"content":"<l>","lstrip":true},{"id":7,"content":"<r>","rstrip":true},{"id":8,"content":"ca","single_word":true}])");
  EXPECT_EQ(t.encode("a  <l> b", Special::kSpecial), (Ids{0, 6, 3, 1}));
  EXPECT_EQ(t.encode("a <r>  b", Special::kSpecial), (Ids{0, 3, 7, 1}));
  EXPECT_EQ(t.encode("ca caa", Special::kSpecial), (Ids{8, 3, 2, 0, 0}));
}

TEST(Tokenizer, LooksForNormalizedTokensInNormalizedText) {
  const auto t =
      small("", R"([{"id":6,"content":"ABBA","normalized":true},{"id":7,"content":"CC","normalized":false}])",
            R"({"type":"Lowercase"})");
  EXPECT_EQ(t.encode("CabBa", Special::kSpecial), (Ids{2, 6}));
  EXPECT_EQ(t.encode("ccCC", Special::kSpecial), (Ids{2, 2, 7}));
}

TEST(Tokenizer, SpaceIsUnicodeWhiteSpace) {
  auto spec = byte_tokenizer().spec();
  PreTokenizerStep step;
  step.pattern = R"(\s+|[^\s]+)";
  step.behavior = SplitBehavior::kRemoved;
  spec.pre_tokenizers.insert(spec.pre_tokenizers.begin(), step);
  step.pattern = R"([\S])";
  step.behavior = SplitBehavior::kRemoved;
  spec.pre_tokenizers = {step, spec.pre_tokenizers.back()};
  const auto t = Tokenizer::create(spec);
  ASSERT_TRUE(t) << t.error().to_string();
  const std::string spaces = "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000";
  EXPECT_EQ(t->decode(t->encode("a" + spaces + "\u180e\u200b\ufeffz", Special::kPlain)), spaces);
}

TEST(Tokenizer, LongPiecesMergeLikeShortOnes) {
  // A heap merges long pieces, a scan short ones: the same ids where both apply, piece by piece.
  const auto& qwen = golden_tokenizer("qwen3");
  ASSERT_TRUE(qwen);
  auto spec = qwen->spec();
  spec.ignore_merges = false;
  PreTokenizerStep whole;
  whole.kind = PreTokenizerStep::Kind::kByteLevel;
  spec.pre_tokenizers = {whole};
  const auto t = Tokenizer::create(spec);
  ASSERT_TRUE(t);
  Rng rng(7, RngStream::kTest);
  for (int round = 0; round < 200; ++round) {
    std::string word;
    for (std::size_t n = 1 + rng.below(24); n > 0; --n) word += "aeinrst "[rng.below(8)];
    const auto one = t->encode(word, Special::kPlain);
    // A newline pair never merges with letters in this vocabulary, so that the long piece falls apart there.
    std::string repeated;
    Ids expected;
    const Ids line = t->encode("\x01", Special::kPlain);
    for (int i = 0; i < 6; ++i) {
      repeated += word + "\x01";
      expected.insert(expected.end(), one.begin(), one.end());
      expected.insert(expected.end(), line.begin(), line.end());
    }
    ASSERT_EQ(t->encode(repeated, Special::kPlain), expected) << word;
  }
}

TEST(Tokenizer, MegabytesOfOneCharacterAreFine) {
  const auto& t = golden_tokenizer("qwen3");
  ASSERT_TRUE(t);
  for (const char* unit : {"a", " ", "\n", "<", "\u4f60", "\u0301"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_EQ(t->decode(t->encode(text, Special::kPlain)), text) << unit;
  }
}

// S13: however the text came to its begin-of-text token, there is one.
TEST(Tokenizer, NeverDoublesTheBeginOfText) {
  auto spec = byte_tokenizer().spec();
  spec.bos = 257;
  spec.prefix = {257};
  spec.suffix = {256};
  const auto t = Tokenizer::create(spec);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->with_template({65}), (Ids{257, 65, 256}));
  EXPECT_EQ(t->with_template({257, 65, 256}), (Ids{257, 65, 256}));
  EXPECT_EQ(t->with_template(t->with_template({})), (Ids{257, 256}));
  EXPECT_EQ(t->encode("A", Special::kSpecial), (Ids{65})) << "encode alone adds nothing";
}

// S12, the reported bytes.
TEST(StreamDecoder, HoldsACharacterBackUntilItIsWhole) {
  const auto t = byte_tokenizer();
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xB8), "");
  EXPECT_EQ(decoder.push(0x96), "\u4e16");
  EXPECT_EQ(decoder.finish(), "");
  std::string text;
  for (const char c : std::string("A\u4e16\u4e16ab")) text += decoder.push(static_cast<unsigned char>(c));
  EXPECT_EQ(text + decoder.finish(), "A\u4e16\u4e16ab");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push('x'), "\ufffdx") << "what cannot be completed comes at once";
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.finish(), "\ufffd");
}

TEST(StreamDecoder, AgreesWithDecodeOnRandomIds) {
  const auto& t = golden_tokenizer("qwen3_5");
  ASSERT_TRUE(t);
  Rng rng(11, RngStream::kTest);
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    for (int i = 0; i < 20; ++i)
      ids.push_back(
          static_cast<std::int32_t>(rng.below(i % 2 ? 256 : static_cast<std::uint64_t>(t->vocab_size()) + 5)));
    StreamDecoder decoder(*t);
    std::string text;
    for (const auto id : ids) {
      const std::string piece = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(piece));
      text += piece;
    }
    ASSERT_EQ(text + decoder.finish(), t->decode(ids));
  }
}

TEST(Tokenizer, ServesSeveralThreads) {
  const auto& t = golden_tokenizer("gpt2");
  ASSERT_TRUE(t);
  const std::string text = "The quick brown fox jumps over the lazy dog, 12345 times.";
  const Ids expected = t->encode(text, Special::kPlain);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round)
        wrong[static_cast<std::size_t>(i)] += t->encode(text, Special::kPlain) != expected;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

// SentencePiece-like vocabularies in tokenizer.json: spaces spelled U+2581, bytes for what is unknown.
TEST(Tokenizer, FallsBackToBytes) {
  std::string vocab = R"("<unk>":0,"\u2581":1,"a":2,"b":3,"\u2581a":4)";
  for (int i = 0; i < 256; ++i) {
    char name[16];
    std::snprintf(name, sizeof name, "<0x%02X>", i);
    vocab += ",\"" + std::string(name) + "\":" + std::to_string(5 + i);
  }
  const std::string json =
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
          "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
          {"type":"Strip","content":" ","start":1,"stop":0}]},
          "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{)" +
      vocab + R"(},"merges":[["\u2581","a"]]}})";
  auto spec = parse_tokenizer_json(json, "t");
  ASSERT_TRUE(spec) << spec.error().to_string();
  const auto t = Tokenizer::create(*spec);
  ASSERT_TRUE(t) << t.error().to_string();
  const Ids ids = t->encode("ab a\u4e16", Special::kPlain);
  EXPECT_EQ(ids, (Ids{4, 3, 4, 5 + 0xE4, 5 + 0xB8, 5 + 0x96}));
  EXPECT_EQ(t->decode(ids), "ab a\u4e16");
  StreamDecoder decoder(*t);
  std::string text;
  for (const auto id : ids) text += decoder.push(id);
  EXPECT_EQ(text + decoder.finish(), "ab a\u4e16");
  const TemporaryFolder folder;
  ASSERT_TRUE(t->save(folder.path()));
  folder.write("cases.json",
               nlohmann::json{
                   {"cases", {{{"name", "fallback"}, {"text", "ab a\u4e16"}, {"ids", ids}, {"decoded", "ab a\u4e16"}}}}}
                   .dump());
  EXPECT_EQ(compare_with_oracle(folder.path(), folder.path() / "cases.json"), "");
}

} // namespace
} // namespace troupe::data
