// A safetensors file: header, tensors, and the way back.
#include <algorithm>

#include "formats/safetensors.h"
#include "fuzz/support.h"

namespace {

using namespace troupe;
using namespace troupe::formats;

void check_round_trip(const SafetensorsFile& file) {
  const auto path = fuzz::scratch_folder() / "again.safetensors";
  const auto written = write_safetensors(path, file.tensors(), file.metadata());
  TROUPE_CHECK(written, "what was read is written: " + written.error().to_string());
  const auto again = SafetensorsFile::open(path);
  TROUPE_CHECK(again, "what was written reads: " + again.error().to_string());
  TROUPE_CHECK(again->metadata() == file.metadata() && again->tensors().size() == file.tensors().size(), "nothing is lost");
  for (const TensorView& tensor : file.tensors()) {
    const TensorView* other = again->find(tensor.name);
    TROUPE_CHECK(other != nullptr && other->dtype == tensor.dtype && other->shape == tensor.shape &&
                     std::ranges::equal(other->bytes, tensor.bytes),
                 "the tensor is the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 1 << 20, 200);
  const fuzz::MemoryFile input(fuzz::text_of(data, size));
  const auto file = SafetensorsFile::open(input.path());
  if (!fuzz::is_good(file, {ErrorCode::kCorrupt})) return 0;
  std::size_t bytes = 0;
  for (const TensorView& tensor : file->tensors()) {
    TROUPE_CHECK(tensor.bytes.size() == static_cast<std::uint64_t>(tensor.elements()) * element_bytes(tensor.dtype), "shape x type");
    TROUPE_CHECK(file->find(tensor.name) == &tensor, "found by its name");
    bytes += tensor.bytes.size();
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    if (convert_to_float(tensor.dtype, tensor.bytes, values)) (void)std::count(values.begin(), values.end(), 0.0F);
  }
  TROUPE_CHECK(bytes < size, "no byte is counted twice");
  check_round_trip(*file);
  return 0;
}
