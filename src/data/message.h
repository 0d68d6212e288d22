/// @file
/// One message of a conversation, as files, templates, tasks and actors pass it on.
#pragma once

#include <string>

namespace troupe::data {

struct Message {
  std::string role;      ///< "system", "user", "assistant" or "tool".
  std::string content;   ///< UTF-8, exactly as written.
  std::string more = {}; ///< A JSON object of further fields for templates (tool_calls, reasoning_content, ...), or empty.
  friend bool operator==(const Message&, const Message&) = default;
};
template <class Inspector>
bool inspect(Inspector& f, Message& x) {
  return f.object(x).fields(f.field("role", x.role), f.field("content", x.content), f.field("more", x.more));
}

} // namespace troupe::data
