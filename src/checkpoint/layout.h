/// @file
/// Where every tensor of the state lies in one contiguous region of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace troupe::checkpoint {

/// Tensors start at multiples of this, in memory and in files.
inline constexpr std::uint64_t kAlignment = 64;

/// One tensor of the state. Names are printable ASCII and unique, e.g. "model.layers.0.mlp.up_proj.weight",
/// "optimizer.exp_avg/...".
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< As safetensors writes it: formats/dtype.h.
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< Bytes from the start of the region.
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> checksum =
      std::nullopt;  ///< hash64 of the bytes, when whoever wrote them into the region vouches for them.
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// The table of a region. Made once; both sides keep it, later saves carry only its digest.
struct StateLayout {
  std::vector<TensorEntry> tensors;  ///< By offset.
  std::uint64_t bytes = 0;  ///< Length of the region, a multiple of kAlignment. Bytes between tensors should be zero.

  /// Position in `tensors`, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;
  /// Of names, types, shapes and offsets; not of checksums.
  [[nodiscard]] std::uint64_t digest() const;
};

/// Lays tensors out in the order given; `offset` and `bytes` of the input are ignored.
/// Errors: kInvalidArgument (bad name or type, negative size, sizes that overflow), kAlreadyExists (a name twice).
[[nodiscard]] Result<StateLayout> make_layout(std::vector<TensorEntry> tensors);

/// A layout that came from elsewhere: aligned, in order, no overlap, sizes match shapes, names unique. Errors:
/// kCorrupt.
[[nodiscard]] Status check(const StateLayout& layout);

/// JSON and back, for messages and files; what comes back was checked. Errors: kCorrupt.
[[nodiscard]] nlohmann::json to_json(const StateLayout& layout);
[[nodiscard]] Result<StateLayout> layout_from_json(const nlohmann::json& json);

}  // namespace troupe::checkpoint
