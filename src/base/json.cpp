#include "base/json.h"

#include <algorithm>

namespace troupe {
namespace {

// Brackets that are open at the deepest place. Strings are skipped; the text need not be valid.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(std::max<std::size_t>(column, 1));
}

} // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& where) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return fail(ErrorCode::kCorrupt, "is empty where JSON is expected", where);
  if (depth_of(text) > kJsonDepthMax)
    return fail(ErrorCode::kCorrupt, "is nested deeper than " + std::to_string(kJsonDepthMax) + " levels", where);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    const bool truncated = e.byte > text.size();
    const bool utf8 = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    return fail(ErrorCode::kCorrupt,
                std::string(utf8        ? "has ill-formed UTF-8 at "
                            : truncated ? "ends in the middle of a JSON value at "
                                        : "is not valid JSON at ") +
                    line_and_column(text, e.byte),
                where);
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kCorrupt, "holds a number that does not fit", where);
  }
}

} // namespace troupe
