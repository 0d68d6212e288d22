#include "base/result.h"

namespace troupe {

namespace {

constexpr std::size_t kHalfMax = 2000;  // names from hostile files may be as long as the file

// Bytes of the well-formed UTF-8 character at the start of the text, or 0.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  const unsigned char second_min = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char second_max = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < second_min || byte(1) > second_max) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string Error::to_string() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = where.empty() ? message : where + ": " + message;
  if (text.size() > 2 * kHalfMax) text = text.substr(0, kHalfMax) + "[...]" + text.substr(text.size() - kHalfMax);
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character(std::string_view(text).substr(i));
    const auto first = static_cast<unsigned char>(text[i]);
    if (first == '\n') {
      shown += "\\n";
      ++i;
    } else if (length == 0 || (length == 1 && (first < 0x20 || first == 0x7F))) {
      shown += {'\\', 'x', kDigits[first >> 4], kDigits[first & 15]};
      ++i;
    } else {
      shown.append(text, i, length);
      i += length;
    }
  }
  return shown;
}

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kInvalidConfig: return "invalid config";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kResourceExhausted: return "resource exhausted";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kFenced: return "fenced";
    case ErrorCode::kDraining: return "draining";
    case ErrorCode::kAlreadyExists: return "already exists";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

} // namespace troupe
