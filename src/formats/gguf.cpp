#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace troupe::formats {

namespace {

/// How a storage type lays out values: blocks of `values` in `bytes`.
struct Layout {
  GgufType type;
  const char* name;
  std::uint64_t values, bytes;
};
constexpr std::array<Layout, 8> kLayouts = {{{GgufType::kF32, "F32", 1, 4},
                                             {GgufType::kF16, "F16", 1, 2},
                                             {GgufType::kBF16, "BF16", 1, 2},
                                             {GgufType::kQ4_0, "Q4_0", 32, 18},
                                             {GgufType::kQ4_1, "Q4_1", 32, 20},
                                             {GgufType::kQ8_0, "Q8_0", 32, 34},
                                             {GgufType::kQ4_K, "Q4_K", 256, 144},
                                             {GgufType::kQ6_K, "Q6_K", 256, 210}}};

const Layout* layout_of(std::uint32_t type) {
  for (const Layout& layout : kLayouts)
    if (static_cast<std::uint32_t>(layout.type) == type) return &layout;
  return nullptr;
}

/// Kinds of metadata values, numbered as in the file.
enum class Kind : std::uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

std::size_t fixed_bytes(Kind kind) {
  switch (kind) {
    case Kind::kU8:
    case Kind::kI8:
    case Kind::kBool:
      return 1;
    case Kind::kU16:
    case Kind::kI16:
      return 2;
    case Kind::kU32:
    case Kind::kI32:
    case Kind::kF32:
      return 4;
    case Kind::kU64:
    case Kind::kI64:
    case Kind::kF64:
      return 8;
    default:
      return 0;
  }
}

bool is_fraction(Kind kind) { return kind == Kind::kF32 || kind == Kind::kF64; }

constexpr std::uint64_t kDimensionsMax = 8;
constexpr std::size_t kNameBytesMax = 1024;
constexpr std::uint64_t kStringHeaderBytes = 8;
/// The least a metadata pair or a tensor entry can take: bounds what a claimed count may reserve.
constexpr std::uint64_t kPairBytesMin = 8 + 4 + 1;
constexpr std::uint64_t kTensorBytesMin = 8 + 4 + 4 + 8;

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.file_.bytes()) {}

  Status parse() {
    std::uint32_t magic = 0;
    std::uint64_t tensor_count = 0;
    std::uint64_t pair_count = 0;
    if (!take(magic) || magic != 0x46554747U) return corrupt("it does not start with 'GGUF'");
    if (!take(file_.version_)) return truncated("its version");
    if (file_.version_ != 2 && file_.version_ != 3)
      return corrupt("its version is " + std::to_string(file_.version_) + ", known are 2 and 3");
    if (!take(tensor_count) || !take(pair_count)) return truncated("its counts");
    if (pair_count > left() / kPairBytesMin)
      return corrupt("it claims " + std::to_string(pair_count) + " metadata entries, more than it has room for");
    for (std::uint64_t i = 0; i < pair_count; ++i) TROUPE_TRY_STATUS(parse_pair());
    if (tensor_count > left() / kTensorBytesMin)
      return corrupt("it claims " + std::to_string(tensor_count) + " tensors, more than it has room for");
    for (std::uint64_t i = 0; i < tensor_count; ++i) TROUPE_TRY_STATUS(parse_tensor());
    return place_tensors();
  }

 private:
  [[nodiscard]] Status corrupt(const std::string& why) const {
    return fail(ErrorCode::kCorrupt, "not a usable GGUF file: " + why, file_.path_.string());
  }
  [[nodiscard]] Status truncated(const std::string& what) const {
    return corrupt("it ends within " + what + " (truncated?)");
  }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - position_; }

  template <class T>
  bool take(T& value) {
    if (left() < sizeof value) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return true;
  }

  bool take_string(std::string_view& text) {
    std::uint64_t length = 0;
    if (!take(length) || length > left()) return false;
    text = {reinterpret_cast<const char*>(bytes_.data()) + position_, length};
    position_ += length;
    return true;
  }

  template <class T, class Wide>
  Wide take_as() {
    T value{};
    (void)take(value);  // the caller has checked the length
    return static_cast<Wide>(value);
  }

  std::int64_t take_integer(Kind kind) {
    switch (kind) {
      case Kind::kU8:
      case Kind::kBool:
        return take_as<std::uint8_t, std::int64_t>();
      case Kind::kI8:
        return take_as<std::int8_t, std::int64_t>();
      case Kind::kU16:
        return take_as<std::uint16_t, std::int64_t>();
      case Kind::kI16:
        return take_as<std::int16_t, std::int64_t>();
      case Kind::kU32:
        return take_as<std::uint32_t, std::int64_t>();
      case Kind::kI32:
        return take_as<std::int32_t, std::int64_t>();
      case Kind::kU64:
        return take_as<std::uint64_t, std::int64_t>();
      default:
        return take_as<std::int64_t, std::int64_t>();
    }
  }

  double take_fraction(Kind kind) { return kind == Kind::kF32 ? take_as<float, double>() : take_as<double, double>(); }

  Status parse_pair() {
    std::string_view key;
    std::uint32_t kind_number = 0;
    if (!take_string(key)) return truncated("a metadata key");
    if (key.size() > kNameBytesMax) return corrupt("a metadata key is " + std::to_string(key.size()) + " bytes long");
    const std::string name(key);
    if (!take(kind_number)) return truncated("the metadata entry '" + name + "'");
    if (kind_number > static_cast<std::uint32_t>(Kind::kF64))
      return corrupt("the metadata entry '" + name + "' has the unknown kind " + std::to_string(kind_number));
    const Kind kind{kind_number};
    GgufValue value;
    if (kind == Kind::kArray) {
      TROUPE_TRY_STATUS(parse_array(name, value));
    } else if (kind == Kind::kString) {
      std::string_view text;
      if (!take_string(text)) return truncated("the metadata entry '" + name + "'");
      value = text;
    } else {
      if (left() < fixed_bytes(kind)) return truncated("the metadata entry '" + name + "'");
      if (kind == Kind::kBool)
        value = take_integer(kind) != 0;
      else if (is_fraction(kind))
        value = take_fraction(kind);
      else
        value = take_integer(kind);
    }
    if (!file_.metadata_.emplace(name, std::move(value)).second)
      return corrupt("the metadata entry '" + name + "' occurs twice");
    return {};
  }

  Status parse_array(const std::string& name, GgufValue& value) {
    std::uint32_t kind_number = 0;
    std::uint64_t count = 0;
    if (!take(kind_number) || !take(count)) return truncated("the array '" + name + "'");
    if (kind_number > static_cast<std::uint32_t>(Kind::kF64) || kind_number == static_cast<std::uint32_t>(Kind::kArray))
      return corrupt("the array '" + name + "' has elements of the unsupported kind " + std::to_string(kind_number));
    const Kind kind{kind_number};
    const std::uint64_t least = kind == Kind::kString ? kStringHeaderBytes : fixed_bytes(kind);
    if (count > left() / least)
      return corrupt("the array '" + name + "' claims " + std::to_string(count) +
                     " elements, more than the file has room for");
    if (kind == Kind::kString) {
      std::vector<std::string_view> all(count);
      for (auto& text : all)
        if (!take_string(text)) return truncated("the array '" + name + "'");
      value = std::move(all);
    } else if (is_fraction(kind)) {
      std::vector<double> all(count);
      for (auto& number : all) number = take_fraction(kind);
      value = std::move(all);
    } else {
      std::vector<std::int64_t> all(count);
      for (auto& number : all) number = take_integer(kind);
      value = std::move(all);
    }
    return {};
  }

  Status parse_tensor() {
    std::string_view name;
    std::uint32_t dimensions = 0;
    std::uint64_t offset = 0;
    if (!take_string(name) || !take(dimensions)) return truncated("its tensor table");
    if (name.empty() || name.size() > kNameBytesMax)
      return corrupt("a tensor has a name of " + std::to_string(name.size()) + " bytes");
    GgufTensor tensor;
    tensor.name = name;
    if (dimensions > kDimensionsMax)
      return corrupt("tensor '" + tensor.name + "' has " + std::to_string(dimensions) + " dimensions");
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      std::uint64_t length = 0;
      if (!take(length)) return truncated("its tensor table");
      if (length == 0 || __builtin_mul_overflow(elements, length, &elements) || elements > (std::uint64_t{1} << 60))
        return corrupt("tensor '" + tensor.name + "' has an impossible shape");
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(length));
    }
    if (!take(tensor.type) || !take(offset)) return truncated("its tensor table");
    if (!file_.index_.emplace(tensor.name, file_.tensors_.size()).second)
      return corrupt("two tensors are named '" + tensor.name + "'");
    if (const Layout* layout = layout_of(tensor.type)) {
      const std::uint64_t row = tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back());
      if (row % layout->values != 0)
        return corrupt("tensor '" + tensor.name + "' is " + layout->name + " with rows of " + std::to_string(row) +
                       ", not a multiple of " + std::to_string(layout->values));
      sizes_.push_back(elements / layout->values * layout->bytes);
    } else {
      sizes_.push_back(0);
    }
    file_.tensors_.push_back(std::move(tensor));
    offsets_.push_back(offset);
    return {};
  }

  /// Tensor data starts at the next multiple of the alignment; offsets count from there.
  Status place_tensors() {
    const std::int64_t alignment = file_.integer("general.alignment").value_or(32);
    if (alignment < 1 || alignment > (1 << 20) || !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
      return corrupt("general.alignment is " + std::to_string(alignment) + ", not a power of two up to 1 MiB");
    const auto step = static_cast<std::size_t>(alignment);
    const std::size_t start = std::min((position_ + step - 1) / step * step, bytes_.size());
    const auto data = bytes_.subspan(start);
    std::vector<std::size_t> order(sizes_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return offsets_[a] != offsets_[b] ? offsets_[a] < offsets_[b] : sizes_[a] < sizes_[b];
    });
    std::uint64_t taken = 0;
    std::size_t previous = 0;
    for (const std::size_t i : order) {
      GgufTensor& tensor = file_.tensors_[i];
      if (offsets_[i] > data.size() || sizes_[i] > data.size() - offsets_[i])
        return corrupt("tensor '" + tensor.name + "' needs bytes " + std::to_string(offsets_[i]) + " to " +
                       std::to_string(offsets_[i] + sizes_[i]) + " of " + std::to_string(data.size()) +
                       " (truncated?)");
      if (sizes_[i] > 0 && offsets_[i] < taken)
        return corrupt("tensor '" + tensor.name + "' overlaps tensor '" + file_.tensors_[previous].name + "'");
      tensor.bytes = data.subspan(offsets_[i], sizes_[i]);
      taken = std::max(taken, offsets_[i] + sizes_[i]);
      previous = i;
    }
    return {};
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  std::vector<std::uint64_t> offsets_, sizes_;
};

std::string gguf_type_name(std::uint32_t type) {
  const Layout* layout = layout_of(type);
  return layout != nullptr ? layout->name : "type " + std::to_string(type);
}

std::int64_t GgufTensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  TROUPE_TRY(MappedFile mapped, MappedFile::open(path));
  GgufFile file(std::move(mapped));
  file.path_ = path;
  TROUPE_TRY_STATUS(GgufParser(file).parse());
  return file;
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

namespace {
template <class T>
const T* held(const GgufValue* value) {
  return value == nullptr ? nullptr : std::get_if<T>(value);
}
}  // namespace

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const bool* found = held<bool>(value(key));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const auto* found = held<std::int64_t>(value(key));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  if (const auto* found = held<double>(value(key))) return *found;
  if (const auto whole = integer(key)) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const auto* found = held<std::string_view>(value(key));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::span<const std::string_view> GgufFile::strings(std::string_view key) const {
  const auto* found = held<std::vector<std::string_view>>(value(key));
  return found == nullptr ? std::span<const std::string_view>() : std::span(*found);
}

std::span<const std::int64_t> GgufFile::integers(std::string_view key) const {
  const auto* found = held<std::vector<std::int64_t>>(value(key));
  return found == nullptr ? std::span<const std::int64_t>() : std::span(*found);
}

std::span<const double> GgufFile::numbers(std::string_view key) const {
  const auto* found = held<std::vector<double>>(value(key));
  return found == nullptr ? std::span<const double>() : std::span(*found);
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace troupe::formats
