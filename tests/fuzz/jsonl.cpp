// A JSONL file as documents and as tasks.
#include "data/bpe_trainer.h"
#include "data/dataset.h"
#include "fuzz/support.h"

using namespace troupe;
using namespace troupe::data;

namespace {

struct Fixture {
  Tokenizer tokenizer;
  PromptFormat format;
};

const Fixture& fixture() {
  static const Fixture made = [] {
    auto tokenizer = make_vocabulary({}, {});
    TROUPE_CHECK(tokenizer, "the byte vocabulary");
    auto format = PromptFormat::create("chatml", *tokenizer);
    TROUPE_CHECK(format, "its format");
    return Fixture{*std::move(tokenizer), *std::move(format)};
  }();
  return made;
}

void check_place(const Error& error, const std::string& path) {
  fuzz::check_error(error, {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument});
  TROUPE_CHECK(error.where.starts_with(path), "the file is named");
  TROUPE_CHECK(error.code != ErrorCode::kCorrupt || error.where.starts_with(path + ":"), "and the line");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)fixture();
  const fuzz::MemoryBound bound(size, 4 << 20, 400);
  const fuzz::MemoryFile input(fuzz::text_of(data, size));
  DatasetOptions options;
  options.path = input.path();
  options.context_tokens = 64;
  const auto examples = read_examples(options, Split::kTrain);
  if (!examples) check_place(examples.error(), options.path);
  if (examples)
    for (const Example& example : *examples) {
      const auto documents = encode_example(example, fixture().format, fixture().tokenizer, options);
      if (!documents) check_place(documents.error(), options.path);
      for (const Document& document : documents ? *documents : std::vector<Document>{})
        TROUPE_CHECK(document.ids.size() == document.sampled.size() && document.ids.size() <= 64, "a mark for each token");
    }
  TaskFileOptions tasks;
  tasks.path = input.path();
  tasks.eval_fraction = 0;
  const auto rows = read_tasks(tasks, Split::kTrain);
  if (!rows) check_place(rows.error(), options.path);
  return 0;
}
