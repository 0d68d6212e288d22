/// @file
/// One request under way: its completions, what of them was said, and how it is written. Private to this folder.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/service.h"

namespace troupe::serve {

/// One of `n`.
struct Choice {
  Choice(std::shared_ptr<Generation> made, const data::Tokenizer& tokenizer, ReplyStream::Options reply)
      : generation(std::move(made)), text(tokenizer, std::move(reply)) {}
  std::shared_ptr<Generation> generation;
  ReplyStream text;
  std::vector<Token> unsent;   ///< Those whose log-probs no chunk had yet.
  std::size_t offset = 0;      ///< Bytes of text in chunks before.
  bool begun = false, over = false;
};

/// What the two kinds of answers have in common.
struct Service::Answer {
  Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  virtual ~Answer() = default;

  /// A chunk of a stream that says what is new; `over`: and how it ended. Null: nothing to say.
  [[nodiscard]] virtual nlohmann::ordered_json chunk(std::size_t index, const Delta& delta, bool over) = 0;
  /// The choice in a whole answer.
  [[nodiscard]] virtual nlohmann::ordered_json whole(std::size_t index) = 0;
  /// id, object, created, model: what every chunk and the whole answer begin with.
  [[nodiscard]] nlohmann::ordered_json envelope(bool streamed) const;

  const data::Tokenizer* tokenizer = nullptr;
  std::string id, object, chunk_object, model;
  std::time_t created = 0;
  bool stream = false, include_usage = false, logprobs = false;
  std::vector<std::unique_ptr<Choice>> choices;
  Usage usage;
  std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
  bool first_seen = false, complete = false;
};

/// Takes what a choice has newly sampled. The delta that it makes; `choice.over` is set at the end.
[[nodiscard]] Delta advance(Choice& choice, Duration timeout, bool keep_tokens, std::size_t& fresh);

} // namespace troupe::serve
