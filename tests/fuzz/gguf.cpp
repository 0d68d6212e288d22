// A GGUF file: metadata, tensors, and what a model and a tokenizer make of them.
#include "data/tokenizer.h"
#include "data/tokenizer_readers.h"
#include "formats/gguf.h"
#include "fuzz/support.h"
#include "model/gguf_spec.h"

using namespace troupe;
using namespace troupe::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 8 << 20, 400);
  const fuzz::MemoryFile input(fuzz::text_of(data, size));
  const auto file = GgufFile::open(input.path());
  if (!fuzz::is_good(file, {ErrorCode::kCorrupt})) return 0;
  for (const GgufTensor& tensor : file->tensors()) {
    TROUPE_CHECK(file->find(tensor.name) != nullptr && tensor.elements() >= 0 && tensor.bytes.size() <= size, "a tensor of the file");
    if (tensor.bytes.empty()) continue; // of no elements, or stored in a way that is not read
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    TROUPE_CHECK(dequantise(tensor, values), "whole blocks");
  }
  (void)fuzz::is_good(model::spec_from_gguf(*file), {ErrorCode::kInvalidArgument});
  auto vocabulary = data::read_gguf_vocabulary(input.path());
  if (!fuzz::is_good(vocabulary, {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument, ErrorCode::kNotFound})) return 0;
  const auto tokenizer = data::Tokenizer::create(*std::move(vocabulary), "gguf");
  if (!fuzz::is_good(tokenizer, {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument})) return 0;
  (void)tokenizer->decode(tokenizer->encode("a b\xFF 12", data::Special::kPlain));
  return 0;
}
