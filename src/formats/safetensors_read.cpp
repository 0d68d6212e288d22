#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/safetensors.h"

namespace troupe::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kDimensionsMax = 16;

/// One entry of the header, as it stands there.
struct Entry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

/// Takes the header event by event: nothing but the three known fields per tensor, no name twice, no nesting beyond the
/// format's.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fractional number"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return refuse("a number");
    Entry& entry = entries.back();
    if (field_ == "data_offsets") {
      if (entry.offsets.size() == 2) return refuse("a third data offset");
      entry.offsets.push_back(value);
      return true;
    }
    if (entry.shape.size() == kDimensionsMax) return refuse("more than 16 dimensions");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return refuse("a dimension beyond 63 bits");
    entry.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2) return refuse("a string");
    if (in_metadata_)
      return metadata.emplace(field_, value).second || refuse("the metadata key '" + field_ + "' twice");
    if (field_ != "dtype") return refuse("a string");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 0) return ++depth_, true;
    if (depth_ != 1) return refuse("a nested object");
    ++depth_;
    in_metadata_ = name_ == "__metadata__";
    if (!in_metadata_) entries.push_back(Entry{name_, {}, {}, {}});
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ != 1 || in_metadata_) return true;
    const Entry& entry = entries.back();
    if (!entry.has_dtype || !entry.has_shape || entry.offsets.size() != 2)
      return refuse("an entry without dtype, shape and two data_offsets");
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || (field_ != "shape" && field_ != "data_offsets")) return refuse("an array");
    return ++depth_, true;
  }
  bool end_array() override { return --depth_, true; }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      name_ = value;
      return names_.insert(value).second || refuse("the name '" + value + "' twice");
    }
    field_ = value;
    if (in_metadata_) return true;
    Entry& entry = entries.back();
    bool* seen = value == "dtype"          ? &entry.has_dtype
                 : value == "shape"        ? &entry.has_shape
                 : value == "data_offsets" ? &entry.has_offsets
                                           : nullptr;
    if (seen == nullptr) return refuse("the unknown field '" + value + "'");
    if (*seen) return refuse("the field '" + value + "' twice");
    return *seen = true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (error.empty()) error = "the header is not JSON (at byte " + std::to_string(position) + ")";
    return false;
  }

 private:
  bool refuse(const std::string& what) {
    error = "the header holds " + what + (name_.empty() ? "" : " at '" + name_ + "'");
    return false;
  }
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string name_, field_;
  std::set<std::string> names_;
};

}  // namespace

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

class SafetensorsParser {
 public:
  explicit SafetensorsParser(SafetensorsFile& file) : file_(file) {}

  Status parse() {
    const auto bytes = file_.file_.bytes();
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof header_bytes) return corrupt("it is shorter than its 8-byte header length");
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    if (header_bytes > kSafetensorsHeaderBytesMax || header_bytes > bytes.size() - sizeof header_bytes)
      return corrupt("its header claims " + std::to_string(header_bytes) + " bytes, the file has " +
                     std::to_string(bytes.size()));
    const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes;
    HeaderHandler handler;
    const bool ok = nlohmann::json::sax_parse(text, text + header_bytes, &handler);
    if (!ok || !handler.error.empty()) return corrupt(handler.error);
    file_.metadata_ = std::move(handler.metadata);
    data_ = bytes.subspan(sizeof header_bytes + header_bytes);
    for (Entry& entry : handler.entries) TROUPE_TRY_STATUS(add(entry));
    return check_layout();
  }

 private:
  [[nodiscard]] Status corrupt(const std::string& why) const {
    return fail(ErrorCode::kCorrupt, "not a usable safetensors file: " + why, file_.path_.string());
  }

  Status add(Entry& entry) {
    const auto dtype = dtype_from(entry.dtype);
    if (!dtype) return corrupt("tensor '" + entry.name + "' has the unknown type '" + entry.dtype.substr(0, 32) + "'");
    std::uint64_t size = element_bytes(*dtype);
    for (const std::int64_t n : entry.shape)
      if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(n), &size) || size > (std::uint64_t{1} << 62))
        return corrupt("tensor '" + entry.name + "' has an impossible shape");
    const std::uint64_t begin = entry.offsets[0];
    const std::uint64_t end = entry.offsets[1];
    if (begin > end || end > data_.size())
      return corrupt("tensor '" + entry.name + "' lies at bytes " + std::to_string(begin) + " to " +
                     std::to_string(end) + " of " + std::to_string(data_.size()) + " (truncated?)");
    if (end - begin != size)
      return corrupt("tensor '" + entry.name + "' has " + std::to_string(end - begin) +
                     " bytes, its shape and type need " + std::to_string(size));
    file_.tensors_.push_back(
        TensorView{std::move(entry.name), *dtype, std::move(entry.shape), data_.subspan(begin, size)});
    return {};
  }

  /// The tensors lie side by side and fill the file, as the format demands: no byte is shared and none is hidden.
  Status check_layout() {
    auto& tensors = file_.tensors_;
    std::stable_sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
      return a.bytes.data() != b.bytes.data() ? a.bytes.data() < b.bytes.data() : a.bytes.size() < b.bytes.size();
    });
    const std::byte* next = data_.data();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].bytes.data() < next)
        return corrupt("tensor '" + tensors[i].name + "' overlaps tensor '" + tensors[i - 1].name + "'");
      if (tensors[i].bytes.data() > next)
        return corrupt("there are bytes of no tensor before '" + tensors[i].name + "'");
      next += tensors[i].bytes.size();
      file_.index_.emplace(tensors[i].name, i);
    }
    if (next != data_.data() + data_.size()) return corrupt("there are bytes of no tensor at its end");
    return {};
  }

  SafetensorsFile& file_;
  std::span<const std::byte> data_;
};

Result<SafetensorsFile> SafetensorsFile::open(const fs::path& path) {
  TROUPE_TRY(MappedFile mapped, MappedFile::open(path));
  SafetensorsFile file(std::move(mapped));
  file.path_ = path;
  TROUPE_TRY_STATUS(SafetensorsParser(file).parse());
  return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

namespace {

/// The index's weight_map: tensor name -> file name inside the folder.
Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  const auto corrupt = [&](const std::string& why) {
    return fail(ErrorCode::kCorrupt, "not a usable index of shards: " + why, path.string());
  };
  TROUPE_TRY(const std::string text, read_file(path, kSafetensorsHeaderBytesMax));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return corrupt("it is not a JSON object");
  const auto weights = json.find("weight_map");
  if (weights == json.end() || !weights->is_object()) return corrupt("it has no weight_map");
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : weights->items()) {
    if (!file.is_string()) return corrupt("the file of '" + name + "' is not a string");
    const auto& shard = file.get_ref<const std::string&>();
    if (shard.empty() || fs::path(shard).filename() != fs::path(shard) || shard == "." || shard == "..")
      return corrupt("the file of '" + name + "' lies outside the folder");
    map.emplace(name, shard);
  }
  return map;
}

}  // namespace

Result<SafetensorsFolder> SafetensorsFolder::open(const fs::path& folder) {
  SafetensorsFolder result;
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (!fs::exists(index, ignored)) {
    if (!fs::exists(single, ignored))
      return fail(ErrorCode::kNotFound,
                  "no weights: neither model.safetensors nor model.safetensors.index.json is there", folder.string());
    TROUPE_TRY(auto file, SafetensorsFile::open(single));
    result.files_.push_back(std::move(file));
    for (const TensorView& tensor : result.files_.front().tensors()) result.index_.emplace(tensor.name, &tensor);
    return result;
  }
  TROUPE_TRY(const auto map, read_index(index));
  std::set<std::string> names;
  for (const auto& [tensor, shard] : map) names.insert(shard);
  for (const std::string& shard : names) {
    TROUPE_TRY(auto file, SafetensorsFile::open(folder / shard));
    result.files_.push_back(std::move(file));
  }
  for (const SafetensorsFile& file : result.files_)
    for (const TensorView& tensor : file.tensors()) {
      const auto place = map.find(tensor.name);
      if (place == map.end() || place->second != file.path().filename())
        return fail(ErrorCode::kCorrupt,
                    "shard " + file.path().filename().string() + " holds '" + tensor.name +
                        "', which the index does not place there",
                    index.string());
      result.index_.emplace(tensor.name, &tensor);
    }
  for (const auto& [tensor, shard] : map)
    if (!result.index_.contains(tensor))
      return fail(ErrorCode::kCorrupt, "the index places '" + tensor + "' in " + shard + ", which does not hold it",
                  index.string());
  return result;
}

const TensorView* SafetensorsFolder::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : it->second;
}

std::vector<const TensorView*> SafetensorsFolder::tensors() const {
  std::vector<const TensorView*> all;
  all.reserve(index_.size());
  for (const auto& [name, tensor] : index_) all.push_back(tensor);
  return all;
}

}  // namespace troupe::formats
