// Malformed tokenizer files: one clear error each, never a crash, never a tokenizer that is silently wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/helpers.h"
#include "data/patterns.h"
#include "data/tokenizer_readers.h"

namespace troupe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json good() {
  return nlohmann::json::parse(
      R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},"decoder":{"type":"ByteLevel"},
    "added_tokens":[{"id":3,"content":"<x>","special":true}],"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})");
}

std::string error_of(const std::string& text) {
  auto spec = parse_tokenizer_json(text, "t.json");
  if (!spec) return spec.error().to_string();
  auto tokenizer = Tokenizer::create(std::move(*spec), "t.json");
  return tokenizer ? "" : tokenizer.error().to_string();
}

// Sets the value at a JSON pointer and returns the error.
std::string error_with(const std::string& pointer, const nlohmann::json& value) {
  auto json = good();
  json[nlohmann::json::json_pointer(pointer)] = value;
  return error_of(json.dump());
}

auto says(const std::string& a, const std::string& b = "") {
  return AllOf(HasSubstr("t.json: "), HasSubstr(a), HasSubstr(b), Not(HasSubstr("\n")));
}

TEST(HostileTokenizer, TheUnspoiltOneLoads) { EXPECT_EQ(error_of(good().dump()), ""); }

TEST(HostileTokenizer, EveryTruncationIsAnError) {
  const std::string text = good().dump();
  for (std::size_t n = 0; n < text.size(); ++n) ASSERT_THAT(error_of(text.substr(0, n)), says("")) << n;
}

TEST(HostileTokenizer, EveryWrongTypeIsAnErrorOrHarmless) {
  // Every value of the file is replaced by values of all other types: whatever happens, it is not a crash.
  const auto flat = good().flatten();
  for (const auto& [pointer, value] : flat.items())
    for (const auto& other : {nlohmann::json(nullptr), nlohmann::json(true), nlohmann::json(-1), nlohmann::json(1e300),
                              nlohmann::json("zz"), nlohmann::json::array({1}), nlohmann::json{{"type", "zz"}}}) {
      const std::string error = error_with(pointer, other);
      if (error.empty()) continue; // for instance another pattern, which is as good
      EXPECT_THAT(error, says("")) << pointer << " = " << other;
    }
  EXPECT_THAT(error_with("/model", "x"), says("model must be an object, not of type string"));
  EXPECT_THAT(error_with("/model/vocab", {1}), says("model.vocab must be an object"));
  EXPECT_THAT(error_with("/model/vocab/a", "x"), says("model.vocab gives 'a' an id that must be an integer"));
  EXPECT_THAT(error_with("/model/merges/0", 5), says("model.merges[0] must be a string or a pair of strings"));
  EXPECT_THAT(error_with("/added_tokens/0/special", 1), says("added_tokens[0].special must be true or false"));
}

TEST(HostileTokenizer, NamesWhatIsUnsupportedAndWhere) {
  EXPECT_THAT(error_with("/model/type", "Unigram"), says("model has the unsupported type 'Unigram'", "BPE"));
  EXPECT_THAT(error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Nmt"}}}}}),
              says("normalizer.normalizers[0]", "'Nmt'"));
  EXPECT_THAT(error_with("/pre_tokenizer", {{"type", "Metaspace"}}), says("pre_tokenizer", "'Metaspace'"));
  EXPECT_THAT(error_with("/decoder", {{"type", "CTC"}}), says("decoder", "'CTC'"));
  EXPECT_THAT(error_with("/post_processor", {{"type", "BertProcessing"}}), says("post_processor", "'BertProcessing'"));
  EXPECT_THAT(error_with("/model/end_of_word_suffix", "</w>"), says("end_of_word_suffix"));
  EXPECT_THAT(error_with("/model/dropout", 0.1), says("dropout"));
  EXPECT_THAT(error_with("/decoder", nullptr), says("decoder is missing"));
}

TEST(HostileTokenizer, RefusesPatternsItWouldReadDifferently) {
  const auto error = [](const std::string& pattern) {
    return error_with("/pre_tokenizer",
                      {{"type", "Sequence"},
                       {"pretokenizers",
                        {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}});
  };
  EXPECT_EQ(error(R"(\p{L}+|\x{41}+|[^\r\n\p{L}\p{N}]?)"), "");
  for (const char* pattern :
       {R"(\w+)", R"(\bx)", R"(\h)", R"([a[bc]])", R"([a&&b])", R"(\p{N}{1,3}+)", R"((*LIMIT_MATCH=1)a)", R"(x\Ky)"})
    EXPECT_THAT(error(pattern), says("not supported")) << pattern;
  EXPECT_THAT(error("(a"), says("pre-tokenizer step 0: the pattern does not compile"));
  EXPECT_THAT(error(R"(a\)"), says("a backslash ends the pattern"));
  EXPECT_THAT(error("["), says("does not compile"));
}

TEST(HostileTokenizer, ASmallFileClaimsNoHugeVocabulary) {
  EXPECT_THAT(error_with("/model/vocab/b", 1000), "");
  EXPECT_THAT(error_with("/model/vocab/b", (1 << 24) - 1), says("outside 0.."));
  EXPECT_THAT(error_with("/added_tokens/0/id", (1 << 24) - 1), says("has the id 16777215"));
}

TEST(HostileTokenizer, RefusesIdsThatContradict) {
  EXPECT_THAT(error_with("/model/vocab/b", 0), says("gives the id 0 to both"));
  EXPECT_THAT(error_with("/model/vocab/b", -1), says("outside 0.."));
  EXPECT_THAT(error_with("/model/vocab/b", 1 << 30), says("outside 0.."));
  EXPECT_THAT(error_with("/model/vocab/b", 18446744073709551615u), says("outside 0.."));
  EXPECT_THAT(error_with("/added_tokens/0/id", 1), says("the id 1 is given to both 'b' and the added token '<x>'"));
  EXPECT_THAT(error_with("/added_tokens/0/content", "a"), says("added token 'a' has two ids, 0 and 3"));
  EXPECT_THAT(error_with("/added_tokens/1", {{"id", 3}, {"content", "<y>"}}),
              says("the id 3 is given to both '<x>' and the added token '<y>'"));
  EXPECT_THAT(error_with("/added_tokens/0/content", ""), says("the added token with id 3 is empty"));
}

TEST(HostileTokenizer, RefusesMergesThatCannotBe) {
  EXPECT_THAT(error_with("/model/merges/0", "a z"), says("model.merges[0] names 'z'"));
  EXPECT_THAT(error_with("/model/merges/0", "b a"), says("merge 0 makes 'ba'"));
  EXPECT_THAT(error_with("/model/merges/0", "ab"), says("two tokens with a space"));
  EXPECT_THAT(error_with("/model/merges/1", "a b"), says("merge 1", "given twice"));
  // An empty token would merge with anything without end.
  auto json = good();
  json["model"]["vocab"][""] = 9;
  json["model"]["merges"] = {{"", "a"}};
  EXPECT_THAT(error_of(json.dump()), says("model.vocab has an empty token"));
}

TEST(HostileTokenizer, RefusesDeepNesting) {
  std::string deep = R"({"normalizer":)";
  for (int i = 0; i < 100'000; ++i) deep += R"({"type":"Sequence","normalizers":[)";
  EXPECT_THAT(error_of(deep), says("nested deeper than 64"));
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), says("nested deeper"));
}

TEST(HostileTokenizer, RefusesIllFormedUtf8AndPointsAtIt) {
  std::string text = good().dump();
  text.replace(text.find("\"b\""), 3, "\"\xFF\"");
  EXPECT_THAT(error_of(text), says("ill-formed UTF-8 at line 1, column"));
}

TEST(HostileTokenizer, AControlTokenInTheVocabularyIsNotReachableAsText) {
  auto json = good();
  json["model"]["vocab"]["<x>"] = 3;
  json["model"]["vocab"]["<"] = 4, json["model"]["vocab"]["x>"] = 5, json["model"]["vocab"]["x"] = 6,
  json["model"]["vocab"][">"] = 7;
  json["model"]["merges"] = {"x >", "< x>"};
  for (const bool ignore_merges : {false, true}) {
    json["model"]["ignore_merges"] = ignore_merges;
    auto spec = parse_tokenizer_json(json.dump(), "t.json");
    ASSERT_TRUE(spec) << spec.error().to_string();
    const auto tokenizer = Tokenizer::create(*spec);
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    EXPECT_EQ(tokenizer->encode("<x>", Special::kPlain), (std::vector<std::int32_t>{4, 5}));
    EXPECT_EQ(tokenizer->encode("<x>", Special::kSpecial), (std::vector<std::int32_t>{3}));
  }
}

TEST(TokenizerLoad, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  const auto error = [](const std::filesystem::path& path, std::string_view pattern = {}) {
    const auto t = Tokenizer::load(path, pattern);
    return t ? std::string() : t.error().to_string();
  };
  EXPECT_THAT(error(folder.path() / "nothing"), HasSubstr("no such file or folder"));
  EXPECT_THAT(error(folder.path()), HasSubstr("neither tokenizer.json"));
  EXPECT_THAT(error(folder.write("x.bin", "x")), HasSubstr("a tokenizer is a folder"));
  EXPECT_THAT(error(folder.write("x.tiktoken", "YQ== 0\n")), AllOf(HasSubstr("set the pattern"), HasSubstr("qwen2")));
  EXPECT_THAT(error(folder.path() / "x.tiktoken", "nope"), HasSubstr("unknown splitting pattern 'nope'"));
  EXPECT_EQ(error(folder.path() / "x.tiktoken", "llama3"), "");
  EXPECT_THAT(error(folder.write("y.tiktoken", "YQ== 0\nYg== 0\n"), "qwen2"),
              HasSubstr("y.tiktoken:2: the rank 0 is given twice"));
  EXPECT_THAT(error(folder.write("z.tiktoken", "YQ== 0\n!! 1\n"), "qwen2"),
              HasSubstr("z.tiktoken:2: '!!' is not base64"));
  EXPECT_THAT(error(folder.write("w.tiktoken", "YQ== 99999999999\n"), "qwen2"),
              HasSubstr("w.tiktoken:1: the rank must be"));
  folder.write("tokenizer.json", good().dump());
  EXPECT_EQ(error(folder.path()), "");
  folder.write("tokenizer_config.json", R"({"eos_token":{"content":"</s>"}})");
  EXPECT_THAT(error(folder.path()),
              AllOf(HasSubstr("tokenizer_config.json: eos_token is '</s>'"), HasSubstr("does not have")));
}

TEST(RankFile, FindsWholePiecesThatNoMergeMakes) {
  // "abc" has no two parts in the vocabulary: tiktoken finds it as a whole piece only.
  const TemporaryFolder folder;
  const auto t = Tokenizer::load(folder.write("r.tiktoken", "YQ== 0\nYg== 1\nYw== 2\nYWJj 3\n"), "qwen2");
  ASSERT_TRUE(t) << t.error().to_string();
  EXPECT_EQ(t->encode("abc", Special::kPlain), (std::vector<std::int32_t>{3}));
  EXPECT_EQ(t->encode("aabc", Special::kPlain), (std::vector<std::int32_t>{0, 0, 1, 2}));
}

TEST(Patterns, EveryNameCompiles) {
  const auto unknown = find_pattern("?");
  ASSERT_FALSE(unknown);
  std::string list = unknown.error().message.substr(unknown.error().message.find("known are ") + 10);
  int count = 0;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(", ", at), list.size());
    const auto named = find_pattern(list.substr(at, end - at));
    ASSERT_TRUE(named);
    TokenizerSpec spec;
    spec.vocab = {"a"};
    spec.decoders.push_back({});
    spec.pre_tokenizers = named->pre_tokenizers;
    EXPECT_TRUE(Tokenizer::create(spec)) << list.substr(at, end - at);
    at = end + 2;
    ++count;
  }
  EXPECT_GE(count, 20);
}

} // namespace
} // namespace troupe::data
