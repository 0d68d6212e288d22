/// @file
/// A reply that is taken apart while it is being said.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/reply.h"
#include "data/tokenizer.h"
#include "generate/request.h"

namespace troupe::serve {

/// What became certain.
struct Delta {
  std::string reasoning, content;
  std::vector<data::ToolCall> calls;   ///< Only at the end.
  std::vector<std::string> problems;   ///< Only at the end: calls that were cut off or malformed.
  [[nodiscard]] bool empty() const { return reasoning.empty() && content.empty() && calls.empty() && problems.empty(); }
};

/// Deltas joined are the reply that the whole text is parsed to. No character is split; what may turn out to be the beginning of a mark or of a
/// stop string is held back until it is clear. Cost: linear in the text.
class ReplyStream {
 public:
  struct Options {
    std::optional<data::ReplyFormat> format = {}; ///< None: a text without grammar.
    bool thinking = false;                        ///< The prompt has opened the reasoning.
    nlohmann::ordered_json tools = {};            ///< What parse_reply is told.
    std::vector<std::string> stops = {};
  };
  ReplyStream(const data::Tokenizer& tokenizer, Options options);

  [[nodiscard]] Delta push(std::int32_t id);
  /// The rest, once the engine has said how it ended.
  [[nodiscard]] Delta finish(const generate::Completion& completion);
  /// Everything that was given out, calls included.
  [[nodiscard]] const Delta& said() const { return said_; }

 private:
  [[nodiscard]] data::Reply parse(std::string_view text) const;
  [[nodiscard]] std::size_t certain();
  Delta grow(std::string_view reasoning, std::string_view content);

  const data::Tokenizer& tokenizer_;
  Options options_;
  data::StreamDecoder decoder_;
  std::string text_;          // so far, control tokens included where there is a grammar
  std::size_t parsed_ = 0;    // bytes of text_ at the last look
  std::size_t searched_ = 0;  // bytes of text_ that hold no stop string
  Delta said_;
};

} // namespace troupe::serve
