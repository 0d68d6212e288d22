#include "actors/supervisor/control_request.h"

#include "base/json.h"

namespace troupe::actors {

Result<nlohmann::json> parse_control_request(std::string_view line) {
  TROUPE_TRY(auto request, parse_json(line, "the request"));
  if (!request.is_object()) return fail(ErrorCode::kInvalidArgument, "a request is one JSON object on one line");
  if (!request.contains("command") || !request["command"].is_string())
    return fail(ErrorCode::kInvalidArgument, "a request has a string \"command\"");
  for (const char* key : {"role", "node", "setting", "experiment"})
    if (request.contains(key) && !request[key].is_string()) return fail(ErrorCode::kInvalidArgument, std::string("a request's \"") + key + "\" is a string");
  return request;
}

} // namespace troupe::actors
