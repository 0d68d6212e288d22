#include "checkpoint/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "checkpoint/json_fields.h"
#include "formats/dtype.h"

namespace troupe::checkpoint {
namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool valid_name(std::string_view name) {
  return !name.empty() && name.size() <= 1024 &&
         !name.starts_with("__") &&  // "__metadata__" and "__pad" are the file's own
         std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

Result<std::uint64_t> bytes_of(const TensorEntry& tensor) {
  const auto dtype = formats::dtype_from(tensor.dtype);
  if (!dtype)
    return fail(ErrorCode::kInvalidArgument,
                "tensor " + tensor.name + " has the unknown type \"" + tensor.dtype + "\"");
  std::uint64_t bytes = formats::element_bytes(*dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0)
      return fail(ErrorCode::kInvalidArgument,
                  "tensor " + tensor.name + " has the negative size " + std::to_string(size));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) || bytes > kBytesMax)
      return fail(ErrorCode::kInvalidArgument, "tensor " + tensor.name + " is too large");
  }
  return bytes;
}

}  // namespace

std::optional<std::size_t> StateLayout::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == name) return i;
  return std::nullopt;
}

std::uint64_t StateLayout::digest() const {
  std::string text;
  for (const TensorEntry& tensor : tensors) {
    text += tensor.name + '\0' + tensor.dtype + '\0';
    for (const std::int64_t size : tensor.shape) text += std::to_string(size) + ',';
    text += '@' + std::to_string(tensor.offset) + '\n';
  }
  return hash64(text, bytes);
}

Result<StateLayout> make_layout(std::vector<TensorEntry> tensors) {
  StateLayout layout;
  std::unordered_set<std::string_view> names;
  for (TensorEntry& tensor : tensors) {
    if (!valid_name(tensor.name))
      return fail(ErrorCode::kInvalidArgument, "\"" + tensor.name + "\" cannot be a tensor's name");
    if (!names.insert(tensor.name).second)
      return fail(ErrorCode::kAlreadyExists, "tensor " + tensor.name + " is there twice");
    TROUPE_TRY(tensor.bytes, bytes_of(tensor));
    tensor.offset = layout.bytes;
    layout.bytes = aligned(layout.bytes + tensor.bytes);
    if (layout.bytes > kBytesMax)
      return fail(ErrorCode::kInvalidArgument, "the state is too large at tensor " + tensor.name);
  }
  layout.tensors = std::move(tensors);
  return layout;
}

Status check(const StateLayout& layout) {
  const auto corrupt = [](std::string why) {
    return fail(ErrorCode::kCorrupt, "the table of tensors is damaged: " + std::move(why));
  };
  std::unordered_set<std::string_view> names;
  std::uint64_t end = 0;
  if (layout.bytes % kAlignment != 0 || layout.bytes > kBytesMax)
    return corrupt("its region has " + std::to_string(layout.bytes) + " bytes");
  for (const TensorEntry& tensor : layout.tensors) {
    if (!valid_name(tensor.name) || !names.insert(tensor.name).second)
      return corrupt("a tensor has a bad name, or has it twice");
    const auto bytes = bytes_of(tensor);
    if (!bytes) return corrupt(bytes.error().message);
    if (*bytes != tensor.bytes) return corrupt("the size of " + tensor.name + " does not fit its shape");
    if (tensor.offset % kAlignment != 0 || tensor.offset < end || tensor.offset > layout.bytes ||
        tensor.bytes > layout.bytes - tensor.offset)
      return corrupt("the place of " + tensor.name + " is not its own");
    end = tensor.offset + tensor.bytes;
  }
  return {};
}

nlohmann::json to_json(const StateLayout& layout) {
  auto tensors = nlohmann::json::array();
  for (const TensorEntry& tensor : layout.tensors) {
    nlohmann::json row{{"name", tensor.name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"offset", tensor.offset},
                       {"bytes", tensor.bytes}};
    if (tensor.checksum) row["xxh3"] = hex64(*tensor.checksum);
    tensors.push_back(std::move(row));
  }
  return {{"bytes", layout.bytes}, {"tensors", std::move(tensors)}};
}

Result<StateLayout> layout_from_json(const nlohmann::json& json) {
  StateLayout layout;
  TROUPE_TRY(layout.bytes, field<std::uint64_t>(json, "bytes"));
  const auto tensors = json.find("tensors");
  if (tensors == json.end() || !tensors->is_array())
    return fail(ErrorCode::kCorrupt, "field \"tensors\" is missing or of the wrong kind");
  for (const nlohmann::json& row : *tensors) {
    TensorEntry tensor;
    TROUPE_TRY(tensor.name, field<std::string>(row, "name"));
    TROUPE_TRY(tensor.dtype, field<std::string>(row, "dtype"));
    TROUPE_TRY(tensor.offset, field<std::uint64_t>(row, "offset"));
    TROUPE_TRY(tensor.bytes, field<std::uint64_t>(row, "bytes"));
    const auto shape = row.find("shape");
    if (shape == row.end() || !shape->is_array())
      return fail(ErrorCode::kCorrupt, "field \"shape\" is missing or of the wrong kind");
    for (const nlohmann::json& size : *shape) {
      if (!is_count(size) || size.get<std::uint64_t>() > kBytesMax)
        return fail(ErrorCode::kCorrupt, "a shape of " + tensor.name + " is no size");
      tensor.shape.push_back(size.get<std::int64_t>());
    }
    if (row.contains("xxh3")) {
      TROUPE_TRY(tensor.checksum, hex_field(row, "xxh3"));
    }
    layout.tensors.push_back(std::move(tensor));
  }
  TROUPE_TRY_STATUS(check(layout));
  return layout;
}

}  // namespace troupe::checkpoint
