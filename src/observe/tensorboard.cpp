#include "observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/endpoint.h"

namespace troupe::observe {
namespace {

constexpr std::uint32_t kCastagnoli = 0x82F63B78;  // reflected polynomial
constexpr std::string_view kFileVersion = "brain.Event:2";
constexpr std::uint64_t kRecordBytesMax = 64 << 20;  // far above a step with every metric; guards the reader

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

// TFRecord masks checksums, because a checksum of data that holds checksums is weak.
std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

template <class T>
void put(std::string& out, T value) {  // little-endian, as this project's machines are
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

template <class T>
T get(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_bytes(std::string& out, char tag, std::string_view bytes) {
  out += tag;
  put_varint(out, bytes.size());
  out += bytes;
}

// Protocol buffer tags: (field << 3) | wire type. Event: 1 wall_time, 2 step, 3 file_version, 5 summary.
// Summary: 1 value. Summary.Value: 1 tag, 2 simple_value.
constexpr char kWallTime = 0x09, kStep = 0x10, kVersion = 0x1a, kSummary = 0x2a, kValue = 0x0a, kTag = 0x0a,
               kSimpleValue = 0x15;

Status write_record(int fd, std::string_view event, const std::filesystem::path& path) {
  const std::string record = tfrecord(event);
  return write_all(fd, std::as_bytes(std::span(record)), path);
}

// One field of a protocol buffer message.
struct ProtoField {
  int number = 0;
  std::uint64_t integer = 0;
  std::string_view bytes;  // of fixed and length-delimited fields
};

std::optional<std::uint64_t> take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return {};
}

std::optional<ProtoField> take_field(std::string_view& in) {
  const auto key = take_varint(in);
  if (!key) return {};
  ProtoField field{static_cast<int>(*key >> 3), 0, {}};
  std::uint64_t length = 0;
  switch (*key & 7) {
    case 0: {
      const auto value = take_varint(in);
      if (!value) return {};
      field.integer = *value;
      return field;
    }
    case 1:
      length = 8;
      break;
    case 5:
      length = 4;
      break;
    case 2: {
      const auto value = take_varint(in);
      if (!value) return {};
      length = *value;
      break;
    }
    default:
      return {};
  }
  if (length > in.size()) return {};
  field.bytes = in.substr(0, length);
  in.remove_prefix(length);
  return field;
}

bool read_event(std::string_view event, std::vector<ScalarPoint>& out) {
  ScalarPoint point;
  std::string_view summary;
  while (!event.empty()) {
    const auto field = take_field(event);
    if (!field) return false;
    if (field->number == 1 && field->bytes.size() == 8) point.wall_time_s = get<double>(field->bytes);
    if (field->number == 2) point.step = static_cast<std::int64_t>(field->integer);
    if (field->number == 5) summary = field->bytes;
  }
  while (!summary.empty()) {
    const auto value = take_field(summary);
    if (!value) return false;
    std::string_view rest = value->bytes;
    while (!rest.empty()) {
      const auto field = take_field(rest);
      if (!field) return false;
      if (field->number == 1) point.name = field->bytes;
      if (field->number == 2 && field->bytes.size() == 4) point.value = get<float>(field->bytes);
    }
    out.push_back(point);
  }
  return true;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tfrecord(std::string_view data) {
  std::string out;
  put(out, static_cast<std::uint64_t>(data.size()));
  put(out, masked(std::string_view(out)));
  out += data;
  put(out, masked(data));
  return out;
}

std::string scalar_event(double wall_time_s, std::int64_t step, std::span<const Metric> metrics) {
  std::string summary;
  for (const Metric& metric : metrics) {
    if (metric.name.empty() || !std::isfinite(metric.value)) continue;
    std::string value;
    put_bytes(value, kTag, metric.name);
    value += kSimpleValue;
    put(value, static_cast<float>(metric.value));
    put_bytes(summary, kValue, value);
  }
  std::string event(1, kWallTime);
  put(event, wall_time_s);
  event += kStep;
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, kSummary, summary);
  return event;
}

Result<TensorboardWriter> TensorboardWriter::create(const std::filesystem::path& folder, double wall_time_s) {
  TROUPE_TRY_STATUS(make_folders(folder));
  const std::string name = "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(wall_time_s)) + "." +
                           host_name() + "." + std::to_string(::getpid());
  const std::filesystem::path path = folder / name;
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return tl::unexpected(system_error("cannot open", path, errno));
  std::string event(1, kWallTime);
  put(event, wall_time_s);
  put_bytes(event, kVersion, kFileVersion);
  TROUPE_TRY_STATUS(write_record(file.get(), event, path));
  return TensorboardWriter(std::move(file), path);
}

Status TensorboardWriter::write(const MetricBatch& batch, double wall_time_s) {
  return write_record(file_.get(), scalar_event(wall_time_s, static_cast<std::int64_t>(batch.step), batch.metrics),
                      path_);
}

Result<std::vector<ScalarPoint>> read_event_file(const std::filesystem::path& path) {
  TROUPE_TRY(const std::string content, read_file(path));
  const auto corrupt = [&](std::size_t at, std::string_view what) {
    return fail(ErrorCode::kCorrupt, path.string() + ": " + std::string(what) + " at byte " + std::to_string(at));
  };
  std::vector<ScalarPoint> out;
  std::string_view rest = content;
  while (!rest.empty()) {
    const std::size_t at = content.size() - rest.size();
    if (rest.size() < 12) return corrupt(at, "truncated record");
    const auto length = get<std::uint64_t>(rest);
    if (get<std::uint32_t>(rest.substr(8)) != masked(rest.substr(0, 8)))
      return corrupt(at, "wrong checksum of a length");
    if (length > kRecordBytesMax || rest.size() - 12 < length + 4) return corrupt(at, "truncated record");
    const std::string_view event = rest.substr(12, length);
    if (get<std::uint32_t>(rest.substr(12 + length)) != masked(event)) return corrupt(at, "wrong checksum of a record");
    if (!read_event(event, out)) return corrupt(at, "not an Event message");
    rest.remove_prefix(16 + length);
  }
  return out;
}

}  // namespace troupe::observe
