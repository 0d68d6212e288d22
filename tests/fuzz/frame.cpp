// What processes are told as text: a worker's start frame, and a request on the control socket.
#include "actors/runtime/frame.h"

#include <nlohmann/json.hpp>

#include "actors/supervisor/control_request.h"
#include "fuzz/support.h"
#include "protocol/types.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 1 << 20, 300);
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto frame = actors::decode_frame(text); fuzz::is_good(frame, {ErrorCode::kCorrupt})) {
    const std::string written = actors::encode_frame(*frame);
    const auto again = actors::decode_frame(written);
    TROUPE_CHECK(again && actors::encode_frame(*again) == written, "a frame is the same when it is read again");
  }
  const auto request = actors::parse_control_request(text);
  if (!fuzz::is_good(request, {ErrorCode::kCorrupt, ErrorCode::kInvalidArgument})) return 0;
  TROUPE_CHECK((*request)["command"].is_string(), "a command");
  (void)protocol::parse_role(request->value("role", ""));
  return 0;
}
