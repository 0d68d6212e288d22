#include "checkpoint/json_fields.h"

#include <charconv>

namespace troupe::checkpoint {

Result<std::uint64_t> hex_field(const nlohmann::json& object, const char* key) {
  TROUPE_TRY(const std::string text, field<std::string>(object, key));
  std::uint64_t value = 0;
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 16 || parsed.ec != std::errc{} || parsed.ptr != end)
    return fail(ErrorCode::kCorrupt, std::string("field \"") + key + "\" is not a checksum");
  return value;
}

}  // namespace troupe::checkpoint
