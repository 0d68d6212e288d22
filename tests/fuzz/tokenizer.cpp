// A tokenizer.json: read, used, written, read again.
#include "data/tokenizer.h"

#include "data/tokenizer_readers.h"
#include "fuzz/support.h"

using namespace troupe;
using namespace troupe::data;

namespace {

constexpr std::initializer_list<ErrorCode> kRefusals = {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument};

std::string written(const Tokenizer& tokenizer) {
  const auto folder = fuzz::scratch_folder() / "tokenizer";
  const auto saved = tokenizer.save(folder);
  TROUPE_CHECK(saved, "what was read is written: " + saved.error().to_string());
  auto text = read_file(folder / "tokenizer.json");
  TROUPE_CHECK(text, "it was written");
  return *std::move(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 32 << 20, 1000);  // holes in the vocabulary and a cache, whatever the file says
  auto spec = parse_tokenizer_json(fuzz::text_of(data, size), "t.json");
  if (!fuzz::is_good(spec, kRefusals)) return 0;
  const auto tokenizer = Tokenizer::create(*std::move(spec), "t.json");
  if (!fuzz::is_good(tokenizer, kRefusals)) return 0;
  const std::string text = written(*tokenizer);
  auto spec_again = parse_tokenizer_json(text, "again");
  TROUPE_CHECK(spec_again, "what was written reads: " + spec_again.error().to_string());
  const auto again = Tokenizer::create(*std::move(spec_again), "again");
  TROUPE_CHECK(again, "what was written compiles: " + again.error().to_string());
  TROUPE_CHECK(written(*again) == text, "writing is stable");
  for (const std::string_view sample : {"", "Hi there, 1234  a\n\n b's", "\xFF\xC3\xA9 \xE2\x82", "<|im_start|><s>"})
    for (const Special mode : {Special::kPlain, Special::kSpecial}) {
      const auto ids = tokenizer->encode(sample, mode);
      TROUPE_CHECK(ids == again->encode(sample, mode), "both encode alike");
      StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const std::int32_t id : ids) {
        TROUPE_CHECK(id >= 0 && id < tokenizer->vocab_size(), "an id of the vocabulary");
        streamed += stream.push(id);
      }
      TROUPE_CHECK(streamed + stream.finish() == tokenizer->decode(ids), "pieces join to the whole");
    }
  return 0;
}
