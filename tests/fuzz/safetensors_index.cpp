// model.safetensors.index.json beside one shard that holds "a" and "b".
#include <array>

#include "formats/safetensors.h"
#include "fuzz/support.h"

using namespace troupe;
using namespace troupe::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto folder = fuzz::scratch_folder() / "shards";
  static const bool ready = [&] {
    const std::array<std::byte, 4> bytes{};
    const std::array<TensorView, 2> tensors{{{"a", DType::kF32, {1}, bytes}, {"b", DType::kU8, {2, 2}, bytes}}};
    return make_folders(folder).has_value() && write_safetensors(folder / "one.safetensors", tensors).has_value();
  }();
  TROUPE_CHECK(ready, "no place for files");
  const fuzz::MemoryBound bound(size, 1 << 20, 300);
  const fuzz::MemoryFile input(fuzz::text_of(data, size));
  const auto index = folder / "model.safetensors.index.json";
  std::filesystem::remove(index);
  std::filesystem::create_symlink(input.path(), index);
  const auto opened = SafetensorsFolder::open(folder);
  if (!fuzz::is_good(opened, {ErrorCode::kCorrupt, ErrorCode::kNotFound, ErrorCode::kUnavailable})) return 0;
  TROUPE_CHECK(opened->tensors().size() == 2 || opened->tensors().empty(), "an index that is taken names all of its shards' tensors");
  return 0;
}
