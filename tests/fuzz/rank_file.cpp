// A tiktoken rank file; and the merge list of GPT-2's pair of files.
#include "data/tokenizer.h"
#include "data/tokenizer_readers.h"
#include "fuzz/support.h"

using namespace troupe;
using namespace troupe::data;

namespace {

constexpr std::initializer_list<ErrorCode> kRefusals = {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument};

void use(Result<TokenizerSpec> spec) {
  if (!fuzz::is_good(spec, kRefusals)) return;
  const auto tokenizer = Tokenizer::create(*std::move(spec), "file");
  if (!fuzz::is_good(tokenizer, kRefusals)) return;
  for (const std::int32_t id : tokenizer->encode("ab ab", Special::kPlain)) TROUPE_CHECK(id >= 0 && id < tokenizer->vocab_size(), "an id of the vocabulary");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 32 << 20, 500);
  const fuzz::MemoryFile input(fuzz::text_of(data, size));
  const fuzz::MemoryFile letters(R"({"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4})");
  use(read_rank_file(input.path(), "gpt-2"));
  use(read_gpt2_files(letters.path(), input.path()));
  use(read_gpt2_files(input.path(), fuzz::MemoryFile("a b\n").path()));
  return 0;
}
