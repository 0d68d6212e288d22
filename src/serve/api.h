/// @file
/// The wire format of the OpenAI chat-completions and completions API: requests in, responses out. No network, no engine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "data/chat.h"
#include "data/reply.h"
#include "data/tokenizer.h"
#include "generate/request.h"
#include "serve/generator.h"

namespace troupe::serve {

/// What both kinds of request have in common.
struct Call {
  std::string model;                  ///< Empty: whatever is served.
  int completions = 1;                ///< n
  std::optional<int> max_tokens;      ///< Absent: as far as the context goes (chat), 16 (completions).
  std::optional<std::uint64_t> seed;
  generate::SamplingParams sampling;  ///< Without max_new_tokens and stop ids.
  bool logprobs = false;
  bool stream = false;
  bool include_usage = false;
};

struct ChatCall : Call {
  std::vector<data::Message> messages;
  data::ChatExtras extras;
};

struct CompletionCall : Call {
  std::vector<std::variant<std::string, std::vector<std::int32_t>>> prompts;
};

/// Something to answer instead of a result, in OpenAI's shape.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param; ///< Of the request, or empty.
  std::string code;  ///< Or empty.
};
[[nodiscard]] ApiError to_api_error(const Error& error);
[[nodiscard]] std::string to_json_text(const ApiError& error);

/// What a request may ask for.
struct CallLimits {
  int completions_max = 16;
  int vocabulary = 0;
};

/// Parse request bodies. All problems of a request are said at once; fields that would change the answer and are not known are refused, those
/// that would not are ignored.
[[nodiscard]] tl::expected<ChatCall, ApiError> parse_chat_call(std::string_view body, const CallLimits& limits);
[[nodiscard]] tl::expected<CompletionCall, ApiError> parse_completion_call(std::string_view body, const CallLimits& limits);

/// Tokens of requests and answers.
struct Usage {
  std::int64_t prompt = 0, completion = 0;
};
[[nodiscard]] nlohmann::ordered_json to_json(const Usage& usage);

/// "stop", "length" or "tool_calls".
[[nodiscard]] std::string_view finish_reason(generate::Finish finish, bool calls);

/// The calls of a message; `prefix` makes their ids unique.
[[nodiscard]] nlohmann::ordered_json calls_json(const std::vector<data::ToolCall>& calls, const std::string& prefix, bool indexed);

/// `logprobs` of a choice: chat's {"content": [...]}, and completions' four lists, whose text offsets count on from `offset`.
[[nodiscard]] nlohmann::ordered_json chat_logprobs(const std::vector<Token>& tokens, const data::Tokenizer& tokenizer);
[[nodiscard]] nlohmann::ordered_json completion_logprobs(const std::vector<Token>& tokens, const data::Tokenizer& tokenizer, std::size_t offset);

/// Text that may hold broken characters, as JSON.
[[nodiscard]] std::string dump(const nlohmann::ordered_json& json);

} // namespace troupe::serve
