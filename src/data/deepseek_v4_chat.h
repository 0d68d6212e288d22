/// @file
/// The conversation format of DeepSeek-V4. Its releases define it by a program; here it is a template like any other (deepseek_v4_template.inc), and a
/// request is put into the form that it expects.
#pragma once

#include "data/chat_template.h"

namespace troupe::data {

/// The template, for ChatTemplate::parse.
[[nodiscard]] std::string_view deepseek_v4_template();

/// Arguments of calls become objects, results take the order of their calls. `variables` may hold:
/// - `thinking` (true), `keep_reasoning` (false: reasoning before the last user turn is dropped unless there are tools);
/// - `reasoning_effort`: "low" (the default), "high", "xhigh", "max";
/// - `release`: "2026-04" for the checkpoints of April 2026, whose "max" is what later ones call "high".
/// Errors: kInvalidArgument naming the call whose arguments are no JSON object, or the unknown effort.
[[nodiscard]] Result<ChatRequest> deepseek_v4_request(ChatRequest request);

} // namespace troupe::data
