#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "data/bpe_trainer.h"
#include "data/helpers.h"
#include "data/packing.h"
#include "data/split.h"

namespace troupe::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

struct DatasetTest : ::testing::Test {
  TemporaryFolder folder;
  Tokenizer tokenizer = *make_vocabulary({});
  PromptFormat chatml = *PromptFormat::create("chatml", tokenizer);
  PromptFormat plain = *PromptFormat::create("plain", tokenizer);

  DatasetOptions file(const std::string& content) const {
    DatasetOptions options;
    options.path = folder.write("d.jsonl", content).string();
    return options;
  }
  std::string error(const std::string& content) const {
    const auto examples = read_examples(file(content), Split::kTrain);
    return examples ? "" : examples.error().to_string();
  }
};

TEST_F(DatasetTest, ReadsTheThreeKinds) {
  auto examples = read_examples(file("{\"text\":\"a\"}\r\n\n  \n{\"text\":\"b\",\"source\":7}"), Split::kTrain);
  ASSERT_TRUE(examples) << examples.error().to_string();
  ASSERT_EQ(examples->size(), 2u);
  EXPECT_EQ((*examples)[1].text, "b");
  EXPECT_EQ((*examples)[1].line, 4);
  examples = read_examples(file(R"({"prompt":"p","completion":"c"})"), Split::kTrain);
  ASSERT_TRUE(examples);
  EXPECT_EQ(examples->front().completion, "c");
  examples = read_examples(file(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"),
                           Split::kTrain);
  ASSERT_TRUE(examples);
  EXPECT_THAT(examples->front().messages, ElementsAre(Message{"user", "q"}, Message{"assistant", "a"}));
}

TEST_F(DatasetTest, NamesTheLineThatIsBad) {
  const std::string good = "{\"text\":\"a\"}\n";
  EXPECT_THAT(error(good + "{\"text\":"), HasSubstr("d.jsonl:2: the line ends in the middle of a JSON value"));
  EXPECT_THAT(error(good + "{text}"), HasSubstr("d.jsonl:2: the line is not valid JSON at line 1, column 3"));
  EXPECT_THAT(error(good + "{\"text\":\"a\"} {}"), HasSubstr("d.jsonl:2: the line is not valid JSON"));
  EXPECT_THAT(error(good + "{\"txt\":\"a\"}"), HasSubstr("d.jsonl:2: has none of the fields"));
  EXPECT_THAT(error(good + "{\"text\":5}"), HasSubstr("d.jsonl:2: text must be a string, not of type number"));
  EXPECT_THAT(error(good + "[1]"), HasSubstr("d.jsonl:2: must be an object"));
  EXPECT_THAT(error(good + "{\"text\":\"\"}"), HasSubstr("d.jsonl:2: text is empty"));
  EXPECT_THAT(error(good + "{\"text\":\"\xff\"}"), HasSubstr("d.jsonl:2: the line has ill-formed UTF-8"));
  EXPECT_THAT(error(good + "{\"text\":" + std::string(1000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(error(good + R"({"prompt":"p"})"), HasSubstr("d.jsonl:2: has no 'completion'"));
  EXPECT_THAT(error(good + R"({"prompt":"p","completion":"c"})"),
              HasSubstr("d.jsonl:2: has prompt and completion where earlier lines have text"));
  EXPECT_THAT(error(R"({"text":"a","messages":[]})"), HasSubstr("mixes the fields"));
  EXPECT_THAT(error(R"({"messages":[]})"), HasSubstr("messages is an empty list"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user"}]})"), HasSubstr("messages[0] lacks 'content'"));
  EXPECT_THAT(error(R"({"messages":[{"role":"bot","content":"x"}]})"),
              HasSubstr("roles are system, user, assistant and tool"));
  EXPECT_THAT(error(R"({"messages":[{"role":"user","content":"x"}]})"), HasSubstr("nothing to learn"));
  EXPECT_THAT(error("\n\n"), HasSubstr("d.jsonl: the file holds no lines"));
  DatasetOptions missing;
  missing.path = "/nonexistent.jsonl";
  EXPECT_EQ(read_examples(missing, Split::kTrain).error().code, ErrorCode::kNotFound);
}

TEST_F(DatasetTest, SplitsAreDisjointAndDoNotMoveWithTheFile) {
  std::string lines, reversed;
  for (int i = 0; i < 500; ++i) {
    const std::string line =
        R"({"prompt":"q)" + std::to_string(i % 250) + R"(","completion":"c)" + std::to_string(i) + "\"}\n";
    lines += line;
    reversed = line + reversed;
  }
  auto options = file(lines);
  options.eval_fraction = 0.2;
  const auto prompts = [](const std::vector<Example>& examples) {
    std::set<std::string> out;
    for (const auto& e : examples) out.insert(e.prompt);
    return out;
  };
  const auto train = prompts(*read_examples(options, Split::kTrain)),
             eval = prompts(*read_examples(options, Split::kEval));
  EXPECT_EQ(train.size() + eval.size(), 250u);
  EXPECT_NEAR(static_cast<double>(eval.size()), 50, 20);
  for (const auto& prompt : eval) EXPECT_FALSE(train.contains(prompt));
  folder.write("d.jsonl", reversed);
  EXPECT_EQ(prompts(*read_examples(options, Split::kEval)), eval);
  options.eval_fraction = 0;
  EXPECT_THAT(read_examples(options, Split::kEval).error().message,
              HasSubstr("no line falls into the evaluation split"));
}

TEST_F(DatasetTest, TasksReadAnswersOfAnyField) {
  TaskFileOptions options;
  options.path =
      folder
          .write("t.jsonl", "{\"q\":\"1+1\",\"a\":2}\n{\"q\":[{\"role\":\"system\",\"content\":\"s\"}],\"a\":\"x\"}\n")
          .string();
  options.prompt_field = "q", options.answer_field = "a", options.eval_fraction = 0;
  const auto rows = read_tasks(options, Split::kTrain);
  ASSERT_TRUE(rows) << rows.error().to_string();
  EXPECT_EQ((*rows)[0].answer, "2");
  EXPECT_THAT((*rows)[0].messages, ElementsAre(Message{"user", "1+1"}));
  EXPECT_EQ((*rows)[1].messages[0].role, "system");
  options.answer_field = "b";
  EXPECT_THAT(read_tasks(options, Split::kTrain).error().to_string(), HasSubstr("t.jsonl:1: has no 'b'"));
  options.answer_field = "q";
  EXPECT_THAT(read_tasks(options, Split::kTrain).error().to_string(),
              HasSubstr("t.jsonl:2: q must be a string or a number"));
}

// Of formats that show every turn as it was said.
std::optional<Document> only(Result<std::vector<Document>> documents) {
  if (!documents || documents->size() != 1) return std::nullopt;
  return std::move(documents->front());
}

TEST_F(DatasetTest, MasksFollowTheStructure) {
  Example example;
  example.kind = Example::Kind::kPromptCompletion;
  example.prompt = "2+2=", example.completion = "4";
  auto document = only(encode_example(example, plain, tokenizer, {}));
  ASSERT_TRUE(document);
  EXPECT_EQ(document->ids, (Ids{'2', '+', '2', '=', '4', 256}));
  EXPECT_EQ(document->sampled, (Mask{0, 0, 0, 0, 1, 1}));
  document = only(encode_example(example, chatml, tokenizer, {}));
  EXPECT_EQ(document->ids.back(), 258) << "the line end behind the last turn is left out";
  EXPECT_EQ(document->sampled.back(), 1);
  example = {};
  example.text = "ab<|endoftext|>";
  document = only(encode_example(example, plain, tokenizer, {}));
  EXPECT_EQ(document->ids.size(), 2u + 13 + 1) << "written text is no control token; one end-of-text follows";
  EXPECT_EQ(document->ids.back(), 256);
  EXPECT_EQ(document->sampled, Mask(16, 1));
}

TEST_F(DatasetTest, TooLongDocumentsAreAnErrorOrCut) {
  Example example;
  example.text = "abcdef", example.line = 3;
  DatasetOptions options;
  options.path = "x.jsonl", options.context_tokens = 4;
  EXPECT_THAT(encode_example(example, plain, tokenizer, options).error().to_string(),
              AllOf(HasSubstr("x.jsonl:3: the document has 7 tokens"), HasSubstr("context 4")));
  options.too_long = TooLong::kTruncate;
  EXPECT_EQ(only(encode_example(example, plain, tokenizer, options))->ids, (Ids{'a', 'b', 'c', 'd'}));
}

// V11: [1,2,3 | 4,5] has three trained targets, never 4 after 3.
TEST(Packing, NoDocumentPredictsTheNext) {
  PackedSequences packed;
  append(packed, {{1, 2, 3}, {1, 1, 1}});
  append(packed, {{4, 5}, {1, 1}});
  EXPECT_EQ(packed.ids, (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(packed.targets, (Ids{2, 3, -1, 5, -1}));
  EXPECT_EQ(packed.loss_mask, (Mask{1, 1, 0, 1, 0}));
  EXPECT_EQ(packed.positions, (Ids{0, 1, 2, 0, 1}));
  EXPECT_THAT(packed.documents, ElementsAre(std::pair(0, 3), std::pair(3, 5)));
  EXPECT_EQ(packed.trained_tokens(), 3);
}

// V11: prompt 2 of 5 tokens; the losses of targets t2, t3, t4 count.
TEST(Packing, TheFirstAndTheLastAnswerTokenCount) {
  PackedSequences packed;
  append(packed, {{10, 11, 12, 13, 14}, {0, 0, 1, 1, 1}});
  EXPECT_EQ(packed.loss_mask, (Mask{0, 1, 1, 1, 0}));
  EXPECT_EQ(packed.targets, (Ids{11, 12, 13, 14, -1}));
  const double losses[] = {.1, .2, .4, .8};
  double sum = 0;
  for (std::size_t i = 0; i < 4; ++i) sum += packed.loss_mask[i] * losses[i];
  EXPECT_NEAR(sum / static_cast<double>(packed.trained_tokens()), 0.466667, 1e-6);
}

TEST(Order, IsAPermutationOfSeedAndEpoch) {
  const auto a = epoch_order(1000, 1, 0, true);
  EXPECT_EQ(a, epoch_order(1000, 1, 0, true));
  EXPECT_NE(a, epoch_order(1000, 1, 1, true));
  EXPECT_NE(a, epoch_order(1000, 2, 0, true));
  EXPECT_EQ(std::set<std::uint32_t>(a.begin(), a.end()).size(), 1000u);
  EXPECT_THAT(epoch_order(3, 9, 4, false), ElementsAre(0u, 1u, 2u));
}

TEST(Order, StreamsResumeAtTheCursor) {
  IndexStream stream(7, 3, true);
  std::vector<std::uint32_t> seen;
  std::vector<Cursor> cursors;
  for (int i = 0; i < 21; ++i) {
    cursors.push_back(stream.cursor());
    seen.push_back(stream.peek());
    stream.advance();
  }
  for (int epoch = 0; epoch < 3; ++epoch)
    EXPECT_EQ(std::set<std::uint32_t>(seen.begin() + epoch * 7, seen.begin() + epoch * 7 + 7).size(), 7u);
  for (std::size_t i = 0; i < cursors.size(); ++i) {
    IndexStream other(7, 3, true);
    ASSERT_TRUE(other.seek(cursors[i]));
    for (std::size_t k = i; k < seen.size(); ++k, other.advance()) ASSERT_EQ(other.peek(), seen[k]);
  }
  EXPECT_THAT(stream.seek({0, 7}).error().message, HasSubstr("has the file changed"));
}

TEST_F(DatasetTest, BatchesHoldWholeDocumentsAndResume) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        R"({"text":")" + std::string(static_cast<std::size_t>(1 + i % 9), static_cast<char>('a' + i % 26)) + "\"}\n";
  auto options = file(lines);
  options.tokens_per_batch = 24;
  const auto examples = *read_examples(options, Split::kTrain);
  PackedStream stream(examples, plain, tokenizer, options, 5);
  std::size_t documents = 0;
  for (int i = 0; i < 30; ++i) {
    const Cursor at = stream.cursor();
    const auto batch = stream.next();
    ASSERT_TRUE(batch) << batch.error().to_string();
    EXPECT_LE(batch->ids.size(), 24u);
    std::int32_t end = 0;
    for (const auto& [begin, stop] : batch->documents) {
      EXPECT_EQ(begin, end);
      EXPECT_EQ(batch->ids[static_cast<std::size_t>(stop) - 1], 256) << "a document was cut";
      end = stop;
    }
    EXPECT_EQ(static_cast<std::size_t>(end), batch->ids.size());
    documents += batch->documents.size();
    PackedStream resumed(examples, plain, tokenizer, options, 5);
    ASSERT_TRUE(resumed.seek(at));
    EXPECT_EQ(resumed.next()->ids, batch->ids);
  }
  EXPECT_EQ(stream.cursor().epoch * 40 + stream.cursor().index, documents) << "every document once per epoch";
  options.tokens_per_batch = 3;
  PackedStream tight(examples, plain, tokenizer, options, 5);
  Result<PackedSequences> batch = tight.next();
  while (batch) batch = tight.next();
  EXPECT_THAT(batch.error().to_string(), AllOf(HasSubstr("d.jsonl:"), HasSubstr("raise tokens_per_batch")));
}

} // namespace
} // namespace troupe::data
